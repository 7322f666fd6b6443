"""A GGUF file as a model: names, shapes and tokenizer turned into what the rest of the engine knows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import processors

from runtime.engine import architectures, errors
from runtime.engine.causal import config as decoder_config
from runtime.engine.formats import remembered
from runtime.engine.formats.gguf_file import DamagedFile, GgufFile, GgufTensor
from runtime.engine.formats.source import ModelSource, TensorPiece
from runtime.engine.tokenizer import TextTokenizer

_GLOBAL_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LARGEST_NUMBER: Final = 1 << 32
# Types of 4-bit blocks, and how many weights of each share scale and offset.
_FOUR_BITS: Final = ("Q4_0", "Q4_1", "Q4_K")
_FOUR_BIT_BLOCK: Final = 32
_ROPE_FACTORS: Final = "rope_freqs.weight"
_SPECIAL: Final = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_TOKENIZER_FIELDS: Final = {
    "tokenizer_type": "model",
    "pre_tokenizer_type": "pre",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "add_prefix_space": "add_space_prefix",
}


def open_gguf(path: Path) -> ModelSource:
    """Open the GGUF file at ``path``.

    Raises:
        errors.StartError: damaged, incomplete, or of an architecture that is not served.
    """
    opened = GgufFile(path)
    name = str(opened.fields.get("general.architecture", ""))
    found = architectures.by_gguf(name)
    if found is None:
        supported = ", ".join(sorted(architectures.GGUF_NAMES))
        raise errors.StartError(
            "UnsupportedArchitecture", f"The GGUF file says {name!r}; this engine serves {supported}."
        )
    digest = remembered.digest("gguf", [("header", opened.header)])
    known = remembered.recall(digest)
    if known is None:
        known = remembered.Known(
            config=decoder_config.read(_hf_config(opened, name, found)),
            tokenizer=_tokenizer(opened, name),
            chat_template=_chat_template(opened),
            eos_ids=_eos_ids(opened),
        )
        remembered.remember(digest, known)
    config = known.config
    factors = opened.tensors.get(_ROPE_FACTORS)
    return ModelSource(
        config=config,
        tokenizer=known.tokenizer,
        chat_template=known.chat_template,
        eos_ids=known.eos_ids,
        total_bytes=sum(tensor.num_bytes for tensor in opened.tensors.values()),
        pieces=lambda: _pieces(opened, config),
        int4_group=_int4_group(opened),
        rope_factors=torch.from_numpy(opened.read(factors).copy()) if factors else None,
    )


def _int4_group(opened: GgufFile) -> int:
    """The blocks of a file most of which is in 4-bit blocks: counted in the same ones nothing is lost once more."""
    total = sum(tensor.num_bytes for tensor in opened.tensors.values())
    fours = sum(tensor.num_bytes for tensor in opened.tensors.values() if tensor.kind.name in _FOUR_BITS)
    return _FOUR_BIT_BLOCK if 2 * fours > total else ModelSource.int4_group


def _hf_config(opened: GgufFile, prefix: str, found: architectures.Architecture) -> Any:
    """The transformers config that the metadata states."""
    import transformers  # seconds: only where what it says is not remembered

    def number(key: str, default: float | None = None) -> Any:
        value = opened.fields.get(f"{prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LARGEST_NUMBER:
            raise DamagedFile(f"metadata {prefix}.{key} is missing or no sensible number")
        return value

    if opened.fields.get(f"{prefix}.rope.scaling.type", "none") not in ("none", ""):
        raise errors.StartError("UnsupportedRope", "Rotary scaling by metadata is not served for GGUF files.")
    embedding = opened.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise DamagedFile("it has no token embedding")
    heads = number("attention.head_count")
    hidden = number("embedding_length")
    return transformers.AutoConfig.for_model(
        found.model_type,
        architectures=[found.name],
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=number("attention.head_count_kv", heads),
        head_dim=number("attention.key_length", hidden // max(1, heads)),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=number("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": float(number("rope.freq_base", 10000.0))},
        tie_word_embeddings="output.weight" not in opened.tensors,
        eos_token_id=opened.fields.get(_SPECIAL["eos_token"]),
        sliding_window=None,
    )


def _eos_ids(opened: GgufFile) -> frozenset[int]:
    keys = (_SPECIAL["eos_token"], "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return frozenset(value for key in keys if isinstance(value := opened.fields.get(key), int))


def _chat_template(opened: GgufFile) -> str | None:
    template = opened.fields.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _tokenizer(opened: GgufFile, architecture: str) -> TextTokenizer:
    """Build the tokenizer as transformers does; only the reading of the file is ours, as theirs takes seconds."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    stated = {
        name: opened.fields[f"tokenizer.ggml.{key}"]
        for name, key in _TOKENIZER_FIELDS.items()
        if f"tokenizer.ggml.{key}" in opened.fields
    }
    tokens = stated.get("tokens")
    if not isinstance(tokens, list):
        raise errors.StartError("MissingTokenizer", "The GGUF file carries no tokenizer.")
    backend, _ = convert_gguf_tokenizer(architecture, stated)
    specials = {
        name: tokens[index]
        for name, key in _SPECIAL.items()
        if isinstance(index := opened.fields.get(key), int) and 0 <= index < len(tokens)
    }
    # llama.cpp adds the first token to a sentencepiece vocabulary that does not say otherwise
    add_bos = opened.fields.get("tokenizer.ggml.add_bos_token", stated.get("tokenizer_type") == "llama")
    if add_bos and "bos_token" in specials:
        bos = specials["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 $B:1", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return TextTokenizer(backend, specials)


def _pieces(opened: GgufFile, config: decoder_config.DecoderConfig) -> Iterator[TensorPiece]:
    """All weights, one layer after another whatever the file's order: a layer that is whole is packed at once, and
    no more than a few are ever held as floats."""
    for tensor in sorted(opened.tensors.values(), key=lambda one: _layer_of(one.name)):
        if tensor.name != _ROPE_FACTORS:
            yield from _pieces_of(opened, tensor, _rotary_heads(tensor.name, config))
            opened.forget(tensor)


def _pieces_of(opened: GgufFile, tensor: GgufTensor, heads: int) -> Iterator[TensorPiece]:
    name = _hf_name(tensor.name)
    vector = len(tensor.shape) == 1
    if heads and tensor.shape[0] % (2 * heads):
        raise DamagedFile(f"tensor {tensor.name!r} of {tensor.shape[0]} rows has not {heads} heads of two halves")
    head_rows = tensor.shape[0] // heads if heads else 1
    for first, count in [(0, tensor.shape[0])] if vector else opened.pieces(tensor, head_rows):
        values = opened.read(tensor) if vector else opened.read(tensor, first, count)
        if heads:
            values = np.ascontiguousarray(_unpermute(values, count // head_rows))
        yield TensorPiece(name, first, torch.from_numpy(values), tensor.num_bytes if vector else _share(tensor, count))


def _layer_of(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 for what belongs to none."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" and len(parts) > 1 and parts[1].isdecimal() else -1


def _share(tensor: GgufTensor, rows: int) -> int:
    return tensor.num_bytes * rows // tensor.shape[0]


def _hf_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name  # the loader says what it does not know


def _rotary_heads(name: str, config: decoder_config.DecoderConfig) -> int:
    """Heads whose rows the converter interleaved in this tensor; 0 for every other tensor."""
    if not config.architecture.permuted:
        return 0
    if ".attn_q." in name:
        return config.num_heads
    return config.num_kv_heads if ".attn_k." in name else 0


def _unpermute(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of a query or key matrix back into the order that halves rotate against each other."""
    half = values.shape[0] // heads // 2
    parts = values.reshape(heads, half, 2, *values.shape[1:])
    restored: NDArray[np.float32] = parts.swapaxes(1, 2).reshape(values.shape)
    return restored
