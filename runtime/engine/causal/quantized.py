"""Weights held in fewer bits, computed with torch: 8-bit integers, 4-bit integers in groups, 8-bit floats.

All of them keep the scales beside the values and count both. Where torch has a product that reads the packed form in
place it is used (CPU); elsewhere the weight is brought back into the type of the input for the product alone.
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

# CUDA's integer product wants more rows than this.
_INT_MM_ROWS: Final = 17
_INT_MM_MULTIPLE: Final = 8
# Inputs that share a scale: GROUP of kernels.h.
_INT8_GROUP: Final = 192
_INT8_MOST: Final = 127.0
# Weights of one output that share scale and offset; the second where the first does not divide a row.
INT4_GROUPS: Final = (64, 32)
INT4_OUTPUTS: Final = 16  # the packed product takes outputs in multiples of this
_INT4_LEVELS: Final = 15
_INT4_MIDDLE: Final = 8
FP8_MULTIPLE: Final = 16
_FP8: Final = torch.float8_e4m3fn
_FP8_MOST: Final = float(torch.finfo(_FP8).max)


def size_of(*tensors: Tensor | None) -> int:
    """Bytes of ``tensors`` together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of -127..127 and a float32 scale per row [..., 1], which is not finite where the row is not."""
    values = x.float()
    most = values.abs().amax(dim=-1, keepdim=True)
    factor = torch.where(most > 0, _INT8_MOST / most, 0.0)
    return torch.nan_to_num(values * factor).round_().to(torch.int8), most / _INT8_MOST


class Int8Linear:
    """8-bit weights with one scale per output; inputs with one scale per row and group of values, as the kernels do."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        values, self._scale = quantize_rows(weight)
        self._outputs, self._inputs = values.shape
        self._weight = functional.pad(
            values, (0, -self._inputs % _INT_MM_MULTIPLE, 0, -self._outputs % _INT_MM_MULTIPLE)
        )
        self._bias, self._dtype = bias, weight.dtype
        self.num_bytes = size_of(self._weight, self._scale, bias)

    def __call__(self, x: Tensor) -> Tensor:
        lacking = max(0, _INT_MM_ROWS - x.shape[0]) if x.device.type == "cuda" else 0
        total = x.new_zeros((x.shape[0], self._outputs), dtype=torch.float32)
        for first in range(0, self._inputs, _INT8_GROUP):
            values, scale = quantize_rows(x[:, first : first + _INT8_GROUP])
            values = functional.pad(values, (0, -values.shape[1] % _INT_MM_MULTIPLE, 0, lacking))
            part = self._weight[:, first : first + values.shape[1]]
            total += torch._int_mm(values, part.t())[: x.shape[0], : self._outputs].float() * scale
        result = (total * self._scale.t()).to(x.dtype)
        return result if self._bias is None else result + self._bias

    def rows(self, index: Tensor) -> Tensor:
        """Rows ``index`` of the weight, in the type it came in."""
        found = functional.embedding(index, self._weight)[:, : self._inputs]
        return (found.float() * self._scale[index]).to(self._dtype)


class Int8WeightOnly:
    """8-bit weights with one scale per output in the type of the model; inputs stay as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, scale = quantize_rows(weight)
        self._scale = scale[:, 0].to(weight.dtype)
        self._bias = bias
        self.num_bytes = size_of(self._weight, self._scale, bias)

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            result = torch._weight_int8pack_mm(x.contiguous(), self._weight, self._scale)
        else:
            result = functional.linear(x, self._weight.to(x.dtype)) * self._scale
        return result if self._bias is None else result + self._bias

    def rows(self, index: Tensor) -> Tensor:
        """Rows ``index`` of the weight, in the type it came in."""
        return functional.embedding(index, self._weight).to(self._scale.dtype) * self._scale[index][:, None]


def int4_group(outputs: int, inputs: int) -> int:
    """Weights per group for a matrix of that shape, or 0 where 4 bits do not fit its shape (it is held in 8 then)."""
    if outputs % INT4_OUTPUTS:
        return 0
    return next((group for group in INT4_GROUPS if inputs % group == 0), 0)


class Int4WeightOnly:
    """4-bit weights with scale and offset per group of one output's weights, in the type of the model."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        outputs, inputs = weight.shape
        self._group = int4_group(outputs, inputs)
        self._shape = (outputs, inputs)
        grouped = weight.float().reshape(outputs, -1, self._group)
        least, most = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        # scale and offset are rounded to the type they are held in before the weights are counted in them
        scale = ((most - least).clamp_min(torch.finfo(torch.float32).tiny) / _INT4_LEVELS).to(weight.dtype)
        middle = (least + scale.float() * _INT4_MIDDLE).to(weight.dtype)
        steps = (grouped - middle.float()) / scale.float() + _INT4_MIDDLE
        values = steps.nan_to_num().round_().clamp_(0, _INT4_LEVELS).reshape(outputs, inputs).to(torch.int32)
        self._factors = torch.cat((scale, middle), dim=-1).transpose(0, 1).contiguous()  # [groups, outputs, 2]
        self._direct = weight.device.type == "cpu"
        self._weight: Tensor
        if self._direct:
            self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
        else:
            self._weight = (values[:, 0::2] | values[:, 1::2] << 4).to(torch.uint8)
        self._bias = bias
        self.num_bytes = size_of(self._weight, self._factors, bias)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor
        if self._direct:
            result = torch.ops.aten._weight_int4pack_mm_for_cpu(
                x.contiguous(), self._weight, self._group, self._factors
            )
        else:
            result = functional.linear(x, self._unpacked(x.dtype))
        return result if self._bias is None else result + self._bias

    def _unpacked(self, dtype: torch.dtype) -> Tensor:
        values = torch.stack((self._weight & 15, self._weight >> 4), dim=-1).reshape(self._shape[0], -1, self._group)
        scale, middle = self._factors.transpose(0, 1).unbind(-1)
        whole = (values.to(dtype) - _INT4_MIDDLE) * scale[..., None] + middle[..., None]
        return whole.reshape(self._shape).to(dtype)


class Fp8Linear:
    """8-bit float weights with one scale per output; inputs with one scale per row. Devices that multiply them only."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._scale = _to_fp8(weight)
        self._bias = bias
        self.num_bytes = size_of(self._weight, self._scale, bias)

    def __call__(self, x: Tensor) -> Tensor:
        values, scale = _to_fp8(x)
        result = torch._scaled_mm(
            values, self._weight.t(), scale_a=scale, scale_b=self._scale.t(), out_dtype=torch.bfloat16
        ).to(x.dtype)
        return result if self._bias is None else result + self._bias


def _to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values of 8 bits and a float32 scale per row [rows, 1]; a row that is not finite keeps that in its scale."""
    values = x.float()
    scale = values.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _FP8_MOST
    return torch.nan_to_num(values / scale).clamp_(-_FP8_MOST, _FP8_MOST).to(_FP8), scale
