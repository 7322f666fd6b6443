"""Stand-ins for what only a CUDA device has: its attention kernel as a plain formula, and recorded steps.

Both keep the promise of the real one. The recorder runs nothing but what it recorded, on the very tensors that were
there, as a graph does; and it refuses what a graph refuses: looking at a value on the host.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.engine.causal import flash


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """What ``torch.nn.attention.varlen.varlen_attn`` documents, by sequence. A recorder takes it as one call."""
    result: Tensor = torch.ops.millpond_tests.attention(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        scale,
        list(window_size),
        enable_gqa,
        seqused_k,
        block_table,
    )
    assert (block_table is None) or num_splits == 1, "sums would depend on batch mates"
    return result


@torch.library.custom_op("millpond_tests::attention", mutates_args=())
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    scale: float,
    window_size: list[int],
    enable_gqa: bool,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
) -> Tensor:
    for small in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert small is None or small.dtype == torch.int32
    assert enable_gqa == (query.shape[1] != key.shape[-2])
    out = torch.empty_like(query)
    for number in range(cu_seq_q.shape[0] - 1):
        rows = slice(int(cu_seq_q[number]), int(cu_seq_q[number + 1]))
        keys, values = (_context(part, number, cu_seq_k, seqused_k, block_table) for part in (key, value))
        count, length = rows.stop - rows.start, keys.shape[0]
        assert count <= max_q
        assert length <= max_k
        each = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(each, 1), values.repeat_interleave(each, 1)
        scores = torch.einsum("qhd,khd->hqk", query[rows].float(), keys.float()) * scale
        behind = torch.arange(length - count, length)[:, None] - torch.arange(length)[None, :]
        visible = behind >= -window_size[1] if window_size[1] >= 0 else torch.ones_like(behind, dtype=torch.bool)
        if window_size[0] >= 0:
            visible &= behind <= window_size[0]
        shares = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        out[rows] = torch.einsum("hqk,khd->qhd", shares, values.float()).to(query.dtype)
    return out


def _context(part: Tensor, number: int, starts: Tensor | None, used: Tensor | None, table: Tensor | None) -> Tensor:
    length = int(used[number]) if used is not None else None
    if table is not None:
        assert length is not None
        blocks = -(-length // part.shape[1])
        return part[table[number, :blocks].long()].flatten(0, 1)[:length]
    assert starts is not None
    first, end = int(starts[number]), int(starts[number + 1])
    return part[first : end if length is None else first + length]


GATHERED = flash.Kernel(attention, paged=False)
PAGED = flash.Kernel(attention, paged=True)


class Recording(TorchDispatchMode):
    """Every operation with its arguments and what came out."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Recorder:
    """Replays recorded operations on the tensors they were recorded with. ``broken`` refuses to record."""

    def __init__(self, *, broken: bool = False) -> None:
        self.recorded = self.forgotten = 0
        self.broken = broken

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        if self.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.recorded += 1
        with Recording() as tape:
            run()

        def replay() -> None:
            for func, args, kwargs, held in tape.calls:
                result = func(*args, **kwargs)
                for new, old in zip(_tensors(result), _tensors(held), strict=True):
                    if new.data_ptr() != old.data_ptr():  # views and places that are written to are there already
                        old.copy_(new)

        return replay

    def forget(self) -> None:
        self.forgotten += 1


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []
