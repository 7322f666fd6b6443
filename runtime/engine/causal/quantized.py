"""Weights held in fewer bits, computed with torch: 8-bit integers, 4-bit integers in groups, 8-bit floats.

All of them keep the scales beside the values and count both. Where torch has a fast product that reads the packed form
in place it is used (CPU, 16-bit numbers); elsewhere the weight is brought back into the type of the input for the
product alone: on a CPU a part at a time, which then is still in the processor's cache. Packing goes part by part, too,
so that it takes little beside the weight.
"""

from collections.abc import Callable
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
# Weights of one output that share scale and offset; the second where the first does not divide a row, or where the
# model comes in 4-bit blocks of that size: then nothing is lost once more.
INT4_GROUPS: Final = (64, 32)
INT4_OUTPUTS: Final = 16  # the packed product takes outputs in multiples of this
_INT4_LEVELS: Final = 15
_INT4_MIDDLE: Final = 8
FP8_MULTIPLE: Final = 16
_FP8: Final = torch.float8_e4m3fn
_FP8_MOST: Final = float(torch.finfo(_FP8).max)


# Weights packed at a time, and on a CPU brought back at a time.
_PART: Final = 1 << 20


def size_of(*tensors: Tensor | None) -> int:
    """Bytes of ``tensors`` together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of -127..127 and a float32 scale per row [..., 1], which is not finite where the row is not."""
    values = x.float()
    most = values.abs().amax(dim=-1, keepdim=True)
    factor = torch.where(most > 0, _INT8_MOST / most, 0.0)
    return torch.nan_to_num(values * factor).round_().to(torch.int8), most / _INT8_MOST


def _by_rows(weight: Tensor, pack: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What ``pack`` makes of the rows of ``weight``, a part at a time."""
    step = max(1, _PART // max(1, weight.shape[1]))
    parts = [pack(weight[first : first + step]) for first in range(0, weight.shape[0], step)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


class Int8Linear:
    """8-bit weights with one scale per output; inputs with one scale per row and group of values, as the kernels do."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        values, self._scale = _by_rows(weight, quantize_rows)
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
        self._weight, scale = _by_rows(weight, quantize_rows)
        self._scale = scale[:, 0].to(weight.dtype)
        self._bias = bias
        self.num_bytes = size_of(self._weight, self._scale, bias)

    def __call__(self, x: Tensor) -> Tensor:
        if _packed_product(x):
            result = torch._weight_int8pack_mm(x.contiguous(), self._weight, self._scale)
        else:
            result = _in_parts(x, self._weight.shape, self._whole)
        return result if self._bias is None else result + self._bias

    def _whole(self, first: int, end: int) -> Tensor:
        return self._weight[first:end].to(self._scale.dtype) * self._scale[first:end, None]

    def rows(self, index: Tensor) -> Tensor:
        """Rows ``index`` of the weight, in the type it came in."""
        return functional.embedding(index, self._weight).to(self._scale.dtype) * self._scale[index][:, None]


def _packed_product(x: Tensor) -> bool:
    """True where torch multiplies packed weights fast: for float32 its form of that is a plain loop."""
    return x.device.type == "cpu" and x.dtype != torch.float32


def _in_parts(x: Tensor, shape: torch.Size | tuple[int, int], whole: Callable[[int, int], Tensor]) -> Tensor:
    """``x`` times weights of ``shape`` [out, in], whose rows ``whole`` brings back."""
    outputs, inputs = shape
    step = max(1, _PART // inputs) if x.device.type == "cpu" else outputs
    parts = [functional.linear(x, whole(first, min(outputs, first + step))) for first in range(0, outputs, step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def int4_group(outputs: int, inputs: int, most: int = INT4_GROUPS[0]) -> int:
    """Weights per group, at most ``most``, for a matrix of that shape; 0 where 4 bits do not fit it (8 are taken)."""
    if outputs % INT4_OUTPUTS:
        return 0
    return next((group for group in INT4_GROUPS if group <= most and inputs % group == 0), 0)


class Int4WeightOnly:
    """4-bit weights with scale and offset per group of one output's weights, in the type of the model.

    Two ways to count a group are tried, and the nearer one is taken: between its ends, and around zero with its
    largest value at one end. What came in 4-bit blocks (GGUF's Q4_1, Q4_0) was counted in one of them, and is found
    again as it was.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, most_group: int = INT4_GROUPS[0]) -> None:
        outputs, inputs = weight.shape
        self._group = int4_group(outputs, inputs, most_group)
        self._shape = (outputs, inputs)
        scale, middle, values = _by_rows(weight, self._nearest)
        values = values.reshape(outputs, inputs)
        self._factors = torch.cat((scale, middle), dim=-1).transpose(0, 1).contiguous()  # [groups, outputs, 2]
        self._direct = _packed_product(weight)
        self._weight: Tensor
        if self._direct:
            self._weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.to(torch.int32), 1)
        else:
            self._weight = values[:, 0::2] | values[:, 1::2] << 4
        self._bias = bias
        self.num_bytes = size_of(self._weight, self._factors, bias)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor
        if self._direct:
            result = torch.ops.aten._weight_int4pack_mm_for_cpu(
                x.contiguous(), self._weight, self._group, self._factors
            )
        else:
            result = _in_parts(x, self._shape, self._whole)
        return result if self._bias is None else result + self._bias

    def _nearest(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Scale, offset and values (uint8) of each group of some rows."""
        grouped = weight.float().reshape(weight.shape[0], -1, self._group)
        ends, around = _between_ends(grouped, weight.dtype), _around_zero(grouped, weight.dtype)
        nearer = _distance(grouped, *around) < _distance(grouped, *ends)
        scale, middle, values = (torch.where(nearer, *pair) for pair in zip(around, ends, strict=True))
        return scale, middle, values.to(torch.uint8)

    def _whole(self, first: int, end: int) -> Tensor:
        packed = self._weight[first:end]
        values = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(end - first, -1, self._group)
        scale, middle = self._factors[:, first:end].transpose(0, 1).unbind(-1)
        whole = (values.to(scale.dtype) - _INT4_MIDDLE) * scale[..., None] + middle[..., None]
        return whole.reshape(end - first, -1)


def _between_ends(grouped: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Scale, offset and values 0..15 of each group: its least and its largest weight are met."""
    least, most = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    # scale and offset are rounded to the type they are held in before the weights are counted in them
    scale = ((most - least).clamp_min(torch.finfo(torch.float32).tiny) / _INT4_LEVELS).to(dtype)
    middle = (least + scale.float() * _INT4_MIDDLE).to(dtype)
    return scale, middle, _counted(grouped, scale, middle)


def _around_zero(grouped: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The same with zero in the middle, where the weight farthest from it is met."""
    farthest = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    scale = torch.where(farthest == 0, torch.finfo(torch.float32).tiny, -farthest / _INT4_MIDDLE).to(dtype)
    middle = torch.zeros_like(scale)
    return scale, middle, _counted(grouped, scale, middle)


def _counted(grouped: Tensor, scale: Tensor, middle: Tensor) -> Tensor:
    steps = (grouped - middle.float()) / scale.float() + _INT4_MIDDLE
    return steps.nan_to_num().round_().clamp_(0, _INT4_LEVELS)


def _distance(grouped: Tensor, scale: Tensor, middle: Tensor, values: Tensor) -> Tensor:
    """Squares of what each group loses, [.., 1]."""
    back = (values - _INT4_MIDDLE) * scale.float() + middle.float()
    return (back - grouped).square_().sum(-1, keepdim=True)


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
