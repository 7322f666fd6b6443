"""The one place that decides where requests go and when: table, replicas' state, credits, limits, held requests.

Everything happens between two awaits of one event loop, so a slot is chosen and taken in one step. A request that
cannot go now waits in its deployment's :class:`~runtime.gateway.holding.Line`; whoever leaves hands the slot on.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway.asks import NOTHING, Ask, Outcome, Slot
from runtime.gateway.credits import Told
from runtime.gateway.holding import Line, Waiter
from runtime.gateway.metrics import Metrics
from runtime.gateway.pool import Blocked, Pool, not_ready
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.replicas import Replica
from runtime.gateway.settings import Settings
from runtime.gateway.table import Snapshot
from runtime.wire.routes import AdaptiveLimit, Ejection, EndpointEntry, Variant

log = logs.get(__name__)

TICK_SECONDS: Final = 0.1
_COLD_RETRY_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 2.0
_LEAST_HELD: Final = 32
_HELD_PER_RUNNING: Final = 8
_BUSY_RETRY_SECONDS: Final = 5.0
_MOST_RETRY_SECONDS: Final = 60.0


class _Held(Waiter):
    """A waiter with somebody behind it."""

    __slots__ = ("ask", "cold", "left", "slot")

    ask: Ask
    cold: bool
    left: bool  # it is out of the line and counted so
    slot: asyncio.Future[Slot]

    def refuse(self, refusal: Refusal) -> None:
        """Tell it, unless whoever waits has been cancelled: that shows here before it is heard there."""
        if not self.slot.done():
            self.slot.set_exception(refusal)


class Traffic:
    """State of all replicas and deployments of the table, and the requests held before them."""

    def __init__(
        self, settings: Settings, clock: Clock, metrics: Metrics, snapshot: Callable[[], Snapshot | None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._snapshot = snapshot
        self._random = random.Random()  # noqa: S311 - spreads traffic, protects nothing
        self.pool = Pool(settings, clock, metrics, snapshot=snapshot, wake=self._want_awake)
        self._lines: dict[str, Line] = {}
        self._held = 0
        self._generation = 0
        self.to_wake: dict[str, Replica] = {}  # asleep and wanted; whoever wakes them takes them out
        self.wake_wanted = asyncio.Event()

    # --- taking and giving back ---

    def draw(self) -> float:
        """A number in [0, 1) that picks a variant for a request without a sticky name."""
        return self._random.random()

    async def place(self, ask: Ask) -> Slot:
        """Take a slot for ``ask``, waiting for one where that makes sense. Cancelling leaves the line at once.

        Raises:
            Refusal: 503 when nothing can take it, 504 when its deadline passed while it waited.
        """
        found = self.pool.take(ask, self._lines)
        return found if isinstance(found, Slot) else await self._wait(ask, found)

    def release(self, slot: Slot, outcome: Outcome) -> None:
        """The request is over on that replica; once per slot, later calls do nothing."""
        if slot.released:
            return
        slot.released = True
        self.pool.give_back(slot, outcome)
        self.kick(slot.choice.variant.deployment_id)

    def may_retry(self, slot: Slot) -> bool:
        """Spend one retry of the deployment's budget; false when there is none left."""
        if slot.deployment.budget.spend():
            self._metrics.retried(slot.choice.variant.deployment_id)
            return True
        self._metrics.retry_refused(slot.choice.variant.deployment_id)
        return False

    def hear(self, replica: Replica, told: Told) -> None:
        """An engine said how it is; a larger grant lets held requests go."""
        before = replica.credits
        replica.hear(told, self._clock.monotonic())
        if replica.credits > before and self._lines:
            self.kick_all()

    # --- held requests ---

    def kick(self, deployment_id: str) -> None:
        """Let as many of a deployment's held requests go as can."""
        line = self._lines.get(deployment_id)
        while line and (held := line.first()) is not None:
            assert isinstance(held, _Held)
            if held.slot.done():  # cancelled just now: a slot given to it would be lost
                self._leave(deployment_id, line, held)
                continue
            try:
                found = self.pool.take(held.ask)
            except Refusal as refusal:
                self._leave(deployment_id, line, held)
                held.refuse(refusal)
                continue
            if isinstance(found, Blocked):
                break
            line.serve(held, self._clock.monotonic())
            self._leave(deployment_id, line, held)
            held.slot.set_result(found)

    def kick_all(self) -> None:
        """The same for every deployment."""
        for deployment_id in list(self._lines):
            self.kick(deployment_id)

    def tick(self) -> None:
        """What time alone brings: a newer table, deadlines of held requests, old states to forget."""
        snapshot = self._snapshot()
        if snapshot is not None and snapshot.generation != self._generation:
            self._generation = snapshot.generation
            self.pool.forget_gone(snapshot, self._lines)
        now = self._clock.monotonic()
        for deployment_id, line in list(self._lines.items()):
            for held in [held for held in line if held.until <= now]:
                assert isinstance(held, _Held)
                self._leave(deployment_id, line, held)
                held.refuse(self._too_late(held, now))
            if any(isinstance(held, _Held) and held.cold for held in line):
                continue  # what is coming has no pace
            for hopeless in line.hopeless(now):
                self._shed(deployment_id, line, hopeless)
        self.kick_all()

    async def keep_ticking(self) -> None:
        """Loop: :meth:`tick` often enough that nobody notices."""
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self.tick()

    async def _wait(self, ask: Ask, blocked: Blocked) -> Slot:
        now = self._clock.monotonic()
        line = self._lines.get(blocked.deployment_id)
        if line is None:
            line = Line(most=self._settings.hold_total, most_per_tenant=self._settings.hold_per_tenant)
        patience = self._settings.hold_cold_seconds if blocked.cold else self._settings.hold_seconds
        until = min(ask.until, now + patience)
        line.most = self._room(blocked)
        expected = None if blocked.cold else line.wait(ask.rank, now)
        if (expected is not None and now + expected > until) or not self._make_room(ask.rank):
            raise self._full(line, ask.rank, cold=blocked.cold)
        held = _Held(ask.tenant_id, rank=ask.rank, weight=ask.weight, cost=ask.prompt, since=now, until=until)
        held.ask, held.cold, held.left = ask, blocked.cold, False
        held.slot = asyncio.get_running_loop().create_future()
        shed = line.push(held)
        if shed is held:
            raise self._full(line, ask.rank, cold=blocked.cold)
        self._held += 1
        self._lines[blocked.deployment_id] = line
        if shed is not None:
            self._shed(blocked.deployment_id, line, shed)
        try:
            return await held.slot
        except asyncio.CancelledError:
            self._gone(blocked.deployment_id, line, held)
            raise
        finally:
            ask.held += self._clock.monotonic() - now
            self._metrics.held(blocked.deployment_id, self._clock.monotonic() - now)

    def _room(self, blocked: Blocked) -> int:
        """How many may wait: before engines that work, only so many as they get done in a bearable time."""
        deployment = self.pool.deployments.get(blocked.deployment_id)
        if blocked.cold or deployment is None:
            return self._settings.hold_total
        return min(self._settings.hold_total, max(_LEAST_HELD, _HELD_PER_RUNNING * deployment.in_flight))

    def _make_room(self, rank: int) -> bool:
        """With all the room taken, let one that is less critical than ``rank`` go, wherever it waits."""
        if self._held < self._settings.hold_total:
            return True
        found = [(victim, key, line) for key, line in self._lines.items() if (victim := line.least(rank)) is not None]
        if not found:
            return False
        victim, deployment_id, line = min(found, key=lambda each: each[0].rank)
        self._shed(deployment_id, line, victim)
        return True

    def _shed(self, deployment_id: str, line: Line, waiter: Waiter) -> None:
        assert isinstance(waiter, _Held)
        self._leave(deployment_id, line, waiter)
        waiter.refuse(self._full(line, waiter.rank, cold=waiter.cold))

    def _gone(self, deployment_id: str, line: Line, held: _Held) -> None:
        """The client left: out of the line; a slot that came at this very moment goes on to the next."""
        if not held.slot.done() or held.slot.cancelled():
            self._leave(deployment_id, line, held)
        elif held.slot.exception() is None:
            self.release(held.slot.result(), NOTHING)

    def _leave(self, deployment_id: str, line: Line, held: _Held) -> None:
        """Out of the line, whoever finds first that it has to go; counted once."""
        if not held.left:
            held.left = True
            line.remove(held)
            self._left(deployment_id, line)

    def _left(self, deployment_id: str, line: Line) -> None:
        self._held -= 1
        if not line and self._lines.get(deployment_id) is line:
            del self._lines[deployment_id]

    def _want_awake(self, replica: Replica) -> None:
        self.to_wake[replica.route.replica_id] = replica
        self.wake_wanted.set()

    def say_ejected(self, replica: Replica) -> None:
        """Count and log that ``replica`` was ejected by what it told."""
        found = self._find(replica.route.replica_id)
        self.pool.say_ejected(replica, found[1].deployment_id if found else "")

    def served_name(self, replica_id: str) -> str:
        """The name under which a replica of the table serves its model; "" for one that is not there."""
        found = self._find(replica_id)
        return found[0].name if found else ""

    def _find(self, replica_id: str) -> tuple[EndpointEntry, Variant] | None:
        snapshot = self._snapshot()
        for endpoint in snapshot.endpoints.values() if snapshot else ():
            for variant in endpoint.variants:
                if any(route.replica_id == replica_id for route in variant.replicas):
                    return endpoint, variant
        return None

    # --- what is shown ---

    def outstanding(self, replica_id: str) -> int:
        """Requests of this gateway that the replica has not finished."""
        state = self.pool.replicas.get(replica_id)
        return state.in_flight if state else 0

    def waiting(self, deployment_id: str) -> int:
        """Requests held before a deployment."""
        line = self._lines.get(deployment_id)
        return len(line) if line else 0

    @property
    def held(self) -> int:
        """Requests held here altogether."""
        return self._held

    def ejections(self) -> list[Ejection]:
        """Replicas that are ejected now."""
        return [
            Ejection(
                replica_id=state.route.replica_id,
                generation=state.route.generation,
                reason=state.health.reason,
                message=state.health.message,
                since=state.health.since,
            )
            for state in self.pool.replicas.values()
            if state.health.ejected
        ]

    def limits(self, *, every: bool = False) -> list[AdaptiveLimit]:
        """The limits of deployments whose endpoint promises a latency, or before which requests wait (or of all)."""
        return [
            AdaptiveLimit(
                deployment_id=key, limit=state.adaptive.limit, in_flight=state.in_flight, queued=self.waiting(key)
            )
            for key, state in self.pool.deployments.items()
            if every or state.adaptive.active or key in self._lines
        ]

    # --- refusals ---

    def _full(self, line: Line, rank: int, *, cold: bool) -> Refusal:
        wait = _COLD_RETRY_SECONDS if cold else line.wait(rank, self._clock.monotonic()) or _RETRY_SECONDS
        self._metrics.shed(rank)
        return Refusal(
            Reason.OVERLOADED,
            503,
            "More requests wait for this model than can be held. Please try again.",
            code="overloaded",
            retry_after=min(_MOST_RETRY_SECONDS, wait),
        )

    def _too_late(self, held: _Held, now: float) -> Refusal:
        if now >= held.ask.until:
            return Refusal(
                Reason.DEADLINE, 504, "The request's deadline passed before the model could take it.", code="deadline"
            )
        if held.cold:
            return not_ready(held.ask.endpoint)
        return Refusal(
            Reason.OVERLOADED,
            503,
            "Every replica of this model is busy, and stayed so. Please try again.",
            code="overloaded",
            retry_after=_BUSY_RETRY_SECONDS,
        )
