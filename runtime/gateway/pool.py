"""Replicas and deployments as this gateway knows them, and the choice among them. One step takes a slot.

What decides is pure (:mod:`~runtime.gateway.balance`); here is the state that it decides on, and what follows from it.
"""

import itertools
from collections.abc import Callable, Container
from typing import Final

import msgspec

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway import balance, outliers, revisions
from runtime.gateway.asks import Ask, Outcome, Slot
from runtime.gateway.balance import Choice, Work
from runtime.gateway.metrics import Metrics
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.replicas import Deployment, Replica
from runtime.gateway.settings import Settings
from runtime.gateway.table import Snapshot
from runtime.wire.routes import EndpointEntry, ReplicaRoute, Variant

log = logs.get(__name__)

_MOST_CHUNKS: Final = 1_000_000  # of all replicas together
_LEAST_CHUNKS: Final = 256


class Blocked(msgspec.Struct, frozen=True):
    """No slot now, but one may come: where to wait, and for what."""

    deployment_id: str
    cold: bool


class Pool:
    """``wake`` is called with a replica that is asleep and wanted; ``snapshot`` gives the newest table."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        *,
        snapshot: Callable[[], Snapshot | None],
        wake: Callable[[Replica], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._snapshot = snapshot
        self._wake = wake
        self._turns = itertools.count()
        self.on_change: Callable[[], None] = _nothing  # a replica was ejected or readmitted
        self.replicas: dict[str, Replica] = {}
        self.deployments: dict[str, Deployment] = {}

    def take(self, ask: Ask, lines: Container[str] = ()) -> Slot | Blocked:
        """Take a slot now, or say where to wait; nobody passes those who wait in ``lines`` (deployment ids).

        Raises:
            Refusal: nothing can take it, now or soon.
        """
        now = self._clock.monotonic()
        variant = self._variant(ask, now)
        deployment = self._deployment(variant, ask.endpoint)
        if not variant.replicas:
            return Blocked(variant.deployment_id, cold=True)
        if variant.deployment_id in lines:
            return Blocked(variant.deployment_id, cold=False)
        routes, states, asleep = self._able(variant, ask, now)
        if not states or not deployment.room:
            return Blocked(variant.deployment_id, cold=asleep)
        keys = ask.keys() if len(variant.replicas) > 1 else ()
        work = Work(ask.prompt, deployment.completion, keys)
        route, cached = balance.pick_replica(routes, states, work, now=now, tie=next(self._turns))
        replica = self.replicas[route.replica_id]
        cost = float(work.prompt - cached + work.completion)
        replica.take(cost, now)
        if keys:
            replica.index.add(keys)
        deployment.in_flight += 1
        deployment.breaker.took()
        if not ask.tried:
            deployment.budget.earn()
        return Slot(Choice(variant, route), replica, deployment, cost)

    def give_back(self, slot: Slot, outcome: Outcome) -> None:
        """The request is over on that replica: count it, and learn what its use has shown. Once per slot."""
        now = self._clock.monotonic()
        replica, deployment = slot.replica, slot.deployment
        in_flight = deployment.in_flight
        replica.give_back(slot.work)
        deployment.in_flight -= 1
        if outcome.broken or outcome.error:
            self._failed(slot, now, outcome)
        elif outcome.e2e_ms is not None:
            replica.health.succeeded(now)
            deployment.breaker.succeeded()
            deployment.learn(outcome.completion)
            deployment.adaptive.observe(
                now, ttft_ms=outcome.ttft_ms, itl_ms=outcome.itl_ms, e2e_ms=outcome.e2e_ms, in_flight=in_flight
            )
        else:
            deployment.breaker.neither()

    def _failed(self, slot: Slot, now: float, outcome: Outcome) -> None:
        deployment_id = slot.choice.variant.deployment_id
        if slot.replica.health.failed(now, self._clock.now(), unreached=outcome.unreached):
            self.say_ejected(slot.replica, deployment_id)
        if outcome.broken and slot.deployment.breaker.failed(now):
            self._metrics.opened(deployment_id)
            log.error("deployment cannot be reached; asking less often", deployment=deployment_id)
        elif not outcome.broken:
            slot.deployment.breaker.neither()

    def say_ejected(self, replica: Replica, deployment_id: str) -> None:
        """Count and log that ``replica`` gets nothing from now on."""
        health = replica.health
        self._metrics.ejected(deployment_id, health.reason)
        log.error("replica ejected", replica=replica.route.replica_id, reason=health.reason, message=health.message)
        self.on_change()

    def forget_gone(self, snapshot: Snapshot, lines: Container[str]) -> None:
        """Drop the state of what left the table and has nothing under way."""
        self.replicas = {
            key: state for key, state in self.replicas.items() if state.in_flight or key in snapshot.replica_ids
        }
        live = {variant.deployment_id for endpoint in snapshot.endpoints.values() for variant in endpoint.variants}
        self.deployments = {
            key: state for key, state in self.deployments.items() if state.in_flight or key in live or key in lines
        }
        self._metrics.forget_deployments(frozenset(live))

    # --- choosing ---

    def _variant(self, ask: Ask, now: float) -> Variant:
        """The variant for ``ask``, by the newest table.

        Raises:
            Refusal: none of those that take traffic can serve, now or soon.
        """
        snapshot = self._snapshot()
        if snapshot is not None:
            ask.endpoint = snapshot.endpoints.get(ask.endpoint.id, ask.endpoint)
        if ask.picked:
            return self._picked(ask, now)
        variants = [variant for variant in ask.endpoint.variants if variant.weight > 0]
        able = [variant for variant in variants if self._untried(variant, ask)]
        pauses = []
        while able:
            variant = self._pick(able, ask)
            state = self.deployments.get(variant.deployment_id)
            pause = state.breaker.wait(now) if state else 0.0
            if not pause:
                return variant
            pauses.append(pause)
            able.remove(variant)
        if pauses:
            raise _circuit_open(min(pauses))
        coming = [variant for variant in variants if variant.coming > 0 and not variant.replicas]
        if coming and not ask.tried:
            return self._pick(coming, ask)
        raise unreachable() if ask.tried else not_ready(ask.endpoint)

    def _picked(self, ask: Ask, now: float) -> Variant:
        """The variant that ``ask`` names, whatever its weight; nobody stands in for it.

        Raises:
            Refusal: it cannot serve now.
        """
        named = next((each for each in ask.endpoint.variants if each.deployment_id == ask.picked), None)
        if named is None or not named.replicas:
            raise revisions.not_ready(named)
        if not self._untried(named, ask):
            raise unreachable()
        state = self.deployments.get(named.deployment_id)
        if state and (pause := state.breaker.wait(now)):
            raise _circuit_open(pause)
        return named

    def _pick(self, variants: list[Variant], ask: Ask) -> Variant:
        if len(variants) == 1:
            return variants[0]
        return balance.stick(variants, ask.sticky) if ask.sticky else balance.pick_variant(variants, ask.draw)

    def _untried(self, variant: Variant, ask: Ask) -> bool:
        if not ask.tried:
            return bool(variant.replicas)
        return any(route.replica_id not in ask.tried for route in variant.replicas)

    def _able(self, variant: Variant, ask: Ask, now: float) -> tuple[list[ReplicaRoute], list[Replica], bool]:
        """Replicas that may be sent ``ask`` now, and whether one is asleep that could take it.

        Raises:
            Refusal: it was tried where it could be.
        """
        states = self._states(variant, now)
        routes: list[ReplicaRoute] = []
        able: list[Replica] = []
        sleeper: Replica | None = None
        usable = False
        for route, state in zip(variant.replicas, states, strict=True):
            if route.replica_id in ask.tried or not _may_be_used(state, states):
                continue
            usable = True
            if not state.awake:
                sleeper = sleeper or state
            elif state.room(now):
                routes.append(route)
                able.append(state)
        if ask.tried and not usable:
            raise unreachable()
        if sleeper is not None and not able:
            self._wake(sleeper)
        return routes, able, sleeper is not None

    def _states(self, variant: Variant, now: float) -> list[Replica]:
        known = self.replicas
        states: list[Replica] = []
        for route in variant.replicas:
            state = known.get(route.replica_id)
            if state is None or state.route is not route:
                state = self._meet(variant, route, state, now)
            states.append(state)
        return states

    def _meet(self, variant: Variant, route: ReplicaRoute, state: Replica | None, now: float) -> Replica:
        """The state of a replica that is new, or whose route was written anew."""
        if state is not None and state.route.generation == route.generation and state.route.url == route.url:
            if state.route.asleep != route.asleep:
                state.awake = not route.asleep
            state.route = route
            return state
        settings = self._settings
        chunks = max(_LEAST_CHUNKS, min(settings.affinity_chunks, _MOST_CHUNKS // (len(self.replicas) + 1)))
        new = Replica(route, chunks=chunks, credits=settings.assumed_credits)
        peers = [peer for other in variant.replicas if (peer := self.replicas.get(other.replica_id)) and peer != state]
        if peers:
            new.catch_up(sum(peer.recent(now) for peer in peers) / len(peers), now)
        self.replicas[route.replica_id] = new
        return new

    def _deployment(self, variant: Variant, endpoint: EndpointEntry) -> Deployment:
        state = self.deployments.get(variant.deployment_id)
        if state is None:
            state = self.deployments[variant.deployment_id] = Deployment(endpoint.slo)
        elif state.adaptive.slo is not endpoint.slo:
            state.promise(endpoint.slo)
        return state


def _nothing() -> None:
    """Nobody asked to be told."""


def _may_be_used(state: Replica, states: list[Replica]) -> bool:
    """Ejected replicas are used when most are ejected: the fault is hardly theirs then.

    One that does not compute is not, and its requests wait; one that cannot be reached is when none can be: that costs
    little to see.
    """
    health = state.health
    if not health.ejected:
        return True
    bad = sum(other.health.ejected for other in states)
    if bad <= outliers.MOST_EJECTED * len(states):
        return False
    if not health.blocked:
        return True
    return health.reason == outliers.UNREACHABLE and all(other.health.blocked for other in states)


def unreachable() -> Refusal:
    """Every replica that could be tried was."""
    return Refusal(
        Reason.UPSTREAM_UNREACHABLE, 503, "No replica of this model could be reached. Please try again.", retry_after=2
    )


def _circuit_open(pause: float) -> Refusal:
    return Refusal(
        Reason.CIRCUIT_OPEN,
        503,
        "The replicas of this model do not answer; it is being tried again. Please come back.",
        code="model_not_ready",
        param="model",
        retry_after=pause,
    )


def not_ready(endpoint: EndpointEntry) -> Refusal:
    """Nothing serves it, in the words of its state."""
    state = endpoint.state or "No replica of this model is ready."
    return Refusal(Reason.NOT_READY, 503, state, code="model_not_ready", param="model", retry_after=5)
