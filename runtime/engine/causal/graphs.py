"""Steps in which every sequence computes one token, recorded once per shape and replayed: one call keeps the device
busy instead of some hundred.

A shape is a padded number of rows, and where contexts are gathered a padded length of context. All of a step's values
are in one buffer that never moves; rows that only pad belong to nobody and write to the block that nobody reads. A
shape is recorded when it comes for the second time; what cannot be recorded, or is too large, runs as it did before.
"""

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from runtime.base import logs
from runtime.engine.causal import flash
from runtime.engine.causal.attention import StepBatch
from runtime.engine.causal.device_cache import DeviceKvCache
from runtime.engine.causal.model import Decoder

_log = logs.get(__name__)

MOST_ROWS: Final = 256
_MOST_GRAPHS: Final = 64
_NARROWEST: Final = 256
_MOST_FAILURES: Final = 3
_WARM_RUNS: Final = 2
# tokens, positions, slots and lengths of each row
_ROW_VALUES: Final = 4


class Recorder(Protocol):
    """Records what a function does to the device."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record ``run``, which reads and writes tensors that stay where they are; what it returns does it all again.

        Raises:
            RuntimeError: ``run`` does something that cannot be recorded, or there is no memory for it.
        """

    def forget(self) -> None:
        """Nothing that was recorded will be replayed again."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: one is replayed at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):  # libraries take what they need on first use, which cannot be recorded
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        self._pool = graph.pool()
        return graph.replay

    def forget(self) -> None:
        self._pool = None  # a pool whose last graph has gone cannot be joined again


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Shape:
    """``rows`` padded rows; ``width`` tokens of context each, or blocks where the kernel reads pages."""

    rows: int
    width: int


class _Room:
    """What recorded steps read and write; it stays where it is for as long as one of them is kept."""

    def __init__(self, values: int, rows: int, vocab: int, device: torch.device) -> None:
        self.host = torch.zeros(values, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.device = torch.zeros(values, dtype=torch.int32, device=device)
        self.logits = torch.zeros((rows, vocab), device=device)
        self.verdict = torch.zeros((2, rows), dtype=torch.int64, device=device)


class DecodeGraphs:
    """Recorded steps of one model over one cache. Not for several threads."""

    def __init__(
        self, model: Decoder, cache: DeviceKvCache, recorder: Recorder, *, max_rows: int, max_len: int, most_tokens: int
    ) -> None:
        assert model.flash is not None
        self._model, self._cache, self._recorder = model, cache, recorder
        self._paged = model.flash.paged
        self._block_tokens = cache.block_tokens
        self._max_rows = min(max_rows, MOST_ROWS)
        self._sizes = sizes(self._max_rows)
        self._longest = -(-max_len // cache.block_tokens) * cache.block_tokens
        self._most_tokens = most_tokens
        self._shapes = self._possible()
        self._held: _Room | None = None
        self._recorded: OrderedDict[Shape, Callable[[], None]] = OrderedDict()
        self._seen: Counter[Shape] = Counter()
        self._refused: set[Shape] = set()
        self._version = cache.version
        self.replays = 0

    @property
    def shapes(self) -> list[Shape]:
        """All shapes that may be recorded, smallest first."""
        return self._shapes

    def _possible(self) -> list[Shape]:
        widths = [-(-self._longest // self._block_tokens)] if self._paged else _widths(self._longest)
        limit = float("inf") if self._paged else self._most_tokens
        found = [Shape(rows, width) for width in widths for rows in self._sizes if rows * width <= limit]
        return sorted(found) or [Shape(1, widths[0])]

    @property
    def _room(self) -> _Room:
        if self._held is None:
            values = max(_ROW_VALUES * shape.rows + shape.rows * shape.width for shape in self._shapes)
            self._held = _Room(values, self._sizes[-1], self._model.config.vocab_size, self._model.device)
        return self._held

    @property
    def num_recorded(self) -> int:
        """Shapes that are recorded now."""
        return len(self._recorded)

    def clear(self) -> None:
        """Forget everything recorded: what it refers to is somewhere else now."""
        self._recorded.clear()
        self._recorder.forget()
        self._held = None
        self._seen.clear()
        self._refused.clear()

    def run(self, batch: StepBatch) -> tuple[Tensor, tuple[list[int], list[bool]]] | None:
        """Compute ``batch``, in which each sequence computes one token and wants its logits.

        Returns float32 logits [rows, vocab], good until the next step, and per row its arg-max and whether it is
        finite; ``None`` where the step has no recorded shape.
        """
        if self._version != self._cache.version:
            self.clear()
            self._version = self._cache.version
        shape = self._shape(batch)
        if shape is None or not self._ready(shape):
            return None
        rows = len(batch.tokens)
        self._fill(batch, shape)
        self._recorded.move_to_end(shape)
        self._recorded[shape]()
        self.replays += 1
        best, finite = self._room.verdict[:, :rows].tolist()
        return self._room.logits[:rows], (best, [bool(fine) for fine in finite])

    def record_all(self) -> None:
        """Record every number of rows for the shortest contexts, largest first: the others share its memory."""
        narrowest = min(shape.width for shape in self._shapes)
        for shape in reversed([shape for shape in self._shapes if shape.width == narrowest]):
            self._record(shape)

    def _shape(self, batch: StepBatch) -> Shape | None:
        rows = len(batch.tokens)
        if not rows or rows > self._sizes[-1] or batch.num_single != rows:
            return None
        longest = int(batch.positions.max()) + 1
        padded = next(size for size in self._sizes if size >= rows)
        fitting = (shape for shape in self._shapes if shape.rows == padded and self._tokens(shape) >= longest)
        return next(fitting, None)

    def _tokens(self, shape: Shape) -> int:
        return shape.width * (self._block_tokens if self._paged else 1)

    def _ready(self, shape: Shape) -> bool:
        """True when ``shape`` is recorded; records it when it comes again."""
        if shape in self._recorded:
            return True
        if shape in self._refused or len(self._refused) >= _MOST_FAILURES:
            return False
        self._seen[shape] += 1
        return self._seen[shape] > 1 and self._record(shape)

    def _record(self, shape: Shape) -> bool:
        """Record ``shape``, whose values are zeros meanwhile: every row pads."""
        try:
            room = self._room
            room.device.zero_()
            room.device[(_ROW_VALUES - 1) * shape.rows : _ROW_VALUES * shape.rows] = 1  # lengths
            step = self._step(shape, room)
            replay = self._recorder.record(lambda: self._compute(step, room, shape.rows))
        except RuntimeError as exc:  # no memory, or an operation that cannot be recorded: the step runs without
            self._refused.add(shape)
            _log.warning("step_not_recorded", rows=shape.rows, width=shape.width, error=str(exc)[:300])
            return False
        self._recorded[shape] = replay
        if len(self._recorded) > _MOST_GRAPHS:
            self._recorded.popitem(last=False)
        return True

    def _compute(self, step: flash.FlashBatch, room: _Room, rows: int) -> None:
        whole = dataclasses.replace(step, slots=step.slots.long())  # where to write has to be as wide as that
        logits = self._model.logits(self._model.compute(whole, self._cache))
        room.logits[:rows].copy_(logits)
        room.verdict[0, :rows].copy_(logits.argmax(dim=-1))
        # a sum is finite only if everything in it is
        room.verdict[1, :rows].copy_(torch.isfinite(logits.sum(dim=-1)))

    def _step(self, shape: Shape, room: _Room) -> flash.FlashBatch:
        """The buffer as the step of ``shape``: views, and numbers that are the same for each step."""
        rows, width, device = shape.rows, shape.width, room.device.device
        tokens, positions, slots, lengths = room.device[: _ROW_VALUES * rows].view(_ROW_VALUES, rows)
        context = room.device[_ROW_VALUES * rows : _ROW_VALUES * rows + rows * width]
        each = torch.arange(rows + 1, dtype=torch.int32, device=device)
        part = flash.Part(
            first=0,
            count=rows,
            query_starts=each,
            key_starts=None if self._paged else each * width,
            most_queries=1,
            most_keys=self._tokens(shape),
            slots=None if self._paged else context,
            table=context.view(rows, width) if self._paged else None,
            lengths=lengths,
        )
        return flash.FlashBatch(tokens, positions, torch.arange(rows, device=device), slots, (part,))

    def _fill(self, batch: StepBatch, shape: Shape) -> None:
        """Put the values of ``batch`` into the buffer. Other rows are token 0, alone, in the block of nobody."""
        rows, width, own = shape.rows, shape.width, len(batch.tokens)
        used = _ROW_VALUES * rows + rows * width
        host = self._room.host.numpy()
        host[:used] = 0
        values = host[: _ROW_VALUES * rows].reshape(_ROW_VALUES, rows)
        values[3] = 1
        values[:, :own] = batch.tokens, batch.positions, batch.slots, batch.positions + 1
        context = host[_ROW_VALUES * rows : used].reshape(rows, width)
        for number in range(own):
            found = _table(batch, number) if self._paged else batch.context(number)
            context[number, : len(found)] = found
        self._room.device[:used].copy_(self._room.host[:used], non_blocking=True)


def _table(batch: StepBatch, number: int) -> np.ndarray:
    span = batch.spans[number]
    blocks = -(-int(span["start"] + span["count"]) // batch.block_tokens)
    found: np.ndarray = batch.tables[span["table"] : span["table"] + blocks]
    return found


def sizes(most: int) -> list[int]:
    """Numbers of rows that steps are padded to: few enough to record them all, near enough to waste little."""
    most = min(most, MOST_ROWS)
    return [size for size in (1, 2, 4, *range(8, 64, 8), *range(64, MOST_ROWS, 32)) if size < most] + [most]


def _widths(longest: int) -> list[int]:
    """Lengths of context that gathered steps are padded to: each twice the one before."""
    found = [min(_NARROWEST, longest)]
    while found[-1] < longest:
        found.append(min(2 * found[-1], longest))
    return found
