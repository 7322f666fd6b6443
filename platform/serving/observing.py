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
from typing import Any, Final, NamedTuple

from django.db.models import Q

from fleet.changes import Changes
from fleet.models import Node
from fleet.states import ALIVE
from kernel import clock, machine, scope
from kernel.actors import Actor
from ledger.record import record_move
from serving import members, numbers, peaks
from serving.models import Member, Replica
from serving.reconcile import cycle
from serving.states import OBSERVED, REPLICA, RUNNING_ON_NODE, SERVING, STARTING, ReplicaState
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
    """The effect, with the state of a move. ``reason`` and ``message`` are ``None`` when the row keeps its words.

    ``failed_on`` is the node whose ranks failed, where it is not that of the first rank.
    """

    effect: Effect
    to: ReplicaState | None = None
    reason: str | None = None
    message: str | None = None
    failed_on: uuid.UUID | None = None


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


class Told(NamedTuple):
    """What a report says in numbers, to be written together: for pages, for the planner, and for charts."""

    numbers: list[numbers.Numbers]
    peaks: list[peaks.Seen]
    points: list[series.Point]


def observe_replicas(
    node: Node, seen: Sequence[Observation], *, applied_generation: int, actor: Actor, changes: Changes
) -> None:
    """Apply a report's replicas to the rows of ``node``, in the caller's transaction. The caller announces."""
    by_id = {observation.replica_id: observation for observation in seen}
    told = Told([], [], [])
    with scope.all_tenants():
        beside = Member.objects.filter(node=node).values("replica_id")
        rows = list(
            Replica.objects.select_for_update(no_key=True)
            .filter(Q(node=node) | Q(id__in=beside))
            .exclude(state=ReplicaState.STOPPED)
            .defer("log_tail", "explanation")  # long, and seldom asked for
            .order_by("id")
        )
        together = _members([row.id for row in rows if row.parallel])
        for row in rows:
            observation = by_id.get(row.id)
            if row.node_id != node.id:
                _follow(row, node, observation, together[row.id], applied_generation, changes)
                # the first rank's node says the rest; that it serves no more is not left waiting for that
                _apply(row, None, joined(_as_it_is(row), row, members.others(row, together[row.id])), actor, changes)
                continue
            decision = decide(row, observation, applied_generation=applied_generation)
            if row.id in together:
                decision = joined(decision, row, members.others(row, together[row.id]))
            _apply(row, observation, decision, actor, changes)
            if observation is not None and decision.effect in (Effect.MEASURE, Effect.MOVE):
                _measure(row, observation, decision, changes, told)
        numbers.note(told.numbers, clock.now())
        peaks.note(told.peaks)
    if told.points:
        series.write(told.points)


def _members(replica_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[Member]]:
    """The nodes of those that have several."""
    found: dict[uuid.UUID, list[Member]] = {}
    if replica_ids:
        for member in Member.objects.select_related("node").filter(replica_id__in=replica_ids).order_by("id"):
            found.setdefault(member.replica_id, []).append(member)
    return found


def _as_it_is(row: Replica) -> Decision:
    return Decision(Effect.MEASURE, ReplicaState(row.state))


def joined(decision: Decision, row: Replica, others: Sequence[Member]) -> Decision:
    """What the first node's report means once what the ``others`` said of their ranks is counted in (pure).

    It serves only while all of them do, and what was unreachable stays so while one of its nodes is silent. While the
    first ranks get ready, or wait for the others, it has failed where those have.
    """
    failed = next((member for member in others if member.phase == ReplicaState.FAILED), None)
    starts = decision.to in STARTING and not row.recalled
    if decision.to not in SERVING and not (failed is not None and starts):
        return decision
    silent = next((member for member in others if not member.gone and member.node.state not in ALIVE), None)
    if silent is not None:
        return (
            _MEASURE if row.state == ReplicaState.UNREACHABLE else dataclasses.replace(decision, effect=Effect.MEASURE)
        )
    waiting = next((member for member in others if member.phase not in SERVING), None)
    if failed is not None:
        to, reason = ReplicaState.FAILED, "RankFailed"
        message = f"Ranks on node {failed.node.name} failed: {failed.message or failed.reason or 'no details'}"
    elif waiting is not None:
        to, reason = ReplicaState.WARMING, "WaitingForRanks"
        message = f"Ranks on node {waiting.node.name} are not ready yet ({waiting.phase or 'not started'})."
    else:
        return decision
    effect = Effect.MEASURE if to == row.state else Effect.MOVE
    return Decision(effect, to, reason, message, failed.node_id if failed is not None else None)


def _follow(
    row: Replica,
    node: Node,
    seen: Observation | None,
    parts: Sequence[Member],
    applied_generation: int,
    changes: Changes,
) -> None:
    """A node that runs ranks beside the first one's: note what it says, or that it has proved their end."""
    member = next(part for part in parts if part.node_id == node.id)
    if member.gone or (seen is not None and seen.generation != row.generation):
        return
    told = applied_generation >= member.node_generation
    if seen is None or seen.phase == ReplicaState.STOPPED:
        if not told:
            return
        if row.state == ReplicaState.DRAINING or row.recalled:
            changes.node(node.id)
            if members.ended(row, node.id):
                _all_ended(row, changes)
        elif member.phase:
            _say(member, ReplicaState.FAILED, "EngineGone", "The engine has ended; its node starts it again.")
        return
    if seen.phase in OBSERVED:
        _say(member, seen.phase, seen.reason, seen.message)


def _say(member: Member, phase: str, reason: str, message: str) -> None:
    now = (phase, reason[:64], message[:MAX_MESSAGE])
    if (member.phase, member.reason, member.message) != now:
        member.phase, member.reason, member.message = now
        member.save(update_fields=["phase", "reason", "message"])


def _all_ended(row: Replica, changes: Changes) -> None:
    """Every node has proved the end of its ranks."""
    if row.state == ReplicaState.DRAINING:
        cycle.gone(row, "Stopped", changes)
    else:
        cycle.give_up(row, changes)


def _apply(row: Replica, seen: Observation | None, decision: Decision, actor: Actor, changes: Changes) -> None:
    ends = decision.effect in (Effect.GONE, Effect.GIVEN_UP)
    if ends and row.parallel and row.node_id is not None and not members.ended(row, row.node_id):
        changes.node(row.node_id)
        return  # other nodes have not proved yet that their ranks have ended
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
        if decision.failed_on is not None:
            fields["explanation"] = row.explanation | {cycle.FAILED_ON: str(decision.failed_on)}
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


def _measure(row: Replica, seen: Observation, decision: Decision, changes: Changes, told: Told) -> None:
    """Write the words that changed at once; the numbers go to ``told`` every few seconds."""
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
    if values:
        Replica.objects.filter(id=row.id).update(**values)
    if (seen.stats or seen.ledger) and (row.observed_at is None or now - row.observed_at >= MEASURE_EVERY):
        if seen.ledger and row.state in SERVING:
            larger = peaks.look(row, seen.ledger, row.ledger if row.observed_at is not None else None)
            told.peaks.extend([larger] if larger else [])
        told.numbers.append(numbers.Numbers(row.id, row.generation, seen.ledger, seen.stats))
        if row.observed_at is None or series.interval_of(row.observed_at) != series.interval_of(now):
            told.points.append(point_of(row.id, now, seen))
        values["observed_at"] = now
    if values:
        changes.tenant(row.tenant_id, "deployments", row.deployment_id)


def point_of(replica_id: uuid.UUID, now: datetime.datetime, seen: Observation) -> series.Point:
    """What charts keep of an observation (pure)."""
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
