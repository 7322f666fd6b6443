"""Replicas that do what they did: of any number of nodes, only numbers are written, in as many statements as of one.

:func:`is_steady` is pure. Whatever else a report says of a replica is left to :mod:`serving.observing`.
"""

import datetime
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fleet.changes import Changes
from kernel import clock
from serving import numbers, peaks
from serving.models import Replica
from serving.observing import (
    FORGIVE_AFTER,
    MAX_MESSAGE,
    MEASURE_EVERY,
    Effect,
    Observation,
    decide,
    point_of,
)  # fmt: skip
from serving.states import SERVING, ReplicaState
from telemetry import series

_COLUMNS = (
    "tenant_id", "deployment_id", "node_id", "state", "generation", "node_generation", "recalled", "parallel",
    "reason", "message", "progress", "restarts", "address", "failures", "ready_at", "observed_at", "ledger",
)  # fmt: skip


class Seen(NamedTuple):
    """What a node says of its replicas."""

    replicas: Sequence[Observation]
    applied_generation: int


def unsteady(seen: Mapping[uuid.UUID, Seen], changes: Changes) -> set[uuid.UUID]:
    """Of the nodes in ``seen``, those whose replicas have news; the numbers of all others are written.

    In the caller's transaction, which has locked the nodes. A replica that somebody changes just now keeps its numbers:
    newer ones come. Needs a scope of all tenants.
    """
    now = clock.now()
    by_node: dict[uuid.UUID, list[Replica]] = {node_id: [] for node_id in seen}
    for row in Replica.objects.filter(node_id__in=seen).exclude(state=ReplicaState.STOPPED).only(*_COLUMNS):
        if row.node_id is not None:
            by_node[row.node_id].append(row)
    news = {node_id for node_id, told in seen.items() if not _all_steady(by_node[node_id], told, now)}
    due = [pair for node_id in seen if node_id not in news for pair in _due(by_node[node_id], seen[node_id], now)]
    numbers.note([numbers.Numbers(row.id, row.generation, each.ledger, each.stats) for row, each in due], now)
    points = [point_of(row.id, now, each) for row, each in due if _begins_interval(row, now)]
    if points:
        series.write(points)
    for row, _each in due:
        changes.tenant(row.tenant_id, "deployments", row.deployment_id)
    return news


def _all_steady(rows: Collection[Replica], told: Seen, now: datetime.datetime) -> bool:
    by_id = {each.replica_id: each for each in told.replicas}
    if by_id.keys() != {row.id for row in rows}:
        return False
    return all(is_steady(row, by_id[row.id], told.applied_generation, now) for row in rows)


def is_steady(row: Replica, seen: Observation, applied_generation: int, now: datetime.datetime) -> bool:
    """Whether nothing but numbers would change, and no measured peak (pure)."""
    decision = decide(row, seen, applied_generation=applied_generation)
    if decision.effect is not Effect.MEASURE or decision.to != row.state or row.parallel or row.observed_at is None:
        return False
    words = ((decision.reason or "")[:64], (decision.message or "")[:MAX_MESSAGE])
    said = (*words, seen.progress, max(seen.restarts, 0), seen.log_tail)
    if said != (row.reason, row.message, row.progress, row.restarts, ()):
        return False
    if decision.to not in SERVING:
        return True
    if seen.address[:255] != row.address or (seen.ledger and peaks.grows(seen.ledger, row.ledger)):
        return False
    return not (row.failures and row.ready_at and now - row.ready_at >= FORGIVE_AFTER)


def _due(rows: Collection[Replica], told: Seen, now: datetime.datetime) -> Iterator[tuple[Replica, Observation]]:
    by_id = {each.replica_id: each for each in told.replicas}
    for row in rows:
        each = by_id[row.id]
        if (each.stats or each.ledger) and (row.observed_at is None or now - row.observed_at >= MEASURE_EVERY):
            yield row, each


def _begins_interval(row: Replica, now: datetime.datetime) -> bool:
    return row.observed_at is None or series.interval_of(row.observed_at) != series.interval_of(now)
