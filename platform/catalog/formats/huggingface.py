"""A Hugging Face folder: config.json, tokenizer.json, safetensors. Headers are read, weights never."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog import architectures
from catalog.formats import jsonfiles, safetensors
from catalog.formats.decoder import Decoder, full_name, huggingface_tensors, require
from catalog.formats.facts import NO_CHAT_TEMPLATE, Facts, Reason, Rejected, Source, Tensor, bounded, bytes_by_type

WHERE: Final = "config.json"
MAX_HIDDEN: Final = 1 << 20
MAX_INNER: Final = 1 << 22
MAX_EXPERTS: Final = 4096
_INDEX: Final = "model.safetensors.index.json"
# What GPT-2's configs call the sizes that all others call by the names on the right.
_OLD_NAMES: Final = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
}


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
    tensors = {full_name(decoder, name): tensor for name, tensor in _tensors(files).items()}
    parameters = require(huggingface_tensors(decoder), tensors, "config.json")
    return Facts(
        format="huggingface",
        **decoder.sizes(),
        parameters=parameters,
        max_model_len=decoder.max_positions,
        has_chat_template=template,
        weight_types=bytes_by_type(tensors.values()),
        tokenizer=tokenizer,
        rope=decoder.rope,
        title=str(config.get("_name_or_path") or "")[:120],
        warnings=() if template else (NO_CHAT_TEMPLATE,),
    )


def refusal_of(config: Mapping[str, Any]) -> Rejected | None:
    """Why a model with this ``config.json`` would be refused, whatever its other files; ``None`` when it would not."""
    try:
        read_decoder(config)
        _refuse_code("config.json", config)
    except Rejected as refusal:
        return refusal
    return None


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
    _refuse_variants(found, config)
    return sizes_of(found, config, rope=_rope(found, config))


def sizes_of(found: architectures.Architecture, config: Mapping[str, Any], *, rope: str) -> Decoder:
    """The sizes of a served architecture, whether or not this variant of it is served.

    Raises:
        Rejected: numbers that cannot be.
    """
    sizes = common_sizes(_sizes(found, config))
    sparse = sparse_layers(config, sizes["layers"]) if found.names.router else ()
    tied = config.get("tie_word_embeddings")
    decoder = Decoder(
        architecture=found,
        **sizes,
        tied=found.tied if tied is None else bool(tied),
        rope=rope,
        attention_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        sparse=sparse,
        **(_experts(config, sizes["intermediate_size"]) if sparse else {}),
        capped_scores=bool(config.get("attn_logit_softcapping")),
    )
    decoder.check(WHERE)
    return decoder


def _experts(config: Mapping[str, Any], inner: int) -> dict[str, int]:
    return {
        "num_experts": bounded(config, "num_local_experts", 1, MAX_EXPERTS, WHERE, default=config.get("num_experts")),
        "experts_per_token": bounded(config, "num_experts_per_tok", 1, MAX_EXPERTS, WHERE),
        "expert_size": bounded(config, "moe_intermediate_size", 1, MAX_INNER, WHERE, default=inner),
    }


def common_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that every decoder has, under the names that :class:`Decoder` has for them.

    Raises:
        Rejected: one is missing, or out of bounds.
    """
    heads = bounded(values, "num_attention_heads", 1, 1024, WHERE)
    hidden = bounded(values, "hidden_size", 1, MAX_HIDDEN, WHERE)
    return {
        "layers": bounded(values, "num_hidden_layers", 1, 1024, WHERE),
        "heads": heads,
        "kv_heads": bounded(values, "num_key_value_heads", 1, 1024, WHERE, default=heads),
        "head_dim": bounded(values, "head_dim", 1, 4096, WHERE, default=max(1, hidden // heads)),
        "hidden_size": hidden,
        "intermediate_size": bounded(values, "intermediate_size", 1, MAX_INNER, WHERE),
        "vocab_size": bounded(values, "vocab_size", 1, 1 << 24, WHERE),
        "max_positions": bounded(values, "max_position_embeddings", 1, 1 << 24, WHERE),
    }


def stated_architectures(config: Mapping[str, Any]) -> list[str]:
    """The names that the config gives, as far as they are shown."""
    names = config.get("architectures")
    return [str(name)[:80] for name in names[:8]] if isinstance(names, list) else []


def architecture_of(config: Mapping[str, Any]) -> architectures.Architecture | None:
    """The served architecture that the config names first, or ``None``."""
    found = (architectures.by_name(name) for name in stated_architectures(config))
    return next((entry for entry in found if entry is not None), None)


def _architecture(config: Mapping[str, Any]) -> architectures.Architecture:
    found = architecture_of(config)
    if found is None:
        stated = stated_architectures(config)
        latent = "it keeps keys and values compressed (multi-head latent attention), which no engine here computes. "
        raise Rejected(
            Reason.UNSUPPORTED_ARCHITECTURE,
            f"The architecture {', '.join(stated[:3]) or 'is not stated and'} is not served here"
            f"{': ' + latent if config.get('kv_lora_rank') else '. '}"
            f"Served are: {', '.join(sorted(architectures.HUGGINGFACE_NAMES))}.",
        )
    return found


def _refuse_variants(found: architectures.Architecture, config: Mapping[str, Any]) -> None:
    activation = config.get(found.activation)
    known = isinstance(activation, str) and activation in architectures.ACTIVATIONS
    if activation is not None and not known:
        raise Rejected(
            Reason.UNSUPPORTED_ACTIVATION,
            f"The activation {str(activation)[:40]!r} is not served, only "
            f"{', '.join(sorted(architectures.ACTIVATIONS))}. Choose another model.",
        )
    for switch in architectures.REFUSED_SWITCHES:
        if config.get(switch):
            raise Rejected(
                Reason.UNSUPPORTED_VARIANT, f"config.json sets {switch}, which is not served. Choose another model."
            )


def _sizes(found: architectures.Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with every size under its common name."""
    sizes = dict(config)
    if not found.rotary:
        sizes |= {new: config[old] for old, new in _OLD_NAMES.items() if config.get(old) is not None}
        if config.get("n_inner") is None and isinstance(sizes.get("hidden_size"), int):
            sizes["intermediate_size"] = 4 * sizes["hidden_size"]
    return sizes


def sparse_layers(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers of a mixture of experts have experts.

    Raises:
        Rejected: what says so is out of bounds.
    """
    step = bounded(config, "decoder_sparse_step", 1, 1024, WHERE, default=1)
    stated = config.get("mlp_only_layers") or []
    if not isinstance(stated, list) or not all(isinstance(number, int) for number in stated):
        raise Rejected(Reason.DAMAGED_FILE, "config.json: mlp_only_layers is no list of numbers. Export it again.")
    dense = set(stated)
    return tuple(number not in dense and (number + 1) % step == 0 for number in range(layers))


def _rope(found: architectures.Architecture, config: Mapping[str, Any]) -> str:
    """The rotary type of layers that see everything."""
    if not found.rotary:
        return "none"
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, Mapping):
        raise Rejected(Reason.DAMAGED_FILE, "config.json: rope_scaling is not an object. Export the model again.")
    local = "full_attention" in stated or "rope_local_base_freq" in config
    full = stated.get("full_attention", stated)
    if not isinstance(full, Mapping):
        raise Rejected(Reason.DAMAGED_FILE, "config.json: rope_parameters is not an object. Export the model again.")
    kind = str(full.get("rope_type") or full.get("type") or "default")[:40]
    served = architectures.LOCAL_ROPE_TYPES if local else architectures.ROPE_TYPES
    if kind not in served:
        raise Rejected(
            Reason.UNSUPPORTED_ROPE,
            f"The rotary embedding {kind!r} is not served, only {', '.join(sorted(served))}. Choose another model.",
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
