"""What a node says about its replicas, applied to their rows.

:func:`decide` is pure and knows the rules; :func:`observe_replicas` does what it says. A report is an observation,
never an order: it moves a replica between the states of running, and it proves that one is gone. It cannot
bring back what is being drained, and nothing of an older generation is heard.
"""

import dataclasses
import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.changes import Changes
from fleet.models import Node
from kernel import clock, machine, scope
from kernel.actors import Actor
from ledger.record import record_move
from serving.models import Replica
from serving.reconcile import cycle
from serving.states import OBSERVED, REPLICA, RUNNING_ON_NODE, SERVING, ReplicaState
from telemetry import series

MEASURE_EVERY: Final = datetime.timedelta(seconds=4)
FORGIVE_AFTER: Final = datetime.timedelta(minutes=5)
MAX_LOG_LINES: Final = 200
MAX_LOG_LINE: Final = 2000
MAX_MESSAGE: Final = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
    """One replica of a report. ``phase`` is a word of :class:`ReplicaState`; ``ledger``, ``stats``: plain JSON."""

    replica_id: uuid.UUID
    generation: int
    phase: str
    reason: str = ""
    message: str = ""
    progress: float | None = None
    address: str = ""
    restarts: int = 0
    ledger: Mapping[str, Any] | None = None
    stats: Mapping[str, Any] | None = None
    level: float | None = None
    log_tail: tuple[str, ...] = ()


class Effect(enum.StrEnum):
    """What an observation does to the row."""

    IGNORE = "ignore"
    MEASURE = "measure"  # only numbers and words change
    MOVE = "move"
    GONE = "gone"  # a draining replica has ended: stopped, partitions free
    GIVEN_UP = "given_up"  # a recalled replica has ended: partitions free, to be placed anew


@dataclasses.dataclass(frozen=True)
class Decision:
    """The effect, with the state of a move. ``reason`` and ``message`` are ``None`` when the row keeps its words."""

    effect: Effect
    to: ReplicaState | None = None
    reason: str | None = None
    message: str | None = None


_IGNORE: Final = Decision(Effect.IGNORE)
_MEASURE: Final = Decision(Effect.MEASURE)


def decide(row: Replica, seen: Observation | None, *, applied_generation: int) -> Decision:
    """Decide about ``row`` from what its node reports of it; ``None`` when the report does not mention it (pure)."""
    if seen is not None and seen.generation != row.generation:
        return _IGNORE
    state = ReplicaState(row.state)
    if seen is None or seen.phase == ReplicaState.STOPPED:
        return _absent(row, state, told=applied_generation >= row.node_generation, mentioned=seen is not None)
    if seen.phase not in OBSERVED or row.recalled or state not in RUNNING_ON_NODE:
        return _MEASURE
    to = ReplicaState(seen.phase)
    if to in SERVING and not seen.address:
        to, reason, message = (
            ReplicaState.WARMING,
            "NoAddress",
            "The engine is ready, but its node reports no address for it.",
        )
    else:
        reason, message = seen.reason, seen.message
    return Decision(Effect.MEASURE if to == state else Effect.MOVE, to, reason, message)


def _absent(row: Replica, state: ReplicaState, *, told: bool, mentioned: bool) -> Decision:
    """The node does not run it. That proves an end only if the node has read the order to end it."""
    if state == ReplicaState.DRAINING:
        return Decision(Effect.GONE) if told else _IGNORE
    if row.recalled:
        return Decision(Effect.GIVEN_UP) if told else _IGNORE
    if state in (ReplicaState.ASSIGNED, ReplicaState.FAILED) or state not in RUNNING_ON_NODE or not told:
        return _IGNORE
    said = "ended" if mentioned else "is not there any more"
    return Decision(Effect.MOVE, ReplicaState.FAILED, "EngineGone", f"The engine {said}; its node starts it again.")


def observe_replicas(
    node: Node, seen: Sequence[Observation], *, applied_generation: int, actor: Actor, changes: Changes
) -> None:
    """Apply a report's replicas to the rows of ``node``, in the caller's transaction. The caller announces."""
    by_id = {observation.replica_id: observation for observation in seen}
    points: list[series.Point] = []
    with scope.all_tenants():
        rows = list(
            Replica.objects.select_for_update(no_key=True)
            .filter(node=node)
            .exclude(state=ReplicaState.STOPPED)
            .order_by("id")
        )
        for row in rows:
            observation = by_id.get(row.id)
            decision = decide(row, observation, applied_generation=applied_generation)
            _apply(row, observation, decision, actor, changes)
            if observation is not None and decision.effect in (Effect.MEASURE, Effect.MOVE):
                points += _measure(row, observation, decision, changes)
    if points:
        series.write(points)


