"""What the watermarks do: close admission, preempt, shrink the KV pool, and give it its size back. No torch.

Above ``critical`` sequences give way until the level is below it, and the pool gives up the blocks with which it
could pass the mark again: what is on them is dropped and their memory goes back to the device. When the level has
been below ``low`` for a while the pool grows again, as far as it then fits. On a device with memory of its own only
the end of the pool can be cut, so what is there moves. A pool whose memory cannot be given back at all keeps its size:
to shrink it would help nobody.
"""

from typing import Final

from runtime.base import logs
from runtime.engine.causal.gate import WatermarkGate
from runtime.engine.causal.ledger import MemoryBook
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.steps import StepRunner

_log = logs.get(__name__)

_OBSERVE_SECONDS: Final = 1.0
CALM_SECONDS: Final = 30.0


class MemoryWatch:
    """Looks at the level and acts. ``runner`` returns the memory of blocks that nobody uses."""

    def __init__(self, book: MemoryBook, gate: WatermarkGate, scheduler: Scheduler, runner: StepRunner) -> None:
        self._book = book
        self._gate = gate
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._runner = runner
        self._rigid = False
        self._observed_at = float("-inf")
        self._calm_since: float | None = None
        self.shrinks_total = 0

    def look(self, now: float) -> None:
        """Move the gate by the level as of ``now``, and act above ``critical``. Call between steps."""
        if now - self._observed_at >= _OBSERVE_SECONDS:
            self._observed_at = now
            self._book.observe_device()
        level = self._book.level()
        self._gate.observe(level)
        if self._gate.critical(level):
            self._calm_since = None
            self._relieve(level)
        elif self._pool.withdrawn:
            self._grow_when_calm(level, now)

    def _relieve(self, level: float) -> None:
        while self._gate.critical(level) and self._scheduler.preempt_one() is not None:
            level = self._book.level()
        surplus = self._pool.total - self._book.blocks_that_fit()
        if surplus <= 0 or self._rigid:
            return
        withdrawn, moves = self._scheduler.shrink(surplus, compact=self._runner.compacts)
        if not withdrawn:
            return
        freed = self._runner.give_back(withdrawn, moves)
        if freed == 0:
            self._pool.restore(len(withdrawn))
            self._rigid = not self._runner.compacts  # there it was room for the copy that lacked: tried again
            return
        self.shrinks_total += 1
        self._book.observe_device()
        _log.warning("kv_pool_shrunk", blocks=len(withdrawn), left=self._pool.total, freed_bytes=freed)

    def _grow_when_calm(self, level: float, now: float) -> None:
        if level >= self._gate.marks.low:
            self._calm_since = None
            return
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < CALM_SECONDS:
            return
        self._calm_since = now
        back = self._pool.restore(self._book.blocks_that_fit() - self._pool.total)
        if back:
            self._book.observe_device()
            _log.info("kv_pool_grown", blocks=len(back), total=self._pool.total)
