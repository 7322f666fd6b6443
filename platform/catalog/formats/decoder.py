"""Which tensors a decoder of the Llama family must have, and in which shapes (pure)."""

import dataclasses
from collections.abc import Iterator, Mapping

from catalog.architectures import Architecture
from catalog.formats.facts import Reason, Rejected, Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """The sizes that a config states."""

    architecture: Architecture
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    tied: bool
    max_positions: int
    rope: str

    def check(self, where: str) -> None:
        """Refuse sizes that contradict each other."""
        if self.heads % self.kv_heads:
            raise Rejected(
                Reason.DAMAGED_FILE,
                f"{where}: {self.heads} attention heads cannot share {self.kv_heads} key/value heads. Export it again.",
            )


def _layer_shapes(decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    q, kv = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    yield "attn_norm.weight", (hidden,)
    yield "ffn_norm.weight", (hidden,)
    yield "attn_q.weight", (q, hidden)
    yield "attn_k.weight", (kv, hidden)
    yield "attn_v.weight", (kv, hidden)
    yield "attn_output.weight", (hidden, q)
    yield "ffn_gate.weight", (inner, hidden)
    yield "ffn_up.weight", (inner, hidden)
    yield "ffn_down.weight", (hidden, inner)
    if decoder.architecture.qkv_bias:
        yield "attn_q.bias", (q,)
        yield "attn_k.bias", (kv,)
        yield "attn_v.bias", (kv,)
    if decoder.architecture.qk_norm:
        yield "attn_q_norm.weight", (decoder.head_dim,)
        yield "attn_k_norm.weight", (decoder.head_dim,)


_HUGGINGFACE = {
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


def gguf_tensors(decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in a GGUF file, rows first."""
    yield "token_embd.weight", (decoder.vocab_size, decoder.hidden_size)
    yield "output_norm.weight", (decoder.hidden_size,)
    for layer in range(decoder.layers):
        for name, shape in _layer_shapes(decoder):
            yield f"blk.{layer}.{name}", shape
    if not decoder.tied:
        yield "output.weight", (decoder.vocab_size, decoder.hidden_size)


def huggingface_tensors(decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in safetensors files."""
    yield "model.embed_tokens.weight", (decoder.vocab_size, decoder.hidden_size)
    yield "model.norm.weight", (decoder.hidden_size,)
    for layer in range(decoder.layers):
        for name, shape in _layer_shapes(decoder):
            stem, ending = name.rsplit(".", 1)
            yield f"model.layers.{layer}.{_HUGGINGFACE[stem]}.{ending}", shape
    if not decoder.tied:
        yield "lm_head.weight", (decoder.vocab_size, decoder.hidden_size)


def require(wanted: Iterator[tuple[str, tuple[int, ...]]], found: Mapping[str, Tensor], where: str) -> None:
    """Refuse a model that lacks a tensor, or has one in a shape that the config does not say."""
    for name, shape in wanted:
        tensor = found.get(name)
        if tensor is None:
            raise Rejected(
                Reason.MISSING_TENSOR,
                f"The weights have no tensor {name!r}, which {where} calls for. Export the whole model again.",
            )
        if tensor.shape != shape:
            raise Rejected(
                Reason.SHAPE_MISMATCH,
                f"Tensor {name!r} has the shape {list(tensor.shape)}, but {where} calls for {list(shape)}. "
                "Upload config and weights of the same model.",
            )
