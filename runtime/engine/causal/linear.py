"""Matrix products of the model. On CPUs in float32 the weight is kept in oneDNN's own layout, which saves a third."""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

_PACK_HINT_ROWS: Final = 32


class Linear:
    """``y = x @ weight.T + bias`` for ``x`` of shape [tokens, in]; ``weight`` is [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed = _pack(weight)
        self._weight = None if self._packed is not None else weight
        self.num_bytes = weight.numel() * weight.element_size()
        if bias is not None:
            self.num_bytes += bias.numel() * bias.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return result
        assert self._weight is not None
        return functional.linear(x, self._weight, self._bias)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _pack(weight: Tensor) -> Tensor | None:
    """Reorder ``weight`` for oneDNN, or ``None`` where that does not apply."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not _has_onednn():
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_HINT_ROWS)
    return packed
