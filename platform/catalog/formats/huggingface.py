"""A Hugging Face folder: config.json, tokenizer.json, safetensors. Headers are read, weights never."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog import architectures
from catalog.formats import jsonfiles, safetensors
from catalog.formats.decoder import Decoder, huggingface_tensors, require
from catalog.formats.facts import NO_CHAT_TEMPLATE, Facts, Reason, Rejected, Source, Tensor, bounded

_INDEX: Final = "model.safetensors.index.json"
_PARAMETER_TYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})


def inspect(files: Sequence[Source]) -> Facts:
    """Check the folder and say what it is.

    Raises:
        Rejected: it may not be served.
    """
    config_file = jsonfiles.find(files, "config.json")
    if config_file is None:
        raise Rejected(Reason.MISSING_CONFIG, "There is no config.json. Upload the whole folder of the model.")
    config = jsonfiles.read_object(config_file)
    tokenizer_config = _optional(files, "tokenizer_config.json")
    for name, values in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        _refuse_code(name, values)
    decoder = read_decoder(config)
    tokenizer = _tokenizer(files)
    template = _has_template(files, tokenizer_config)
    tensors = _tensors(files)
    require(huggingface_tensors(decoder), tensors, "config.json")
    types: dict[str, int] = {}
    for tensor in tensors.values():
        types[tensor.kind] = types.get(tensor.kind, 0) + tensor.num_bytes
    return Facts(
        format="huggingface",
        architecture=decoder.architecture.name,
        parameters=sum(tensor.count for tensor in tensors.values() if tensor.kind in _PARAMETER_TYPES),
        max_model_len=decoder.max_positions,
        has_chat_template=template,
        layers=decoder.layers,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        hidden_size=decoder.hidden_size,
        intermediate_size=decoder.intermediate_size,
        vocab_size=decoder.vocab_size,
        tie_word_embeddings=decoder.tied,
        weight_types=types,
        tokenizer=tokenizer,
        rope=decoder.rope,
        title=str(config.get("_name_or_path") or "")[:120],
        warnings=() if template else (NO_CHAT_TEMPLATE,),
    )


def read_decoder(config: Mapping[str, Any]) -> Decoder:
    """The sizes in a ``config.json``.

    Raises:
        Rejected: an architecture or variant that is not served, or numbers that cannot be.
    """
    found = _architecture(config)
    if config.get("quantization_config"):
        raise Rejected(
            Reason.UNSUPPORTED_QUANTIZATION,
            "The weights are quantized in a way that is not served. Upload the original weights, or a GGUF file.",
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise Rejected(
            Reason.UNSUPPORTED_ACTIVATION,
            f"The activation {str(activation)[:40]!r} is not served, only silu. Choose another model.",
        )
    heads = bounded(config, "num_attention_heads", 1, 1024, "config.json")
    hidden = bounded(config, "hidden_size", 1, 1 << 20, "config.json")
    decoder = Decoder(
        architecture=found,
        layers=bounded(config, "num_hidden_layers", 1, 1024, "config.json"),
        heads=heads,
        kv_heads=bounded(config, "num_key_value_heads", 1, 1024, "config.json", default=heads),
        head_dim=bounded(config, "head_dim", 1, 4096, "config.json", default=max(1, hidden // heads)),
        hidden_size=hidden,
        intermediate_size=bounded(config, "intermediate_size", 1, 1 << 22, "config.json"),
        vocab_size=bounded(config, "vocab_size", 1, 1 << 24, "config.json"),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=bounded(config, "max_position_embeddings", 1, 1 << 24, "config.json"),
        rope=_rope(config),
    )
    decoder.check("config.json")
    return decoder


def _architecture(config: Mapping[str, Any]) -> architectures.Architecture:
    names = config.get("architectures")
    stated = [str(name)[:80] for name in names] if isinstance(names, list) else []
    found = next((entry for name in stated if (entry := architectures.by_name(name)) is not None), None)
    if found is None:
        raise Rejected(
            Reason.UNSUPPORTED_ARCHITECTURE,
            f"The architecture {', '.join(stated[:3]) or 'is not stated and'} is not served here. "
            f"Served are: {', '.join(sorted(architectures.HUGGINGFACE_NAMES))}.",
        )
    return found


def _rope(config: Mapping[str, Any]) -> str:
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, Mapping):
        raise Rejected(Reason.DAMAGED_FILE, "config.json: rope_scaling is not an object. Export the model again.")
    kind = str(stated.get("rope_type") or stated.get("type") or "default")[:40]
    if kind not in architectures.ROPE_TYPES:
        raise Rejected(
            Reason.UNSUPPORTED_ROPE,
            f"The rotary embedding {kind!r} is not served, only "
            f"{', '.join(sorted(architectures.ROPE_TYPES))}. Choose another model.",
        )
    return kind


def _refuse_code(name: str, values: Mapping[str, Any]) -> None:
    if values.get("auto_map") or values.get("trust_remote_code"):
        raise Rejected(
            Reason.REMOTE_CODE_REFUSED,
            f"{name} asks for code that comes with the model (auto_map). Uploaded code is never run: "
            "use a version of the model that transformers supports by itself, and remove auto_map.",
        )


def _optional(files: Sequence[Source], path: str) -> dict[str, Any]:
    file = jsonfiles.find(files, path)
    return jsonfiles.read_object(file) if file is not None else {}


def _tokenizer(files: Sequence[Source]) -> str:
    file = jsonfiles.find(files, "tokenizer.json")
    if file is None:
        raise Rejected(
            Reason.MISSING_TOKENIZER,
            "There is no tokenizer.json, so text cannot become tokens. Save the tokenizer beside the model "
            "(tokenizer.save_pretrained) and upload it too.",
        )
    return jsonfiles.read_tokenizer(file)


def _has_template(files: Sequence[Source], tokenizer_config: Mapping[str, Any]) -> bool:
    """True when a chat template is there. It is not rendered here."""
    file = jsonfiles.find(files, "chat_template.jinja")
    if file is not None:
        return bool(jsonfiles.read_text(file).strip())
    template = tokenizer_config.get("chat_template") or _optional(files, "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next(
            (entry.get("template") for entry in template if isinstance(entry, dict) and entry.get("name") == "default"),
            None,
        )
    return isinstance(template, str) and bool(template.strip())


def _tensors(files: Sequence[Source]) -> dict[str, Tensor]:
    """All tensors by name, over all shards."""
    shards = {file.path: file for file in files if file.name.lower().endswith(".safetensors")}
    if not shards:
        raise Rejected(Reason.MISSING_WEIGHTS, "There are no .safetensors files. Upload the weights too.")
    index_file = jsonfiles.find(files, _INDEX)
    index = _index(index_file) if index_file is not None else None
    if index is not None:
        _match_shards(set(index.values()), set(shards))
    elif len(shards) > 1 or "/" in next(iter(shards)):
        raise Rejected(
            Reason.MISSING_SHARD,
            f"There are {len(shards)} .safetensors files but no {_INDEX} beside them that says what "
            "belongs together. Upload it too.",
        )
    found: dict[str, Tensor] = {}
    for path, file in sorted(shards.items()):
        for tensor in safetensors.read_header(file):
            if tensor.name in found:
                raise jsonfiles.damaged(file, f"tensor {tensor.name[:80]!r} is in another shard too")
            if index is not None and index.get(tensor.name) != path:
                raise jsonfiles.damaged(file, f"the index does not place tensor {tensor.name[:80]!r} here")
            if tensor.kind.startswith("F8"):
                raise Rejected(
                    Reason.UNSUPPORTED_TYPE,
                    f"{path} has FP8 weights, which are not served yet. Upload them as BF16 or F16.",
                )
            found[tensor.name] = tensor
    if index is not None and (absent := sorted(set(index) - set(found))):
        raise Rejected(
            Reason.MISSING_TENSOR,
            f"The index names tensor {absent[0][:80]!r}, which no shard has. Upload index and shards "
            "of the same export.",
        )
    return found


def _index(file: Source) -> dict[str, str]:
    weights = jsonfiles.read_object(file, jsonfiles.MAX_INDEX_BYTES).get("weight_map")
    if (
        not isinstance(weights, dict)
        or not weights
        or len(weights) > safetensors.MAX_TENSORS
        or not all(isinstance(shard, str) for shard in weights.values())
    ):
        raise jsonfiles.damaged(file, "it has no weight_map from tensors to files")
    return weights


def _match_shards(named: set[str], there: set[str]) -> None:
    if missing := sorted(named - there):
        raise Rejected(
            Reason.MISSING_SHARD,
            f"{len(missing)} of the {len(named)} weight files are missing, for instance "
            f"{missing[0][:80]!r}. Upload them too.",
        )
    if extra := sorted(there - named):
        raise Rejected(
            Reason.UNEXPECTED_FILE,
            f"{extra[0]} is not in {_INDEX}. Leave it out, or upload the index that belongs to it.",
        )
