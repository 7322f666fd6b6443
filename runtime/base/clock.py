"""Time is passed in: durations by the monotonic clock, dates by the wall clock."""

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    """What code that waits or measures is given."""

    def now(self) -> float:
        """Unix time in seconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` have passed on this clock."""


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(time.time)  # as they are: a request asks a dozen times
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that a test moves by hand; sleepers wake in order."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        """Move time forward and wake whoever is due."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
