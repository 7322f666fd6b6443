"""Which tensors a decoder must have, and in which shapes (pure). The architecture says what there is."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from catalog.architectures import Architecture
from catalog.formats.facts import Reason, Rejected, Tensor

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """The sizes that a config states. ``sparse`` has one entry per layer: whether its MLP is experts instead."""

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
    attention_bias: bool = False
    mlp_bias: bool = False
    sparse: tuple[bool, ...] = ()
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    capped_scores: bool = False

    def sizes(self) -> dict[str, Any]:
        """What ``Facts`` and ``Shape`` have of it, under their names."""
        return {
            "architecture": self.architecture.name,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": self.tied,
            "sparse_layers": sum(self.sparse),
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "expert_size": self.expert_size,
            "capped_scores": self.capped_scores,
        }

    def check(self, where: str) -> None:
        """Refuse sizes that contradict each other."""
        if self.heads % self.kv_heads:
            raise Rejected(
                Reason.DAMAGED_FILE,
                f"{where}: {self.heads} attention heads cannot share {self.kv_heads} key/value heads. Export it again.",
            )
        if self.experts_per_token > self.num_experts:
            raise Rejected(
                Reason.DAMAGED_FILE,
                f"{where}: a token cannot visit {self.experts_per_token} of {self.num_experts} experts. "
                "Export it again.",
            )


_GGUF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    """Names and shapes in a GGUF file, rows first."""
    yield "token_embd.weight", (decoder.vocab_size, decoder.hidden_size)
    yield "output_norm.weight", (decoder.hidden_size,)
    for layer in range(decoder.layers):
        for name, shape in _layer_tensors(decoder, layer):
            stem, ending = name.rsplit(".", 1)
            yield f"blk.{layer}.{_GGUF[stem]}.{ending}", shape
    if not decoder.tied:
        yield "output.weight", (decoder.vocab_size, decoder.hidden_size)


def huggingface_tensors(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    """Names and shapes in safetensors files."""
    kind, hidden = decoder.architecture, decoder.hidden_size
    names = kind.names
    yield f"{names.embedding}.weight", (decoder.vocab_size, hidden)
    if names.positions:
        yield f"{names.positions}.weight", (decoder.max_positions, hidden)
    yield from _norm(decoder, names.norm)
    for layer in range(decoder.layers):
        for name, shape in _layer_tensors(decoder, layer):
            yield f"{names.layer}.{layer}.{name}", shape
    if not decoder.tied:
        yield f"{names.head}.weight", (decoder.vocab_size, hidden)
    if kind.head_bias:
        yield f"{names.head}.bias", (decoder.vocab_size,)


def count_parameters(decoder: Decoder) -> int:
    """Weights of the whole model, without a walk over all layers and experts: alike layers are counted once."""
    alike = collections.Counter(decoder.sparse or (False,) * decoder.layers)
    total = _weights(huggingface_tensors(dataclasses.replace(decoder, layers=0)))
    for sparse, count in alike.items():
        layer = dataclasses.replace(decoder, sparse=(sparse,), num_experts=1)
        each = _weights(_layer_tensors(layer, 0))
        if sparse:
            more = _weights(_layer_tensors(dataclasses.replace(layer, num_experts=2), 0)) - each
            each += (decoder.num_experts - 1) * more
        total += count * each
    return total


def _weights(tensors: Iterator[tuple[str, Shape]]) -> int:
    return sum(math.prod(shape) for _name, shape in tensors)


def full_name(decoder: Decoder, name: str) -> str:
    """``name`` as :func:`huggingface_tensors` has it, where checkpoints may leave out its first part."""
    kind = decoder.architecture
    first = kind.names.layer.split(".")[0] + "."
    return first + name if kind.bare and not name.startswith((first, kind.names.head)) else name


def _layer_tensors(decoder: Decoder, layer: int) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of one layer, without its prefix."""
    kind, names = decoder.architecture, decoder.architecture.names
    hidden, q, kv = decoder.hidden_size, decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    for name in (names.input_norm, names.post_norm, names.attention_after, names.mlp_after):
        if name:
            yield from _norm(decoder, name)
    qkv_bias = kind.biases or kind.qkv_bias or decoder.attention_bias
    output_bias = kind.biases or (decoder.attention_bias and not kind.qkv_bias)
    yield from _products(decoder, names.qkv, [q, kv, kv], hidden, bias=qkv_bias)
    yield from _products(decoder, (names.output,), [hidden], q, bias=output_bias)
    if kind.qk_norm:
        yield f"{names.query_norm}.weight", (decoder.head_dim,)
        yield f"{names.key_norm}.weight", (decoder.head_dim,)
    if decoder.sparse and decoder.sparse[layer]:
        yield f"{names.router}.weight", (decoder.num_experts, hidden)
        for index in range(decoder.num_experts):
            prefix, inner = f"{names.expert}.{index}.", decoder.expert_size
            yield from _products(decoder, [prefix + name for name in names.expert_gate_up], [inner, inner], hidden)
            yield from _products(decoder, [prefix + names.expert_down], [hidden], inner)
        return
    inner, bias = decoder.intermediate_size, kind.biases or decoder.mlp_bias
    yield from _products(decoder, names.gate_up, [inner] * (2 if kind.gated else 1), hidden, bias=bias)
    yield from _products(decoder, (names.down,), [hidden], inner, bias=bias)


def _norm(decoder: Decoder, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (decoder.hidden_size,)
    if decoder.architecture.norm == "layer":
        yield f"{name}.bias", (decoder.hidden_size,)


def _products(
    decoder: Decoder, names: tuple[str, ...] | list[str], outputs: list[int], inputs: int, *, bias: bool = False
) -> Iterator[tuple[str, Shape]]:
    """Matrices that share an input: one by one, or all in the one that is named."""
    sizes = [sum(outputs)] if len(names) == 1 else outputs
    for name, size in zip(names, sizes, strict=True):
        yield f"{name}.weight", (inputs, size) if decoder.architecture.transposed else (size, inputs)
        if bias:
            yield f"{name}.bias", (size,)


def require(wanted: Iterator[tuple[str, Shape]], found: Mapping[str, Tensor], where: str) -> int:
    """Number of parameters of a model that has every tensor.

    Raises:
        Rejected: it lacks a tensor, or has one in a shape that the config does not say.
    """
    parameters = 0
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
        parameters += tensor.count
    return parameters
