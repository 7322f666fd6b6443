"""Rotary position embedding: a table for all positions, and the rotation."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runtime.engine import architectures
from runtime.engine.causal.config import DecoderConfig


class RotaryTable:
    """Frequencies of one model. Tables are made by :meth:`resize` for the positions that are really served.

    ``rope`` are the parameters where they are not the model's ordinary ones.
    """

    def __init__(self, config: DecoderConfig, device: torch.device, rope: Mapping[str, Any] | None = None) -> None:
        rope = config.rope if rope is None else rope
        kind = rope.get("rope_type", "default")
        self._width = config.rotary_dim
        if not config.architecture.rotary:
            self.frequencies, self.scaling = torch.empty(0), 1.0
        elif kind in architectures.LOCAL_ROPE_TYPES:
            exponents = torch.arange(0, self._width, 2, dtype=torch.float32) / self._width
            self.frequencies = 1.0 / (float(rope["rope_theta"]) ** exponents)
            if kind == "linear":
                self.frequencies /= float(rope["factor"])
            self.scaling = 1.0
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # seconds, and few models need it

            self.frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](config.hf, torch.device("cpu"))
        self._device = device
        self._cos = self._sin = torch.empty(0)

    def divide(self, factors: Tensor) -> None:
        """Divide each frequency by a factor: how GGUF files state Llama 3's scaling."""
        self.frequencies = self.frequencies / factors.float()

    def resize(self, positions: int) -> None:
        """Make the tables for positions ``0 .. positions - 1``: float32 [positions, rotary_dim] each."""
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), self.frequencies)
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        self._cos = torch.cat((cos, cos), dim=-1).to(self._device)
        self._sin = torch.cat((-sin, sin), dim=-1).to(self._device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tables."""
        return 2 * self._cos.numel() * self._cos.element_size()

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines: float32 [positions, rotary_dim] each, the first half of the sines negated."""
        return self._cos, self._sin

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows of both tables for ``positions``: two [tokens, 1, rotary_dim]."""
        return self._cos[positions].to(dtype)[:, None], self._sin[positions].to(dtype)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [tokens, heads, head_dim], or the first values of each head where the tables are narrower.

    The sign of the first half's sine is already in ``sin``.
    """
    width = cos.shape[-1]
    turned, still = x[..., :width], x[..., width:]
    half = width // 2
    swapped = torch.cat((turned[..., half:], turned[..., :half]), dim=-1)
    turned = turned * cos + swapped * sin
    return torch.cat((turned, still), dim=-1) if still.shape[-1] else turned
