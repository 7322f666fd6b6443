"""Where keys and values lie, and what a step wants to read of them.

Keys and values live in blocks; a slot is ``block * block_tokens + offset``. Layout of a layer's cache: [kv_heads,
slots, head_dim]. The kernels read it in place (``kernels/source/attention.c``); :mod:`sdpa` does it with torch.
"""

import dataclasses
import mmap
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.engine.causal import pages
from runtime.engine.causal.config import DecoderConfig

# Block 0 of the storage is nobody's: zeros that pad where a value has to be read, and the place of rows that only pad.
FIRST_BLOCK: Final = 1

# ``span`` of kernels.h.
SPAN: Final = np.dtype([("first", np.int32), ("start", np.int32), ("count", np.int32), ("table", np.int32)])


class KvForm:
    """How keys and values are held: ``same`` in the type ``dtype`` that is computed in, ``int8`` as integers and
    ``fp8`` as short floats, with a float32 scale per token and head."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.computed = dtype
        self.held = {"same": dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[name]
        self.quantized = name != "same"
        self.scale_bytes = torch.float32.itemsize if self.quantized else 0

    def token_bytes(self, config: DecoderConfig) -> int:
        """Bytes of one token over all layers."""
        return config.kv_bytes_per_token(self.held.itemsize, self.scale_bytes)

    def pack(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """``values`` [..., head_dim] as they are held, and their scales [...]."""
        most = 127.0 if self.held == torch.int8 else float(torch.finfo(self.held).max)
        wide = values.float()
        scale = wide.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / most
        steps = torch.nan_to_num(wide / scale)
        packed = (steps.round_() if self.held == torch.int8 else steps).clamp_(-most, most).to(self.held)
        return packed, scale[..., 0]

    def unpack(self, packed: Tensor, scale: Tensor) -> Tensor:
        """What :meth:`pack` took, as near as it is held."""
        return packed.to(self.computed) * scale[..., None].to(self.computed)


class KvCache:
    """Storage for all layers: [layers, 2, kv_heads, slots, head_dim], zeroed (a page is only taken when written).

    Where it is quantized, ``scales`` has [layers, 2, kv_heads, slots] beside it.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, slots: int, head_dim: int, form: KvForm, device: torch.device
    ) -> None:
        self.form = form
        self.data = _zeros((layers, 2, kv_heads, slots, head_dim), form.held, device)
        self.scales = _zeros((layers, 2, kv_heads, slots), torch.float32, device) if form.quantized else None
        self.num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())
        self.slots = slots

    def _tensors(self) -> list[Tensor]:
        return [self.data] if self.scales is None else [self.data, self.scales]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` ([tokens, kv_heads, head_dim]) at ``slots`` ([tokens])."""
        for which, heads in enumerate((keys, values)):
            held = heads.transpose(0, 1)
            if self.scales is not None:
                held, scale = self.form.pack(held)
                self.scales[layer, which].index_copy_(1, slots, scale)
            plain(self.data[layer, which]).index_copy_(1, slots, plain(held))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return (keys, values), each [kv_heads, len(slots), head_dim] in the type that is computed in."""
        return self._read(layer, 0, slots), self._read(layer, 1, slots)

    def _read(self, layer: int, which: int, slots: Tensor) -> Tensor:
        data = self.data[layer, which]
        found = plain(data).index_select(1, slots).view(data.dtype)
        if self.scales is None:
            return found
        return self.form.unpack(found, self.scales[layer, which].index_select(1, slots))

    def give_back(self, blocks: list[int], block_tokens: int) -> int:
        """Drop the pages of ``blocks``, which then read as zeros; bytes dropped, 0 where memory cannot be returned."""
        if self.data.device.type != "cpu":
            return 0
        dropped = 0
        for tensor in self._tensors():
            layers, kinds, heads, slots = tensor.shape[:4]
            token_bytes = tensor[0, 0, 0, 0].numel() * tensor.element_size()
            dropped += pages.give_back(
                tensor.data_ptr(), layers * kinds * heads, slots * token_bytes, block_tokens * token_bytes, blocks
            )
        return dropped

    def reserve(self, blocks: int, block_tokens: int) -> None:
        """Have memory for ``blocks`` blocks: here the system gives pages when they are written.

        Raises:
            IndexError: there are not so many; the kernels would write beyond the end.
        """
        if blocks * block_tokens > self.slots:
            raise IndexError(f"{blocks} blocks are more than the cache has")

    def scrub(self, slots: Tensor) -> None:
        """Zero ``slots`` in every layer: what a broken sequence left must not reach another one."""
        for tensor in self._tensors():
            plain(tensor).index_fill_(3, slots, 0)


def plain(tensor: Tensor) -> Tensor:
    """Short floats as the bytes they are: indexing is not made for them everywhere."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # calloc: the system hands out zero pages on first use, so an idle pool costs no memory
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    room = np.zeros(num_bytes + mmap.PAGESIZE, dtype=np.uint8)
    first = -room.ctypes.data % mmap.PAGESIZE  # no vector lies across two lines, and whole blocks are whole pages
    return torch.from_numpy(room[first : first + num_bytes]).view(dtype).view(shape)


@dataclasses.dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything the model needs about one step; rows are the tokens of all sequences, one sequence after another.

    ``spans`` ([sequences] of :data:`SPAN`) has the ``num_single`` sequences first that compute one token each, by
    context length; ``tables`` are their blocks, one after another; ``picks`` are the rows whose hidden states are
    wanted. All other arrays are int32 [rows].
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_span: NDArray[np.int32]
    picks: NDArray[np.int32]
    tables: NDArray[np.int32]
    spans: np.ndarray
    num_single: int
    block_tokens: int

    @property
    def slots(self) -> NDArray[np.int64]:
        """Where the keys and values of each row go: int64 [rows]."""
        places = self.spans["table"][self.row_span] + self.positions // self.block_tokens
        slots: NDArray[np.int64] = self.tables[places].astype(np.int64) * self.block_tokens
        return slots + self.positions % self.block_tokens

    def context(self, number: int) -> NDArray[np.int64]:
        """Slots of the whole context of sequence ``number``, what this step adds included."""
        span = self.spans[number]
        return context_slots(self.tables[span["table"] :], int(span["start"] + span["count"]), self.block_tokens)


def layout(
    work: Seq[tuple[Seq[int], int, Seq[int]]], picks: Seq[int], *, block_tokens: int, first_block: int = 0
) -> StepBatch:
    """Lay out ``work``: per sequence its new tokens, the position of the first, and its blocks; single tokens first.

    Blocks are counted from ``first_block`` of the storage on.
    """
    counts = np.array([len(tokens) for tokens, _, _ in work], np.int32)
    starts = np.array([start for _, start, _ in work], np.int32)
    needed = [-(-(start + len(tokens)) // block_tokens) for tokens, start, _ in work]
    spans = np.zeros(len(work), SPAN)
    spans["first"] = np.cumsum(counts) - counts
    spans["start"], spans["count"] = starts, counts
    spans["table"] = np.cumsum(needed) - needed
    row_span = np.repeat(np.arange(len(work), dtype=np.int32), counts)
    rows = np.arange(len(row_span), dtype=np.int32)
    return StepBatch(
        tokens=np.array([token for tokens, _, _ in work for token in tokens], np.int32),
        positions=rows - spans["first"][row_span] + starts[row_span],
        row_span=row_span,
        picks=np.array(picks, np.int32),
        tables=first_block
        + np.array(
            [block for (_, _, blocks), count in zip(work, needed, strict=True) for block in blocks[:count]], np.int32
        ),
        spans=spans,
        num_single=int((counts == 1).sum()),
        block_tokens=block_tokens,
    )


def context_slots(blocks: Seq[int] | NDArray[np.int32], length: int, block_tokens: int) -> NDArray[np.int64]:
    """Slots of the first ``length`` tokens of a sequence that holds ``blocks``: int64 [length]."""
    needed = -(-length // block_tokens)
    table = np.asarray(blocks[:needed], dtype=np.int64) * block_tokens
    slots: NDArray[np.int64] = (table[:, None] + np.arange(block_tokens, dtype=np.int64)).reshape(-1)[:length]
    return slots
