"""One layer of a decoder: its weights while they are read, and its parts once they are ready to run."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from runtime.engine.causal.config import DecoderConfig
from runtime.engine.causal.linear import Backend, Linear
from runtime.engine.causal.mlp import ACTIVATIONS, Dense, Experts

New = Callable[..., Tensor]


@dataclasses.dataclass(slots=True)
class LayerWeights:
    """Fused weights of one layer while they are being loaded: projections that share an input are one matrix.

    Of experts, ``gate_up`` and ``down`` have one more dimension in front.
    """

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    input_norm_bias: Tensor | None = None
    post_norm: Tensor | None = None
    post_norm_bias: Tensor | None = None
    attention_after: Tensor | None = None
    mlp_after: Tensor | None = None
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    router: Tensor | None = None


@dataclasses.dataclass(slots=True)
class Layer:
    """One layer, ready to run. ``window`` is how many keys it may look back on, 0 for all."""

    input_norm: Tensor
    input_norm_bias: Tensor | None
    post_norm: Tensor | None
    post_norm_bias: Tensor | None
    attention_after: Tensor | None
    mlp_after: Tensor | None
    qkv: Linear
    output: Linear
    mlp: Dense | Experts
    query_norm: Tensor | None
    key_norm: Tensor | None
    window: int

    @property
    def dense(self) -> Dense:
        """Its MLP where it has no experts."""
        assert isinstance(self.mlp, Dense)
        return self.mlp

    @property
    def gate_up(self) -> Linear:
        """The first product of its MLP."""
        return self.dense.gate_up

    @property
    def down(self) -> Linear:
        """The second product of its MLP."""
        return self.dense.down

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrix products, in the order of their use; of experts those of as many as a row visits."""
        if isinstance(self.mlp, Dense):
            return self.qkv, self.output, self.gate_up, self.down
        visited = self.mlp.experts[: self.mlp.top_k]
        return self.qkv, self.output, *(part for expert in visited for part in (expert.gate_up, expert.down))

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights, exactly as held."""
        norms = (
            self.input_norm,
            self.input_norm_bias,
            self.post_norm,
            self.post_norm_bias,
            self.attention_after,
            self.mlp_after,
            self.query_norm,
            self.key_norm,
        )
        plain = sum(norm.numel() * norm.element_size() for norm in norms if norm is not None)
        return plain + self.qkv.num_bytes + self.output.num_bytes + self.mlp.num_bytes


def empty(config: DecoderConfig, number: int, new: New) -> LayerWeights:
    """Places for the weights of layer ``number``; ``new`` makes a tensor of a shape."""
    kind, names, hidden = config.architecture, config.architecture.names, config.hidden_size
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    ways = 2 if kind.gated else 1
    sparse, plain = config.sparse[number], kind.norm != "layer"
    each = (config.num_experts,) if sparse else ()
    inner = config.expert_size if sparse else config.intermediate_size

    def optional(wanted: bool | str, *shape: int) -> Tensor | None:
        return new(*shape) if wanted else None

    return LayerWeights(
        input_norm=new(hidden),
        input_norm_bias=optional(not plain, hidden),
        post_norm=optional(names.post_norm, hidden),
        post_norm_bias=optional(bool(names.post_norm) and not plain, hidden),
        attention_after=optional(names.attention_after, hidden),
        mlp_after=optional(names.mlp_after, hidden),
        qkv=new(qkv, hidden),
        output=new(hidden, config.num_heads * config.head_dim),
        gate_up=new(*each, ways * inner, hidden),
        down=new(*each, hidden, inner),
        qkv_bias=optional(config.attention_bias, qkv),
        output_bias=optional(config.output_bias, hidden),
        gate_up_bias=optional(config.mlp_bias, ways * inner),
        down_bias=optional(config.mlp_bias, hidden),
        query_norm=optional(kind.qk_norm, config.head_dim),
        key_norm=optional(kind.qk_norm, config.head_dim),
        router=optional(sparse, config.num_experts, hidden),
    )


def destinations(config: DecoderConfig, number: int, raw: LayerWeights) -> dict[str, Tensor]:
    """Where each tensor of layer ``number`` goes, by its Hugging Face name: views of ``raw``."""
    names = config.architecture.names
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found: dict[str, Tensor | None] = {
        f"{names.input_norm}.weight": raw.input_norm,
        f"{names.input_norm}.bias": raw.input_norm_bias,
        f"{names.post_norm}.weight": raw.post_norm,
        f"{names.post_norm}.bias": raw.post_norm_bias,
        f"{names.attention_after}.weight": raw.attention_after,
        f"{names.mlp_after}.weight": raw.mlp_after,
        f"{names.query_norm}.weight": raw.query_norm,
        f"{names.key_norm}.weight": raw.key_norm,
        f"{names.output}.bias": raw.output_bias,
        f"{names.router}.weight": raw.router,
    }
    matrices = {names.output: raw.output}
    matrices |= _stacked(names.qkv, raw.qkv, [heads, kv_heads, kv_heads])
    biases = _stacked(names.qkv, raw.qkv_bias, [heads, kv_heads, kv_heads])
    if config.sparse[number]:
        for index in range(config.num_experts):
            prefix = f"{names.expert}.{index}."
            stacked = tuple(prefix + name for name in names.expert_gate_up)
            matrices |= _stacked(stacked, raw.gate_up[index], [config.expert_size] * len(stacked))
            matrices[prefix + names.expert_down] = raw.down[index]
    else:
        sizes = [config.intermediate_size] * len(names.gate_up)
        matrices |= _stacked(names.gate_up, raw.gate_up, sizes) | {names.down: raw.down}
        biases |= _stacked(names.gate_up, raw.gate_up_bias, sizes)
        found[f"{names.down}.bias"] = raw.down_bias
    found |= {f"{name}.bias": tensor for name, tensor in biases.items()}
    for name, tensor in matrices.items():
        found[f"{name}.weight"] = tensor.t() if config.architecture.transposed else tensor
    return {f"{names.layer}.{number}.{name}": tensor for name, tensor in found.items() if tensor is not None}


def _stacked(names: tuple[str, ...], fused: Tensor | None, sizes: list[int]) -> dict[str, Tensor]:
    """The parts of ``fused`` by name: one name has it all."""
    if fused is None:
        return {}
    parts = [fused] if len(names) == 1 else list(torch.split(fused, sizes))
    return dict(zip(names, parts, strict=True))


def ready(config: DecoderConfig, number: int, raw: LayerWeights, backend: Backend) -> Layer:
    """Bring loaded weights into the shape they are computed in."""
    return Layer(
        input_norm=backend.plain(raw.input_norm),
        input_norm_bias=backend.optional(raw.input_norm_bias),
        post_norm=backend.optional(raw.post_norm),
        post_norm_bias=backend.optional(raw.post_norm_bias),
        attention_after=backend.optional(raw.attention_after),
        mlp_after=backend.optional(raw.mlp_after),
        qkv=backend.linear(raw.qkv, raw.qkv_bias),
        output=backend.linear(raw.output, raw.output_bias),
        mlp=_mlp(config, number, raw, backend),
        query_norm=backend.optional(raw.query_norm),
        key_norm=backend.optional(raw.key_norm),
        window=config.windows[number],
    )


def _mlp(config: DecoderConfig, number: int, raw: LayerWeights, backend: Backend) -> Dense | Experts:
    activation, gated = ACTIVATIONS[config.activation], config.architecture.gated
    if not config.sparse[number]:
        first = backend.gated if config.plain else backend.linear
        down = backend.linear(raw.down, raw.down_bias)
        return Dense(first(raw.gate_up, raw.gate_up_bias), down, activation, gated=gated)
    assert raw.router is not None
    experts = [
        Dense(backend.linear(gate_up), backend.linear(down), activation, gated=gated)
        for gate_up, down in zip(raw.gate_up, raw.down, strict=True)
    ]
    return Experts(
        backend.exact(raw.router), experts, top_k=config.experts_per_token, normalize=config.normalize_experts
    )
