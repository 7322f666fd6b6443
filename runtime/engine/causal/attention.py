"""Paged attention: keys and values live in blocks, and every token of a step knows its slot.

A slot is ``block * block_tokens + offset``. Sequences that compute one token are answered together, in groups of
similar context length; longer catches one by one. Layout of a layer's cache: [kv_heads, slots, head_dim], so that a
gather along slots needs no further copy.
"""

import dataclasses
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class KvCache:
    """Storage for all layers: [layers, 2, kv_heads, slots, head_dim], zeroed (a page is only taken when written)."""

    def __init__(
        self, *, layers: int, kv_heads: int, slots: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, 2, kv_heads, slots, head_dim)
        if device.type == "cpu":
            size = int(np.prod(shape)) * dtype.itemsize
            # calloc: the system hands out zero pages on first use, so an idle pool costs no memory
            self.data = torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
        else:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.num_bytes = self.data.numel() * self.data.element_size()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` ([tokens, kv_heads, head_dim]) at ``slots`` ([tokens])."""
        self.data[layer, 0].index_copy_(1, slots, keys.transpose(0, 1))
        self.data[layer, 1].index_copy_(1, slots, values.transpose(0, 1))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return (keys, values), each [kv_heads, len(slots), head_dim]."""
        return self.data[layer, 0].index_select(1, slots), self.data[layer, 1].index_select(1, slots)

    def scrub(self, slots: Tensor) -> None:
        """Zero ``slots`` in every layer: what a broken sequence left must not reach another one."""
        self.data.index_fill_(3, slots, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows ``first .. first + count`` compute one token each. ``slots`` is [count * width], padded with slot 0."""

    first: int
    count: int
    width: int
    slots: Tensor
    masks: dict[int, Tensor]  # by window: 0 or -inf, [1, count, 1, width]


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``first .. first + count`` are consecutive tokens of one sequence whose context is ``slots``."""

    first: int
    count: int
    slots: Tensor
    masks: dict[int, Tensor]  # by window: 0 or -inf, [count, context]


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Everything attention needs about one step, shared by all layers."""

    slots: Tensor  # int64 [tokens]: where each token's keys and values go
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


def context_slots(blocks: Seq[int], length: int, block_tokens: int) -> np.ndarray:
    """Slots of the first ``length`` tokens of a sequence that holds ``blocks``: int64 [length]."""
    needed = -(-length // block_tokens)
    table = np.asarray(blocks[:needed], dtype=np.int64) * block_tokens
    slots: np.ndarray = (table[:, None] + np.arange(block_tokens, dtype=np.int64)).reshape(-1)[:length]
    return slots


def decode_group(first: int, contexts: Seq[np.ndarray], windows: Seq[int], like: Tensor) -> DecodeGroup:
    """Group sequences that compute one token each; ``contexts`` are their slots, the new token's last.

    Masks get the type and device of ``like``.
    """
    lengths = np.array([len(slots) for slots in contexts], dtype=np.int64)
    width = int(lengths.max())
    table = np.zeros((len(contexts), width), dtype=np.int64)
    for row, slots in enumerate(contexts):
        table[row, : len(slots)] = slots
    columns = np.arange(width)[None, :]
    masks = {}
    for window in set(windows):
        visible = columns < lengths[:, None]
        if window:
            visible &= columns >= lengths[:, None] - window
        masks[window] = _additive(visible, like)[None, :, None, :]
    return DecodeGroup(first, len(contexts), width, torch.from_numpy(table.reshape(-1)).to(like.device), masks)


def chunk(first: int, start: int, count: int, slots: np.ndarray, windows: Seq[int], like: Tensor) -> Chunk:
    """Tokens ``start .. start + count`` of one sequence; ``slots`` is its context including them."""
    queries = np.arange(start, start + count)[:, None]
    keys = np.arange(len(slots))[None, :]
    masks = {}
    for window in set(windows):
        visible = keys <= queries
        if window:
            visible &= keys > queries - window
        masks[window] = _additive(visible, like)
    return Chunk(first, count, torch.from_numpy(slots).to(like.device), masks)


def _additive(visible: np.ndarray, like: Tensor) -> Tensor:
    """What is added to scores so that only ``visible`` keys count: made once a step, not once a layer."""
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(torch.from_numpy(~visible).to(like.device), float("-inf"))


def attend(query: Tensor, cache: KvCache, layer: int, window: int, batch: AttentionBatch) -> Tensor:
    """Attention of all rows: ``query`` [tokens, heads, head_dim] to the same shape."""
    out = torch.empty_like(query)
    for group in batch.groups:
        out[group.first : group.first + group.count] = _attend_group(query, cache, layer, window, group)
    for piece in batch.chunks:
        out[piece.first : piece.first + piece.count] = _attend_chunk(query, cache, layer, window, piece)
    return out


def _attend_group(query: Tensor, cache: KvCache, layer: int, window: int, group: DecodeGroup) -> Tensor:
    """Heads that share keys become the query rows of one product, so keys are never repeated."""
    keys, values = cache.read(layer, group.slots)
    kv_heads, _, head_dim = keys.shape
    shape = (kv_heads, group.count, group.width, head_dim)
    rows = query[group.first : group.first + group.count]
    rows = rows.view(group.count, kv_heads, -1, head_dim).transpose(0, 1)
    out = functional.scaled_dot_product_attention(
        rows, keys.view(shape), values.view(shape), attn_mask=group.masks[window]
    )
    return out.transpose(0, 1).reshape(group.count, -1, head_dim)


def _attend_chunk(query: Tensor, cache: KvCache, layer: int, window: int, piece: Chunk) -> Tensor:
    keys, values = cache.read(layer, piece.slots)
    kv_heads, length, head_dim = keys.shape
    rows = query[piece.first : piece.first + piece.count].transpose(0, 1)
    rows = rows.reshape(kv_heads, -1, piece.count, head_dim)
    shape = (kv_heads, rows.shape[1], length, head_dim)
    out = functional.scaled_dot_product_attention(
        rows, keys[:, None].expand(shape), values[:, None].expand(shape), attn_mask=piece.masks[window]
    )
    return out.reshape(-1, piece.count, head_dim).transpose(0, 1)