def _apply(row: Replica, seen: Observation | None, decision: Decision, actor: Actor, changes: Changes) -> None:
    if decision.effect is Effect.GONE:
        reason = seen.reason if seen is not None and seen.reason else "Stopped"
        cycle.gone(row, reason[:64], changes)
    elif decision.effect is Effect.GIVEN_UP:
        cycle.give_up(row, changes)
    elif decision.effect is Effect.MOVE and decision.to is not None:
        _move(row, decision.to, decision, seen, actor, changes)


def _move(
    row: Replica, to: ReplicaState, decision: Decision, seen: Observation | None, actor: Actor, changes: Changes
) -> None:
    fields: dict[str, Any] = {"progress": seen.progress if seen is not None else None}
    if to == ReplicaState.FAILED:
        fields |= {"failures": row.failures + 1, "address": ""}
    elif seen is not None:
        fields["address"] = seen.address[:255]
    if to == ReplicaState.READY:
        fields["ready_at"] = clock.now()
    shifts_traffic = row.state in SERVING or to in SERVING
    move = machine.move(
        row, REPLICA, to, reason=(decision.reason or "")[:64], message=(decision.message or "")[:MAX_MESSAGE], **fields
    )
    record_move(move, actor=actor, tenant_id=row.tenant_id, subject_label=row.short_id)
    if shifts_traffic:
        changes.routes()
    if to == ReplicaState.FAILED or to == ReplicaState.READY:
        changes.wake(cycle.WAKE)
    changes.tenant(row.tenant_id, "deployments", row.deployment_id)


def _measure(row: Replica, seen: Observation, decision: Decision, changes: Changes) -> list[series.Point]:
    """Write the words that changed at once, the numbers every few seconds; return a point for the charts."""
    now = clock.now()
    values: dict[str, Any] = {"progress": seen.progress, "restarts": max(seen.restarts, 0)}
    if decision.reason is not None and decision.message is not None:
        values |= {"reason": decision.reason[:64], "message": decision.message[:MAX_MESSAGE]}
    if row.state in SERVING and seen.address and seen.address[:255] != row.address:
        values["address"] = seen.address[:255]  # the engine was started again and listens elsewhere
        changes.routes()
    if seen.log_tail:
        values["log_tail"] = [line[:MAX_LOG_LINE] for line in seen.log_tail[-MAX_LOG_LINES:]]
    if row.failures and row.state == ReplicaState.READY and row.ready_at and now - row.ready_at >= FORGIVE_AFTER:
        values["failures"] = 0
    values = {name: value for name, value in values.items() if getattr(row, name) != value}
    points: list[series.Point] = []
    if (seen.stats or seen.ledger) and (row.observed_at is None or now - row.observed_at >= MEASURE_EVERY):
        values |= {"ledger": seen.ledger, "stats": seen.stats, "observed_at": now}
        if row.observed_at is None or series.interval_of(row.observed_at) != series.interval_of(now):
            points.append(_point(row.id, now, seen))
    if values:
        Replica.objects.filter(id=row.id).update(**values)
        changes.tenant(row.tenant_id, "deployments", row.deployment_id)
    return points


def _point(replica_id: uuid.UUID, now: datetime.datetime, seen: Observation) -> series.Point:
    stats, ledger = seen.stats or {}, seen.ledger or {}
    optional = ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "queue_p95_ms")
    return series.Point(
        replica_id=replica_id,
        at=now,
        requests_running=int(stats.get("num_requests_running", 0)),
        requests_waiting=int(stats.get("num_requests_waiting", 0)),
        requests_total=int(stats.get("requests_total", 0)),
        requests_failed_total=int(stats.get("requests_failed_total", 0)),
        prompt_tokens_total=int(stats.get("prompt_tokens_total", 0)),
        completion_tokens_total=int(stats.get("completion_tokens_total", 0)),
        tokens_per_second=float(stats.get("tokens_per_second", 0.0)),
        **{name: stats.get(name) for name in optional},
        level=seen.level,
        kv_used_bytes=int(ledger.get("kv_used_bytes", 0)),
        kv_total_bytes=int(ledger.get("kv_total_bytes", 0)),
    )
