"""Background work: loops that survive their errors, and tasks that a shutdown waits for."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from runtime.base import logs
from runtime.base.clock import Clock

log = logs.get(__name__)

FIRST_SECONDS: Final = 0.5


class Backoff:
    """Growing, jittered pauses between tries; ``most`` caps them."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._next = FIRST_SECONDS

    def reset(self) -> None:
        """The last try worked."""
        self._next = FIRST_SECONDS

    def pause(self) -> float:
        """Seconds to wait now."""
        seconds = self._next * random.uniform(0.75, 1.25)  # noqa: S311 - spreads retries, protects nothing
        self._next = min(self._most, self._next * 2)
        return seconds


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when ``event`` is set (and clear it), or after ``seconds``."""
    # Not asyncio.wait_for: on this Python it can swallow a cancellation, and a loop would outlive its stop.
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()


class Background:
    """Owns tasks, so that none is lost to the garbage collector or to a shutdown."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loops: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop`` until :meth:`stop`, starting it again when it fails."""
        self._loops.add(asyncio.create_task(self._supervise(name, loop), name=name))

    async def complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for ``work``, which runs to its end even when the waiting is cancelled."""
        task = asyncio.create_task(work)
        self._own(task)
        await asyncio.shield(task)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end although nobody waits for it; :meth:`finish` does."""
        self._own(asyncio.create_task(work))

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def finish(self, seconds: float) -> None:
        """Wait up to ``seconds`` for what was spawned."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)

    async def stop(self) -> None:
        """Cancel the loops; one that swallows it is cancelled again."""
        while self._loops:
            for task in self._loops:
                task.cancel()
            _, self._loops = await asyncio.wait(self._loops, timeout=1.0)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)

    async def _supervise(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(30.0)
        while True:
            try:
                await loop()
                backoff.reset()
            except Exception:
                # Boundary: a defect in one loop must not end it silently; it is recorded and the loop starts again.
                log.exception("loop failed; starting it again", loop=name)
            await self._clock.sleep(backoff.pause())
