"""Paged attention with torch, for devices and types that the C kernels do not serve.

Sequences that compute one token are answered together, in groups of similar context length; longer catches one by one.
A gather along slots brings keys and values into the shape that scaled_dot_product_attention takes.
"""

import dataclasses
import sys
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal.attention import KvCache, StepBatch
from runtime.engine.causal.device_cache import DeviceKvCache

Cache = KvCache | DeviceKvCache

# Contexts of one group differ by at most this factor, above so many tokens: padding is computed, too.
PADDING: Final = 2
_SMALLEST_GROUP_WIDTH: Final = 128
# Scores that are written out at a time.
MOST_SCORES: Final = 1 << 22


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
class TorchBatch:
    """A step as tensors, shared by all layers."""

    tokens: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]
    picks: Tensor  # int64: rows whose hidden states are wanted
    slots: Tensor  # int64 [rows]: where each row's keys and values go
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


def prepare(
    batch: StepBatch, windows: Seq[int], dtype: torch.dtype, device: torch.device, most_tokens: int = sys.maxsize
) -> TorchBatch:
    """Bring ``batch`` to ``device``, with masks of ``dtype`` for ``windows``.

    At most ``most_tokens`` tokens of context, or one sequence's, are copied at a time: a prefix that many share is
    copied for each.
    """
    like = torch.empty(0, dtype=dtype, device=device)

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(like.device)

    contexts = [batch.context(number) for number in range(len(batch.spans))]
    single = batch.num_single
    chunks = [
        chunk(int(span["first"]), int(span["start"]), int(span["count"]), context, windows, like)
        for span, context in zip(batch.spans[single:], contexts[single:], strict=True)
    ]
    return TorchBatch(
        tokens=moved(batch.tokens),
        positions=moved(batch.positions),
        picks=moved(batch.picks),
        slots=moved(batch.slots),
        groups=_groups(contexts[:single], windows, like, most_tokens),
        chunks=tuple(chunks),
    )


def _groups(contexts: Seq[np.ndarray], windows: Seq[int], like: Tensor, most_tokens: int) -> tuple[DecodeGroup, ...]:
    """Sequences of similar length are answered together; ``contexts`` come shortest first."""
    groups: list[DecodeGroup] = []
    first = 0
    while first < len(contexts):
        limit = max(_SMALLEST_GROUP_WIDTH, PADDING * len(contexts[first]))
        end = first
        while end < len(contexts) and len(contexts[end]) <= limit:
            if end > first and (end - first + 1) * len(contexts[end]) > most_tokens:
                break
            end += 1
        groups.append(decode_group(first, contexts[first:end], windows, like))
        first = end
    return tuple(groups)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What attention of one layer is like: keys it looks back on (0: all), the factor and the bound of its scores."""

    window: int
    scale: float
    cap: float = 0.0


def attend(query: Tensor, cache: Cache, layer: int, form: Form, batch: TorchBatch) -> Tensor:
    """Attention of all rows: ``query`` [tokens, heads, head_dim] to the same shape."""
    out = torch.empty_like(query)
    for group in batch.groups:
        out[group.first : group.first + group.count] = _attend_group(query, cache, layer, form, group)
    for piece in batch.chunks:
        out[piece.first : piece.first + piece.count] = _attend_chunk(query, cache, layer, form, piece)
    return out


def _attend_group(query: Tensor, cache: Cache, layer: int, form: Form, group: DecodeGroup) -> Tensor:
    """Heads that share keys become the query rows of one product, so keys are never repeated."""
    keys, values = cache.read(layer, group.slots)
    kv_heads, _, head_dim = keys.shape
    shape = (kv_heads, group.count, group.width, head_dim)
    rows = query[group.first : group.first + group.count]
    rows = rows.reshape(group.count, kv_heads, -1, head_dim).transpose(0, 1)
    out = _product(rows, keys.view(shape), values.view(shape), group.masks[form.window], form)
    return out.transpose(0, 1).reshape(group.count, -1, head_dim)


def _attend_chunk(query: Tensor, cache: Cache, layer: int, form: Form, piece: Chunk) -> Tensor:
    keys, values = cache.read(layer, piece.slots)
    kv_heads, length, head_dim = keys.shape
    rows = query[piece.first : piece.first + piece.count].transpose(0, 1)
    rows = rows.reshape(kv_heads, -1, piece.count, head_dim)
    shape = (kv_heads, rows.shape[1], length, head_dim)
    out = _product(rows, keys[:, None].expand(shape), values[:, None].expand(shape), piece.masks[form.window], form)
    return out.reshape(-1, piece.count, head_dim).transpose(0, 1)


def _product(rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, form: Form) -> Tensor:
    """Attention of ``rows`` [.., .., queries, head_dim]; scores that are bounded are written out, a part at a time."""
    if not form.cap:
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=form.scale)
    first, second, queries, _ = rows.shape
    step = max(1, MOST_SCORES // (first * second * keys.shape[2]))
    parts = []
    for start in range(0, queries, step):
        scores = rows[:, :, start : start + step] @ keys.transpose(2, 3) * form.scale
        scores = torch.tanh(scores / form.cap) * form.cap
        scores += mask if mask.shape[-2] == 1 else mask[..., start : start + step, :]
        parts.append(torch.softmax(scores, dim=-1, dtype=torch.float32).to(rows.dtype) @ values)
    return torch.cat(parts, dim=2)
