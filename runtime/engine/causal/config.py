"""The numbers of a decoder model, read from a transformers config. No torch."""

import dataclasses
from typing import Any

from runtime.engine import architectures, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape of a Llama-family decoder. ``windows`` has one entry per layer: keys it may look back on, 0 for all.

    ``hf`` is the transformers config, kept for the rotary frequencies.
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
    hf: Any

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that keys and values of one token take over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size


def read(hf: Any) -> DecoderConfig:
    """Return the shape that ``hf`` (a transformers config) describes.

    Raises:
        errors.StartError: the architecture or one of its variants is not served.
    """
    names = list(getattr(hf, "architectures", None) or [])
    found = next((entry for name in names if (entry := architectures.by_name(name)) is not None), None)
    if found is None:
        supported = ", ".join(sorted(architectures.HUGGINGFACE_NAMES))
        raise errors.StartError(
            "UnsupportedArchitecture",
            f"The model says {', '.join(names) or 'no architecture'}; this engine serves {supported}.",
        )
    if getattr(hf, "hidden_act", "silu") != "silu":
        raise errors.StartError("UnsupportedActivation", f"Activation {hf.hidden_act!r} is not served, only 'silu'.")
    rope = dict(getattr(hf, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") not in architectures.ROPE_TYPES:
        raise errors.StartError(
            "UnsupportedRope",
            f"Rotary embedding {rope.get('rope_type')!r} is not served, only {sorted(architectures.ROPE_TYPES)}.",
        )
    heads = int(hf.num_attention_heads)
    head_dim = int(getattr(hf, "head_dim", None) or hf.hidden_size // heads)
    attention_bias = bool(getattr(hf, "attention_bias", False))
    return DecoderConfig(
        architecture=found,
        vocab_size=int(hf.vocab_size),
        hidden_size=int(hf.hidden_size),
        intermediate_size=int(hf.intermediate_size),
        num_layers=int(hf.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(hf, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        rms_eps=float(hf.rms_norm_eps),
        max_positions=int(hf.max_position_embeddings),
        tie_embeddings=bool(getattr(hf, "tie_word_embeddings", False)),
        attention_bias=found.qkv_bias or attention_bias,
        output_bias=attention_bias and not found.qkv_bias,
        mlp_bias=bool(getattr(hf, "mlp_bias", False)),
        windows=_windows(hf),
        hf=hf,
    )


def _windows(hf: Any) -> tuple[int, ...]:
    """Sliding window per layer; 0 where a layer sees everything."""
    layers = int(hf.num_hidden_layers)
    window = int(getattr(hf, "sliding_window", None) or 0)
    if not window or not getattr(hf, "use_sliding_window", True):
        return (0,) * layers
    kinds = list(getattr(hf, "layer_types", None) or ["sliding_attention"] * layers)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
