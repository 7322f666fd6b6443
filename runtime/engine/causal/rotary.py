"""Rotary position embedding: a table for all positions, and the rotation."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from runtime.engine.causal.config import DecoderConfig


class RotaryTable:
    """Frequencies of one model. Tables are made by :meth:`resize` for the positions that are really served."""

    def __init__(self, config: DecoderConfig, device: torch.device) -> None:
        rope: dict[str, Any] = dict(config.hf.rope_parameters)
        kind = rope.get("rope_type", "default")
        if kind == "default":
            exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
            self.frequencies: Tensor = 1.0 / (float(rope["rope_theta"]) ** exponents)
            self.scaling = 1.0
        else:
            self.frequencies, self.scaling = ROPE_INIT_FUNCTIONS[kind](config.hf, torch.device("cpu"))
        self._device = device
        self._cos = self._sin = torch.empty(0)

    def divide(self, factors: Tensor) -> None:
        """Divide each frequency by a factor: how GGUF files state Llama 3's scaling."""
        self.frequencies = self.frequencies / factors.float()

    def resize(self, positions: int) -> None:
        """Make the tables for positions ``0 .. positions - 1``: float32 [positions, head_dim] each."""
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), self.frequencies)
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        self._cos = torch.cat((cos, cos), dim=-1).to(self._device)
        self._sin = torch.cat((-sin, sin), dim=-1).to(self._device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tables."""
        return 2 * self._cos.numel() * self._cos.element_size()

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows of both tables for ``positions``: two [tokens, 1, head_dim]."""
        return self._cos[positions].to(dtype)[:, None], self._sin[positions].to(dtype)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [tokens, heads, head_dim]; the sign of the first half's sine is already in ``sin``."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return x * cos + swapped * sin
