"""Looks after replicas: asks how they are, ejects those that stand still, tries ejected ones, wakes sleeping ones.

Only replicas that matter now are asked: those with requests of ours, all while requests are held, and ejected ones.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway import credits, outliers
from runtime.gateway.loops import Background
from runtime.gateway.replicas import Replica
from runtime.gateway.settings import Settings
from runtime.gateway.traffic import Traffic
from runtime.gateway.upstream import BROKEN, Engines
from runtime.wire.inference import EngineLoad
from runtime.wire.reports import Phase

log = logs.get(__name__)

_MOST_AT_ONCE: Final = 16
_WAKE_PAUSE: Final = 5.0  # seconds before a replica that did not wake is asked again


class Watch:
    """Use :meth:`start`; :meth:`look` is one round."""

    def __init__(
        self, settings: Settings, clock: Clock, engines: Engines, traffic: Traffic, *, gateway_id: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._engines = engines
        self._traffic = traffic
        self._gateway_id = gateway_id
        self._busy: set[str] = set()  # replicas that are being tried or woken
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, background: Background) -> None:
        """Start the loops."""
        background.keep("watch", self._keep_looking)
        background.keep("wake", self._keep_waking)

    async def look(self) -> None:
        """Ask every replica that matters how it is, and start the probes that are due."""
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)

        async def ask(replica: Replica) -> None:
            async with at_once:
                await self._ask(replica)

        # An engine that has no load path is only tried.
        wanted = [replica for replica in self._traffic.pool.replicas.values() if self._matters(replica)]
        await asyncio.gather(*(ask(replica) for replica in wanted if replica.tells_load))
        now = self._clock.monotonic()
        for replica in wanted:
            if replica.health.ejected and replica.health.until <= now:
                self._do(replica, self._probe(replica))

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(self._settings.load_poll_seconds)
            await self.look()

    async def _keep_waking(self) -> None:
        while True:
            await self._traffic.wake_wanted.wait()
            self._traffic.wake_wanted.clear()
            wanted, self._traffic.to_wake = self._traffic.to_wake, {}
            for replica in wanted.values():
                self._do(replica, self._wake(replica))

    def _matters(self, replica: Replica) -> bool:
        return replica.health.ejected or (replica.tells_load and bool(replica.in_flight or self._traffic.held))

    def _do(self, replica: Replica, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the loops, but only one piece of work per replica."""
        replica_id = replica.route.replica_id
        if replica_id in self._busy:
            work.close()
            return
        self._busy.add(replica_id)
        task = asyncio.create_task(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._busy.discard(replica_id)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("looking after a replica failed", replica=replica_id, exc_info=error)

        task.add_done_callback(done)

    # --- load ---

    async def _ask(self, replica: Replica) -> None:
        try:
            load = await self._engines.load(replica.route, self._gateway_id())
        except BROKEN as exc:
            silent = replica.stuck.silent(self._clock.monotonic())
            if silent >= self._settings.stuck_seconds and replica.in_flight:
                self._eject(replica, outliers.UNRESPONSIVE, f"It has not answered for {silent:.0f} s.")
            log.debug("load not told", replica=replica.route.replica_id, error=str(exc))
            return
        if load is None:
            replica.tells_load = False
            return
        self._take(replica, load)

    def _take(self, replica: Replica, load: EngineLoad) -> None:
        now = self._clock.monotonic()
        if load.phase in (Phase.READY, Phase.DEGRADED):
            replica.awake = True
        elif load.phase is Phase.ASLEEP:
            replica.awake = False
        self._traffic.hear(replica, credits.of_load(load))
        busy = load.running > 0 or load.waiting > 0
        still = replica.stuck.saw(now, tokens=load.tokens_total, busy=busy)
        if still >= self._settings.stuck_seconds:
            text = (
                f"It has work ({load.running} running, {load.waiting} waiting) and computed nothing for {still:.0f} s."
            )
            self._eject(replica, outliers.STUCK, text)

    def _eject(self, replica: Replica, reason: str, message: str) -> None:
        if replica.health.ejected:
            return
        replica.health.eject(reason, message, self._clock.monotonic(), self._clock.now())
        self._traffic.say_ejected(replica)

    # --- probes and waking ---

    async def _probe(self, replica: Replica) -> None:
        model = self._traffic.served_name(replica.route.replica_id)
        if not model:
            return
        good = await self._engines.probe(replica.route, model, f"probe-{uuid.uuid4().hex}")
        replica.health.probed(good, self._clock.monotonic(), self._clock.now())
        if good:
            log.info("replica readmitted", replica=replica.route.replica_id)
            self._traffic.pool.on_change()
            self._traffic.kick_all()

    async def _wake(self, replica: Replica) -> None:
        until = self._clock.monotonic() + self._settings.wake_timeout_seconds
        try:
            await self._engines.wake(replica.route)
            while not replica.awake and self._clock.monotonic() < until:
                load = await self._engines.load(replica.route, self._gateway_id())
                if load is None:
                    replica.awake = True  # it answered the call and says no more
                else:
                    self._take(replica, load)
                if not replica.awake:
                    await self._clock.sleep(0.1)
        except BROKEN as exc:
            log.warning("replica not woken", replica=replica.route.replica_id, error=str(exc))
        if replica.awake:
            self._traffic.kick_all()
        else:
            await self._clock.sleep(_WAKE_PAUSE)
