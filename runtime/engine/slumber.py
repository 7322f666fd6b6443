"""When an engine sleeps and when it wakes: after a silence or when told, and at the next request.

Everything is decided on the event loop: a request counts itself in before it looks, and nobody falls asleep while one
is counted, so that none meets an engine that has gone under its feet.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.steps import OutOfMemory

_log = logs.get(__name__)

_RETRY_AFTER_SECONDS: Final = 2
_LOOK_SECONDS: Final = 0.5


class Slumber:
    """The sleep of one engine. ``after_seconds`` of silence it sleeps by itself; 0 never."""

    def __init__(self, engine: CausalEngine, clock: Clock, *, after_seconds: float = 0.0) -> None:
        self._engine = engine
        self._clock = clock
        self._after = after_seconds
        self._users = 0
        self._used_at = clock.monotonic()
        self._turn = asyncio.Lock()
        self._waking: asyncio.Task[None] | None = None
        self.asleep = False
        self.sleeps = 0
        self.wakes = 0
        self.last_wake_ms: float | None = None

    @contextlib.asynccontextmanager
    async def awake(self, deadline: float | None) -> AsyncIterator[None]:
        """Hold the engine awake; wakes it first, within ``deadline`` on the monotonic clock.

        Raises:
            errors.DeadlineExceeded: it was not awake in time. It goes on waking for those who come later.
            errors.Unavailable: its device has no room for it now.
        """
        self._users += 1
        try:
            if self.asleep or self._turn.locked():
                await self._wait_awake(deadline)
            yield
        finally:
            self._users -= 1
            self._used_at = self._clock.monotonic()

    async def _wait_awake(self, deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(left):
                await self.wake()
        except TimeoutError:
            raise errors.DeadlineExceeded(
                "The deadline passed while the model was waking.", code="deadline_exceeded"
            ) from None

    async def wake(self) -> None:
        """Be awake; all who ask at one time share one waking, which none of them can cancel.

        Raises:
            errors.Unavailable: the device has no room.
        """
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._get_up())
        await asyncio.shield(self._waking)

    async def _get_up(self) -> None:
        async with self._turn:
            if not self.asleep:
                return
            began = self._clock.monotonic()
            try:
                await asyncio.wrap_future(self._engine.wake())
            except OutOfMemory as exc:
                _log.warning("wake_failed", error=str(exc)[:200])
                raise errors.Unavailable(
                    "The model sleeps and its device has no room to wake it now.",
                    code="wake_failed",
                    retry_after=_RETRY_AFTER_SECONDS,
                ) from exc
            self.asleep = False
            self.wakes += 1
            self._used_at = self._clock.monotonic()
            self.last_wake_ms = (self._used_at - began) * 1000.0
            _log.info("awake", milliseconds=round(self.last_wake_ms, 1))

    async def sleep(self) -> None:
        """Fall asleep now.

        Raises:
            errors.Conflict: somebody uses the engine.
        """
        async with self._turn:
            if self.asleep:
                return
            if self._users or self._engine.num_jobs:
                raise errors.Conflict("The engine has requests; it sleeps when they have ended.", code="engine_busy")
            try:
                await asyncio.wrap_future(self._engine.sleep())
            except errors.Overloaded as exc:
                raise errors.Conflict(exc.message, code="engine_busy") from exc
            self.asleep = True
            self.sleeps += 1
            _log.info("asleep")

    async def watch(self) -> None:
        """Fall asleep after each long silence, until cancelled."""
        while self._after > 0:
            await self._clock.sleep(min(_LOOK_SECONDS, self._after))
            if self.asleep or self._users or self._clock.monotonic() - self._used_at < self._after:
                continue
            try:
                await self.sleep()
            except errors.RequestError:  # somebody came first, or the engine is on its way out
                self._used_at = self._clock.monotonic()
            except (OSError, RuntimeError, MemoryError) as exc:
                _log.warning("sleep_failed", error=str(exc)[:200])
                self._used_at = self._clock.monotonic()
