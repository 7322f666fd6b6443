"""Attention of a whole step in one call, by torch's variable-length kernel: CUDA, 16-bit numbers.

Where the active implementation reads pages (FlashAttention 3 and later, when their packages are installed) it gets
the block tables; the one that torch brings gets the contexts one after another, gathered from the pages. Prefill,
chunks and single tokens are the same call. What the kernel does not compute (float32, bounded scores) is left to
:mod:`sdpa`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from runtime.base import logs
from runtime.engine.causal.attention import StepBatch
from runtime.engine.causal.config import DecoderConfig
from runtime.engine.causal.device_cache import DeviceKvCache

_log = logs.get(__name__)

_DTYPES: Final = (torch.float16, torch.bfloat16)
_MOST_HEAD_DIM: Final = 256
_HEAD_MULTIPLE: Final = 8
# The first generation of CUDA devices that the kernel is made for.
_CAPABILITY: Final = (8, 0)
# Implementations that read pages, by the generation of devices that each is made for.
_PAGED: Final = {9: "FA3", 10: "FA4"}
# How far a device's answer may be from the plain formula: 16-bit rounding of numbers around one.
_TOLERANCE: Final = 0.05

Attention = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """``call`` has the signature of ``torch.nn.attention.varlen.varlen_attn``; ``paged`` says that it takes tables."""

    call: Attention
    paged: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Sequences answered in one call, whose rows are ``first .. first + count``.

    ``query_starts`` and ``key_starts`` are int32 [sequences + 1]. ``slots`` int64 are the contexts, or ``table`` int32
    [sequences, blocks] says where they lie; ``lengths`` int32 [sequences] is how much of each counts.
    """

    first: int
    count: int
    query_starts: Tensor
    key_starts: Tensor | None
    most_queries: int
    most_keys: int
    slots: Tensor | None = None
    table: Tensor | None = None
    lengths: Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FlashBatch:
    """A step as tensors, shared by all layers: what :class:`sdpa.TorchBatch` is for the other way."""

    tokens: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]
    picks: Tensor  # int64: rows whose hidden states are wanted
    slots: Tensor  # int64 [rows]: where each row's keys and values go
    parts: tuple[Part, ...]


def kernel_for(config: DecoderConfig, dtype: torch.dtype, device: torch.device, pages: bool = True) -> Kernel | None:
    """The kernel that serves such a model on ``device``, proven there on a small example; ``None`` where none does.

    ``pages`` says that keys and values lie in the pages as they are computed with.
    """
    if device.type != "cuda" or not serves(config, dtype):
        return None
    generation = torch.cuda.get_device_capability(device)
    if generation < _CAPABILITY:
        return None
    from torch.nn.attention import varlen  # registers operators, which takes a moment

    candidates = [Kernel(varlen.varlen_attn, paged=False)]
    if pages and _activated(_PAGED.get(generation[0], "")):
        candidates.insert(0, Kernel(varlen.varlen_attn, paged=True))
    for kernel in candidates:
        if proven(kernel, config, dtype, device):
            return kernel
    return None


def serves(config: DecoderConfig, dtype: torch.dtype) -> bool:
    """True when the kernel computes what ``config`` asks for in ``dtype``."""
    shape = config.head_dim <= _MOST_HEAD_DIM and config.head_dim % _HEAD_MULTIPLE == 0
    return dtype in _DTYPES and shape and not config.score_cap


def _activated(name: str) -> bool:
    """Make torch use the implementation called ``name``; False when it is not installed."""
    from torch.nn import attention

    if name not in attention.list_flash_attention_impls():
        return False
    try:
        attention.activate_flash_attention_impl(name)
    except (ImportError, RuntimeError, ValueError, OSError) as exc:
        _log.info("flash_implementation_absent", name=name, error=str(exc)[:200])
        return False
    return True


def proven(kernel: Kernel, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> bool:
    """True when ``kernel`` computes a small step of this model's shape on ``device`` as the plain formula does."""
    block, heads, kv_heads, width = 16, config.num_heads, config.num_kv_heads, config.head_dim
    maker = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=maker).to(device=device, dtype=dtype)

    keys, values = drawn(4, block, kv_heads, width), drawn(4, block, kv_heads, width)
    query, lengths, counts = drawn(4, heads, width), (20, 37), (1, 3)
    tables = [[2, 1, 0], [3, 0, 2]]
    scale = width**-0.5
    try:
        starts = _int32([0, *itertools.accumulate(counts)], device)
        fields: dict[str, Any] = {"scale": scale, "window_size": (-1, 0), "enable_gqa": heads != kv_heads}
        if kernel.paged:
            got = kernel.call(
                query, keys, values, starts, None, 3, 48, **fields,
                seqused_k=_int32(lengths, device), block_table=_int32(tables, device), num_splits=1,
            )  # fmt: skip
        else:
            packed = [_context(part, tables, lengths) for part in (keys, values)]
            key_starts = _int32([0, *itertools.accumulate(lengths)], device)
            got = kernel.call(query, *packed, starts, key_starts, 3, max(lengths), **fields)
        want = _plain_formula(query, keys, values, tables, lengths, counts, scale)
        far = float((got.float() - want).abs().max())
    except (RuntimeError, ValueError, TypeError) as exc:  # a kernel that is not made for this
        _log.warning("flash_attention_refused", paged=kernel.paged, error=str(exc)[:300])
        return False
    if not far <= _TOLERANCE:
        _log.warning("flash_attention_differs", paged=kernel.paged, difference=far)
        return False
    return True


