"""Matrix products of the model, and the ways to compute them. Which one a weight gets is decided here and only here.

| class | where | what |
|---|---|---|
| NativeLinear | CPU, float32, kernels compiled | packed panels, float32 or int8 |
| PackedLinear | CPU, float32, no kernels | oneDNN's own layout, which saves a third against plain weights |
| PlainLinear | every other full weight, routers | torch.nn.functional.linear |
| Int8Linear | int8 without kernels | torch._int_mm, with the same scales as the kernels |
| Int8WeightOnly | int8_weight_only; in int4_weight_only and fp8 embeddings, heads and odd shapes | scaled integers |
| Int4WeightOnly | int4_weight_only | groups with scale and offset |
| Fp8Linear | fp8, devices that have it | torch._scaled_mm |
"""

import ctypes
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal.quantized import (
    FP8_MULTIPLE,
    INT4_GROUPS,
    Fp8Linear,
    Int4WeightOnly,
    Int8Linear,
    Int8WeightOnly,
    int4_group,
    size_of,
)
from runtime.engine.kernels import library

_PACK_HINT_ROWS: Final = 32
_KERNEL_QUANTIZATIONS: Final = ("none", "int8")


class Linear(Protocol):
    """``y = x @ weight.T + bias`` for ``x`` of shape [tokens, in]; the weight was [out, in]."""

    num_bytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it."""


class Embedding(Linear, Protocol):
    """A matrix that is looked up, too."""

    def rows(self, index: Tensor) -> Tensor:
        """Rows ``index`` of the weight: how a tied head serves as embedding."""


class Backend:
    """Makes the parts of one model. ``kernels`` is ``None`` where all of them are computed with torch.

    Weights come on ``staging``, which is the host where they are not held as they come: then a device never has room
    for more than what it keeps.
    """

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str = "none",
        int4_group: int = INT4_GROUPS[0],
    ) -> None:
        self._quantization = quantization
        self._int4_group = int4_group
        self._device = device
        self.staging = torch.device("cpu") if quantization != "none" and device.type == "cuda" else device
        in_kernels = device.type == "cpu" and dtype == torch.float32 and quantization in _KERNEL_QUANTIZATIONS
        self.kernels = library.load() if in_kernels else None
        self._onednn = device.type == "cpu" and dtype == torch.float32 and _has_onednn()
        self._arena = library.Arena()

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Take ``weight`` [out, in] and ``bias`` [out]; the caller drops its own."""
        if self.kernels is not None:
            return NativeLinear(self.kernels, self._arena, weight, bias, int8=self._quantization == "int8")
        weight, bias = self.plain(weight), self.optional(bias)
        outputs, inputs = weight.shape
        if self._quantization == "int4_weight_only" and int4_group(outputs, inputs, self._int4_group):
            return Int4WeightOnly(weight, bias, self._int4_group)
        if self._quantization == "fp8" and not any(side % FP8_MULTIPLE for side in weight.shape):
            return Fp8Linear(weight, bias)
        if self._quantization != "none":
            return Int8Linear(weight, bias) if self._quantization == "int8" else Int8WeightOnly(weight, bias)
        return PackedLinear(weight, bias) if self._onednn else PlainLinear(weight, bias)

    def gated(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """:meth:`linear` of gates and ups, whose halves a program of the kernels brings together by itself."""
        kernels = self.kernels
        if kernels is None or self._quantization != "none" or weight.shape[0] % (2 * kernels.lanes):
            return self.linear(weight, bias)
        return NativeLinear(kernels, self._arena, weight, bias, int8=False, interleaved=True)

    def embedding(self, weight: Tensor) -> Embedding:
        """Rows by token id; where it is tied, the output projection as well."""
        if self.kernels is not None:
            return NativeLinear(self.kernels, self._arena, weight, None, int8=self._quantization == "int8")
        weight = self.plain(weight)
        if self._quantization == "none":
            return PlainLinear(weight)
        return Int8Linear(weight) if self._quantization == "int8" else Int8WeightOnly(weight)

    def head(self, weight: Tensor) -> Linear:
        """The output projection. Fewer than 8 bits would cost it more quality than they save memory."""
        return self.linear(weight) if self._quantization == "none" else self.embedding(weight)

    def exact(self, weight: Tensor) -> "PlainLinear":
        """A product that is never quantized: a router's choices hang on it."""
        return PlainLinear(self.plain(weight))

    def plain(self, tensor: Tensor) -> Tensor:
        """A tensor that is used as it is."""
        return tensor.to(self._device)

    def optional(self, tensor: Tensor | None) -> Tensor | None:
        """The same for one that may not be there."""
        return None if tensor is None else self.plain(tensor)


class PlainLinear:
    """The weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = size_of(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)

    def rows(self, index: Tensor) -> Tensor:
        return functional.embedding(index, self._weight)


class PackedLinear:
    """oneDNN's layout for the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_HINT_ROWS)
        self.num_bytes = size_of(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result


class NativeLinear:
    """A packed matrix of the kernels. A step uses ``packed`` inside a program; a call by itself works as well."""

    def __init__(
        self,
        kernels: library.Library,
        arena: library.Arena,
        weight: Tensor,
        bias: Tensor | None,
        *,
        int8: bool,
        interleaved: bool = False,
    ) -> None:
        self._lanes = kernels.lanes
        self.packed = library.PackedMatrix(
            kernels,
            arena,
            weight.contiguous().numpy(),
            format_=library.I8 if int8 else library.F32,
            bias=None if bias is None else bias.numpy(),
            interleaved=interleaved,
        )
        self.num_bytes = self.packed.num_bytes
        self._outputs, inputs = weight.shape
        self._linear = _single(kernels, self.packed, [library.QUANTIZE, library.LINEAR], inputs, self._outputs)
        self._lookup = _single(kernels, self.packed, [library.EMBED], inputs, inputs)
        self._inputs = inputs

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty((x.shape[0], self._outputs), dtype=torch.float32)
        self._linear.reserve(x.shape[0], frozenset((0, 1)))
        step = library.Step(rows=x.shape[0])
        self._linear.run(step, torch.get_num_threads(), {0: x.data_ptr(), 1: out.data_ptr()})
        if not self.packed.interleaved:
            return out
        return out.view(len(x), -1, 2, self._lanes).transpose(1, 2).reshape(len(x), self._outputs)

    def rows(self, index: Tensor) -> Tensor:
        tokens = index.to(torch.int32).contiguous()
        out = torch.empty((tokens.shape[0], self._inputs), dtype=torch.float32)
        self._lookup.reserve(tokens.shape[0], frozenset((0, 1)))
        step = library.Step(rows=tokens.shape[0], tokens=tokens.data_ptr())
        self._lookup.run(step, torch.get_num_threads(), {0: out.data_ptr(), 1: out.data_ptr()})
        return out


def _single(
    kernels: library.Library, packed: library.PackedMatrix, kinds: list[int], inputs: int, outputs: int
) -> library.Program:
    """A program of one product (or lookup) from buffer 0 to buffer 1."""
    weight = ctypes.pointer(packed.struct)
    int8 = packed.struct.format == library.I8
    ops = [
        library.Op(kind=kind, in_=0, out=1, n=inputs, weight=weight)
        for kind in kinds
        if int8 or kind != library.QUANTIZE
    ]
    return library.Program(kernels, ops, [inputs, outputs], quantized_width=inputs if int8 else 0)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
