"""When requests run out of time: deadlines, and waits for a first slot. Pure; no clock of its own."""

import enum
import heapq
from collections.abc import Iterator
from typing import Final

from runtime.engine.causal.jobs import Job

_SMALLEST_LIMIT: Final = 256


class Expiry(enum.Enum):
    """Which time ran out."""

    DEADLINE = "deadline"
    QUEUE = "queue"


class Expiries:
    """All times that may run out, the next one first. Entries of jobs that have ended are thrown out in time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job, Expiry]] = []
        self._count = 0
        self._limit = _SMALLEST_LIMIT

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, job: Job, at: float, what: Expiry) -> None:
        """Remember that ``job`` runs out of ``what`` at monotonic time ``at``."""
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, job, what))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _counts(entry[2], entry[3])]
            heapq.heapify(self._heap)
            self._limit = max(_SMALLEST_LIMIT, 2 * len(self._heap))

    def due(self, now: float) -> Iterator[tuple[Job, Expiry]]:
        """Take out what has run out by ``now``: a deadline at ``now`` has passed."""
        while self._heap and self._heap[0][0] <= now:
            _, _, job, what = heapq.heappop(self._heap)
            if _counts(job, what):
                yield job, what


def _counts(job: Job, what: Expiry) -> bool:
    return not job.ended and (what is Expiry.DEADLINE or not job.started)
