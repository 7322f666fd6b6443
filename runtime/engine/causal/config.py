"""The numbers of a decoder model, read from a transformers config. No torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runtime.engine import architectures, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape of a decoder. ``windows`` has one entry per layer: keys it may look back on, 0 for all.

    ``rms_eps`` is the epsilon of every norm. ``scale`` multiplies attention scores; ``score_cap`` and ``logit_cap``
    bound scores and logits by a tanh (0: no bound). ``rotary_dim`` values of a head are rotated, by ``rope``, or by
    ``local_rope`` in layers with a window where that is not empty. ``sparse`` has one entry per layer: whether its
    MLP is ``num_experts`` experts of ``expert_size`` instead. ``hf`` is the transformers config, kept for rotary
    frequencies that only transformers computes.
    """

    architecture: architectures.Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    max_positions: int
    tie_embeddings: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]
    activation: str
    scale: float
    score_cap: float
    logit_cap: float
    rotary_dim: int
    rope: Mapping[str, Any]
    local_rope: Mapping[str, Any]
    sparse: tuple[bool, ...]
    num_experts: int
    experts_per_token: int
    expert_size: int
    normalize_experts: bool
    hf: Any

    def kv_bytes_per_token(self, element_size: int, scale_bytes: int = 0) -> int:
        """Bytes of keys and values of one token over all layers; ``scale_bytes`` is what each head has beside them."""
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * element_size + scale_bytes)

    @property
    def plain(self) -> bool:
        """True for what the Llama family has in common: what the C kernels compute."""
        kind = self.architecture
        return (
            kind.norm == "rms"
            and kind.gated
            and kind.rotary
            and not kind.parallel
            and not kind.names.attention_after
            and not kind.scaled_embedding
            and not any(self.sparse)
            and not self.local_rope
            and not self.score_cap
            and not self.logit_cap
            and self.activation == "silu"
            and self.rotary_dim == self.head_dim
            and self.scale == self.head_dim**-0.5
        )


def read(hf: Any) -> DecoderConfig:
    """Return the shape that ``hf`` (a transformers config) describes.

    Raises:
        errors.StartError: the architecture or one of its variants is not served.
    """
    found = _architecture(hf)
    activation = str(getattr(hf, found.activation, None) or "silu")
    if activation not in architectures.ACTIVATIONS:
        raise errors.StartError(
            "UnsupportedActivation",
            f"Activation {activation!r} is not served, only {', '.join(sorted(architectures.ACTIVATIONS))}.",
        )
    _refuse_variants(hf)
    rope, local_rope = _ropes(hf) if found.rotary else ({}, {})
    heads = int(hf.num_attention_heads)
    hidden = int(hf.hidden_size)
    head_dim = int(getattr(hf, "head_dim", None) or hidden // heads)
    attention_bias = bool(getattr(hf, "attention_bias", False))
    scale = float(getattr(hf, "query_pre_attn_scalar", None) or head_dim) ** -0.5
    if not getattr(hf, "scale_attn_weights", True):
        scale = 1.0
    return DecoderConfig(
        architecture=found,
        vocab_size=int(hf.vocab_size),
        hidden_size=hidden,
        intermediate_size=int((hf.n_inner or 4 * hidden) if hasattr(hf, "n_inner") else hf.intermediate_size),
        num_layers=int(hf.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(hf, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        rms_eps=_epsilon(hf),
        max_positions=int(hf.max_position_embeddings),
        tie_embeddings=bool(getattr(hf, "tie_word_embeddings", False)),
        attention_bias=found.biases or found.qkv_bias or attention_bias,
        output_bias=found.biases or (attention_bias and not found.qkv_bias),
        mlp_bias=found.biases or bool(getattr(hf, "mlp_bias", False)),
        windows=_windows(hf),
        activation=activation,
        scale=scale,
        score_cap=float(getattr(hf, "attn_logit_softcapping", None) or 0.0),
        logit_cap=float(getattr(hf, "final_logit_softcapping", None) or 0.0),
        rotary_dim=int(head_dim * float(rope.get("partial_rotary_factor") or 1.0)) if found.rotary else 0,
        rope=rope,
        local_rope=local_rope,
        **_experts(hf, found),
        hf=hf,
    )


def _architecture(hf: Any) -> architectures.Architecture:
    names = list(getattr(hf, "architectures", None) or [])
    found = next((entry for name in names if (entry := architectures.by_name(name)) is not None), None)
    if found is None:
        supported = ", ".join(sorted(architectures.HUGGINGFACE_NAMES))
        raise errors.StartError(
            "UnsupportedArchitecture",
            f"The model says {', '.join(names) or 'no architecture'}; this engine serves {supported}.",
        )
    return found


def _refuse_variants(hf: Any) -> None:
    for switch in architectures.REFUSED_SWITCHES:
        if getattr(hf, switch, False):
            raise errors.StartError("UnsupportedModel", f"A model with {switch} is not served.")


def _epsilon(hf: Any) -> float:
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    return float(next(value for name in names if (value := getattr(hf, name, None)) is not None))


def _ropes(hf: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rotary parameters of layers that see everything, and of layers with a window where they differ."""
    stated = dict(getattr(hf, "rope_parameters", None) or {})
    local: dict[str, Any] = {}
    if "full_attention" in stated:
        stated, local = dict(stated["full_attention"]), dict(stated.get("sliding_attention") or {})
    for rope in (stated, local):
        kind = rope.get("rope_type", "default")
        # by layer kind, transformers computes more than this engine asks it for
        served = sorted(architectures.LOCAL_ROPE_TYPES if local else architectures.ROPE_TYPES)
        if kind not in served:
            raise errors.StartError(
                "UnsupportedRope", f"Rotary embedding {kind!r} is not served, only {', '.join(served)}."
            )
    return stated, local


def _experts(hf: Any, found: architectures.Architecture) -> dict[str, Any]:
    """The fields about experts. A sparse layer is one in ``decoder_sparse_step``, but for ``mlp_only_layers``."""
    layers = int(hf.num_hidden_layers)
    if not found.names.router:
        return {
            "sparse": (False,) * layers,
            "num_experts": 0,
            "experts_per_token": 0,
            "expert_size": 0,
            "normalize_experts": False,
        }
    step = int(getattr(hf, "decoder_sparse_step", None) or 1)
    dense = set(getattr(hf, "mlp_only_layers", None) or ())
    return {
        "sparse": tuple(number not in dense and (number + 1) % step == 0 for number in range(layers)),
        "num_experts": int(getattr(hf, "num_local_experts", None) or hf.num_experts),
        "experts_per_token": int(hf.num_experts_per_tok),
        "expert_size": int(getattr(hf, "moe_intermediate_size", None) or hf.intermediate_size),
        "normalize_experts": bool(getattr(hf, "norm_topk_prob", True)),
    }


def _windows(hf: Any) -> tuple[int, ...]:
    """Sliding window per layer; 0 where a layer sees everything."""
    layers = int(hf.num_hidden_layers)
    window = int(getattr(hf, "sliding_window", None) or 0)
    if not window or not getattr(hf, "use_sliding_window", True):
        return (0,) * layers
    kinds = list(getattr(hf, "layer_types", None) or ["sliding_attention"] * layers)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