def _int32(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _context(pages: Tensor, tables: list[list[int]], lengths: tuple[int, ...]) -> Tensor:
    return torch.cat([pages[table].flatten(0, 1)[:length] for table, length in zip(tables, lengths, strict=True)])


def _plain_formula(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: list[list[int]],
    lengths: tuple[int, ...],
    counts: tuple[int, ...],
    scale: float,
) -> Tensor:
    found, first = [], 0
    for table, length, count in zip(tables, lengths, counts, strict=True):
        each = query.shape[1] // keys.shape[2]
        held = [pages[table].flatten(0, 1)[:length].float().repeat_interleave(each, 1) for pages in (keys, values)]
        scores = torch.einsum("qhd,khd->hqk", query[first : first + count].float(), held[0]) * scale
        hidden = torch.ones(count, length, dtype=torch.bool, device=query.device).triu(length - count + 1)
        found.append(torch.einsum("hqk,khd->qhd", torch.softmax(scores.masked_fill(hidden, -torch.inf), -1), held[1]))
        first += count
    return torch.cat(found)


def prepare(batch: StepBatch, kernel: Kernel, device: torch.device, most_tokens: int) -> FlashBatch:
    """Bring ``batch`` to ``device``; contexts are copied in parts of ``most_tokens`` tokens, or of one sequence."""

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    lengths = batch.spans["start"] + batch.spans["count"]
    limit = int(lengths.sum()) if kernel.paged else most_tokens
    parts = [_part(batch, kernel, device, first, end) for first, end in _ranges(lengths.tolist(), limit)]
    return FlashBatch(
        tokens=moved(batch.tokens),
        positions=moved(batch.positions),
        picks=moved(batch.picks),
        slots=moved(batch.slots),
        parts=tuple(parts),
    )


def _ranges(lengths: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of sequences whose contexts are at most ``limit`` tokens together; one sequence at least."""
    first = total = 0
    for number, length in enumerate(lengths):
        if number > first and total + length > limit:
            yield first, number
            first, total = number, 0
        total += length
    if lengths:
        yield first, len(lengths)


def _part(batch: StepBatch, kernel: Kernel, device: torch.device, first: int, end: int) -> Part:
    spans = batch.spans[first:end]
    lengths, counts = spans["start"] + spans["count"], spans["count"]

    def moved(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(device)

    def starts(sizes: np.ndarray) -> Tensor:
        return moved(np.concatenate(([0], np.cumsum(sizes))))

    row, sizes = int(spans["first"][0]), (int(counts.max()), int(lengths.max()))
    rows = int(counts.sum())
    if not kernel.paged:
        slots = np.concatenate([batch.context(number) for number in range(first, end)])
        return Part(row, rows, starts(counts), starts(lengths), *sizes, slots=torch.from_numpy(slots).to(device))
    needed = -(-lengths // batch.block_tokens)
    table = np.zeros((len(spans), int(needed.max())), np.int32)
    for number, (span, blocks) in enumerate(zip(spans, needed, strict=True)):
        table[number, :blocks] = batch.tables[span["table"] : span["table"] + blocks]
    return Part(row, rows, starts(counts), None, *sizes, table=moved(table), lengths=moved(lengths))


def attend(
    query: Tensor, cache: DeviceKvCache, layer: int, kernel: Kernel, batch: FlashBatch, *, window: int, scale: float
) -> Tensor:
    """Attention of all rows: ``query`` [tokens, heads, head_dim] to the same shape. ``window`` of 0 sees everything."""
    found = []
    for part in batch.parts:
        keys, values = cache.rows(layer, part.slots) if part.slots is not None else cache.pages(layer)
        fields: dict[str, Any] = {
            "scale": scale,
            "window_size": (window - 1 if window else -1, 0),
            "enable_gqa": query.shape[1] != keys.shape[-2],
        }
        if part.lengths is not None:
            fields["seqused_k"] = part.lengths
        if part.table is not None:
            # one order of sums whoever else is in the batch
            fields |= {"block_table": part.table, "num_splits": 1}
        found.append(
            kernel.call(
                query[part.first : part.first + part.count],
                keys,
                values,
                part.query_starts,
                part.key_starts,
                part.most_queries,
                part.most_keys,
                **fields,
            )
        )
    return found[0] if len(found) == 1 else torch.cat(found)
