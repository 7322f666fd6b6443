"""Patterns of ``sentences`` for why a version is rejected: what is wrong with its files, and what to do."""

from typing import Final

from django.utils.translation import gettext_noop as _

#: What damages a file exactly (``detail``) is said by ``damages``.
REJECTIONS: Final = (
    _(
        "This is no model that is served here. Upload one .gguf file, a Hugging Face folder with config.json, "
        "tokenizer.json and .safetensors files, or an .onnx model."
    ),
    _("There are both %(names)s files. Upload one of them per version."),
    _("%(file)s has %(size)s bytes; files beside the weights have at most %(most)s. Leave it out."),
    _("%(file)s is a pickle inside, which can run code when it is read. Leave it out; weights go into safetensors."),
    _("%(file)s is an archive inside. Unpack it and upload the files themselves."),
    _("%(file)s is a program inside, which is never run here. Leave it out."),
    _("%(file)s is not the text that its name says. Leave it out."),
    _("The weights have no tensor %(name)s, which %(file)s calls for. Export the whole model again."),
    _(
        "Tensor %(name)s has the shape %(shape)s, but %(file)s calls for %(other)s. Upload config and weights of "
        "the same model."
    ),
    _(
        "There are %(count)s .gguf files; a version has one. Merge a split model into one file, or upload each "
        "by itself."
    ),
    _("%(file)s is one part of a split model. Merge the parts into one file."),
    _("The architecture is not stated and is not served here as GGUF. Served are: %(names)s."),
    _("The architecture %(name)s is not served here as GGUF. Served are: %(names)s."),
    _("Mixture-of-experts models are not served as GGUF. Choose a dense model."),
    _("The rotary scaling %(what)s is not served for GGUF files. Upload the model as a Hugging Face folder."),
    _("The file has no token embedding (token_embd.weight). Export the whole model again."),
    _(
        "%(file)s carries no tokenizer, so text cannot become tokens. Convert the model again together with its "
        "tokenizer."
    ),
    _("The tokenizer %(what)s is not served, only %(names)s. Upload the model as a Hugging Face folder."),
    _("The tokenizer in %(file)s has no %(what)s. Convert the model again."),
    _("%(file)s has %(count)s tokens but embeddings for %(total)s. Convert the model again."),
    _("%(file)s is damaged: %(detail)s. Export it again."),
    _("%(file)s does not hold what it says: %(detail)s. Upload it again, or export it again."),
    _("%(file)s does not hold what it says: %(detail)s. Export it again."),
    _("%(file)s has the GGUF version %(count)s; 2 and 3 are read (little-endian). Convert it again."),
    _(
        "%(file)s: tensor %(name)s has the storage type %(what)s, which is not read here. Quantize it anew, for "
        "instance to Q8_0."
    ),
    _("There is no config.json. Upload the whole folder of the model."),
    _(
        "There is no tokenizer.json, so text cannot become tokens. Save the tokenizer beside the model "
        "(tokenizer.save_pretrained) and upload it too."
    ),
    _("There are no .safetensors files. Upload the weights too."),
    _("The index names tensor %(name)s, which no shard has. Upload index and shards of the same export."),
    _("%(count)s of the %(total)s weight files are missing, for instance %(file)s. Upload them too."),
    _("%(file)s is not in %(name)s. Leave it out, or upload the index that belongs to it."),
    _(
        "There are %(count)s .safetensors files but no %(name)s beside them that says what belongs together. "
        "Upload it too."
    ),
    _("%(file)s has FP8 weights, which are not served yet. Upload them as BF16 or F16."),
    _("%(file)s has no vocabulary. Save the tokenizer again and upload it whole."),
    _("%(file)s has %(size)s bytes; it may have at most %(most)s. Upload the original file."),
    _("%(file)s is not a tokenizer file (%(what)s). Save the tokenizer again and upload it whole."),
    _("%(file)s: tensor %(name)s has the type %(what)s, which is not read here. Save it as BF16, F16 or F32."),
    _("There are %(count)s .onnx files; a version has one. Upload each as a model of its own."),
    _("%(file)s is empty. Export the model again."),
    _("%(file)s is damaged: %(detail)s. Export the model again."),
    _("%(file)s does not hold what it says: %(detail)s. Export the model again."),
    _(
        "%(file)s does not hold what is said of it: %(detail)s. Export the model into an empty folder, since exporters "
        "append to what is there, and upload both files."
    ),
    _("%(file)s is not read here: %(detail)s. Export a dense model for inference."),
    _(
        "%(file)s needs the operation %(name)s of %(what)s, which a library would have to bring; none is loaded here. "
        "Export it with standard operations."
    ),
    _(
        "%(file)s has %(count)s inputs and %(total)s outputs; 1 to %(most)s of each are served. Export the model with "
        "its inputs and outputs named."
    ),
    _(
        "%(file)s: %(detail)s, which no client can send or read. Export it with arrays of numbers or texts "
        "(classifiers of scikit-learn: with zipmap=False)."
    ),
    _(
        "%(file)s: %(name)s has the element type %(what)s, which is not read here. Export the model with float or "
        "integer types."
    ),
    _("%(file)s names %(name)s, a file outside of its folder. Save the model again with its data beside it."),
    _(
        "%(file)s keeps weights in %(name)s, which is not here. Upload it too (a name that ends in .onnx.data or "
        ".onnx_data)."
    ),
    _("%(file)s is named by no tensor of %(name)s. Leave it out."),
    _("The check could not read this model; its files may be damaged. Export them again, or tell a platform admin."),
)
