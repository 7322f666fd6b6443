"""Reports that say what the last one said: any number of them, of as many nodes, is one transaction of few statements.

Most reports of a large fleet are such heartbeats, so their price decides how large it may be, and it falls when many
wait: a control plane that is behind catches up. Whatever else is wrong with a report that a node's own agent has sent,
the node is there: its lease is renewed here, before anybody decides whether there is time to read the rest.
"""

import dataclasses
import datetime
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q

from fleet import drift, pacing
from fleet.facts import NodeFacts
from fleet.models import Device, Node
from fleet.states import ALIVE, DeviceState
from kernel import clock

DETAILS_EVERY: Final = datetime.timedelta(seconds=5)
#: So many times :data:`DETAILS_EVERY` a report is looked at whole, whatever it says.
LOOK_EVERY: Final = 10


@dataclasses.dataclass(frozen=True)
class Beat:
    """A report as a heartbeat. ``digest`` is of all that does not drift; ``facts`` reads it whole."""

    boot_id: str
    agent_id: str
    digest: str
    sequence: int
    applied_generation: int
    health_sequence: int
    memory_available_bytes: int
    disk_free_bytes: int
    cpu_used: float | None
    facts: Callable[[], NodeFacts]


@dataclasses.dataclass(frozen=True)
class _Row:
    """What is known of a node, and whether ``other`` reasons ask for a look at its whole report."""

    id: uuid.UUID
    credential_digest: str
    boot_id: str
    agent_id: str
    settled: str
    sequence: int
    health_sequence: int
    details_at: datetime.datetime | None
    looked_at: datetime.datetime | None
    other: bool


_NOTE: Final = """
UPDATE fleet_node SET sequence = told.sequence, applied_generation = told.applied_generation,
    memory_available_bytes = told.memory_available_bytes, disk_free_bytes = told.disk_free_bytes,
    cpu_used = told.cpu_used, details_at = CASE WHEN told.due THEN %s ELSE details_at END,
    last_seen_at = %s, lease_expires_at = %s
FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::bool[])
    AS told(id, sequence, applied_generation, memory_available_bytes, disk_free_bytes, cpu_used, due)
WHERE fleet_node.id = told.id
"""


def details_every(pace: pacing.Pace) -> datetime.timedelta:
    """As many times longer than :data:`DETAILS_EVERY` as nodes report less often than a few would."""
    return DETAILS_EVERY * (pace.interval_seconds / settings.NODE_REPORT_INTERVAL_SECONDS)


#: Of nodes, by the digests of their credentials, those that have news of another kind.
News = Callable[[Mapping[str, uuid.UUID]], Collection[str]]


def note(
    beats: Mapping[str, Beat], pace: pacing.Pace, *, unless: Q | Exists | None = None, news: News | None = None
) -> dict[str, uuid.UUID]:
    """Apply the ``beats``, by the digests of their nodes' credentials; return the nodes of those that are done with.

    The others have to be looked at whole (:func:`fleet.observation.observe`): they say something new, something is not
    well with the node or its devices, it is time, ``unless`` holds of the node, ``news`` (asked once, under the locks)
    names it, it is unknown, or somebody else holds its row right now. Of these, too, the lease is renewed when they are
    newer than what is known and the same agent's since the same start of its machine. Works in a transaction of its
    own, or as a part of the caller's.
    """
    now = clock.now()
    with transaction.atomic(savepoint=False):
        rows = [row for row in _locked(beats, unless) if _is_newer(row, beats[row.credential_digest])]
        done = [row for row in rows if _says_the_same(row, beats[row.credential_digest], now, pace)]
        if done and news is not None:
            told = news({row.credential_digest: row.id for row in done})
            done = [row for row in done if row.credential_digest not in told]
        due = {row.id for row in done if _is_due(row.details_at, now, details_every(pace))}
        _write(done, beats, due, now, pace)
        drift.note(_drifted([row for row in done if row.id in due], beats))
        there = [row.id for row in rows if row not in done]
        if there:
            Node.objects.filter(id__in=there).update(last_seen_at=now, lease_expires_at=now + pace.lease)
    return {row.credential_digest: row.id for row in done}


def _locked(beats: Mapping[str, Beat], unless: Q | Exists | None) -> list[_Row]:
    """The nodes that answer, locked in one order; one that is locked already is left to who can wait for it."""
    sick = Device.objects.filter(node=OuterRef("pk")).exclude(state=DeviceState.HEALTHY)
    rows = Node.objects.select_for_update(no_key=True, skip_locked=True).filter(
        credential_digest__in=beats.keys(), state__in=ALIVE
    )
    names = [field.name for field in dataclasses.fields(_Row) if field.name != "other"]
    other = Q(Exists(sick)) if unless is None else Q(Exists(sick)) | Q(unless)
    return [_Row(*values) for values in rows.annotate(other=other).order_by("id").values_list(*names, "other")]


def _is_newer(row: _Row, beat: Beat) -> bool:
    return (row.boot_id, row.agent_id) == (beat.boot_id, beat.agent_id) and row.sequence < beat.sequence


def _says_the_same(row: _Row, beat: Beat, now: datetime.datetime, pace: pacing.Pace) -> bool:
    return (
        not row.other
        and row.settled == beat.digest
        and row.health_sequence >= beat.health_sequence
        and not _is_due(row.looked_at, now, details_every(pace) * LOOK_EVERY)
    )


def _is_due(last: datetime.datetime | None, now: datetime.datetime, every: datetime.timedelta) -> bool:
    return last is None or now - last >= every


def _write(
    done: Sequence[_Row],
    beats: Mapping[str, Beat],
    due: set[uuid.UUID],
    now: datetime.datetime,
    pace: pacing.Pace,
) -> None:
    if not done:
        return
    told = [beats[row.credential_digest] for row in done]
    columns: list[list[Any]] = [
        [row.id for row in done],
        [beat.sequence for beat in told],
        [beat.applied_generation for beat in told],
        [beat.memory_available_bytes for beat in told],
        [beat.disk_free_bytes for beat in told],
        [beat.cpu_used for beat in told],
        [row.id in due for row in done],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, [now, now, now + pace.lease, *columns])


def _drifted(rows: Sequence[_Row], beats: Mapping[str, Beat]) -> list[drift.Told]:
    told = [(row.id, beats[row.credential_digest].facts().devices) for row in rows]
    return [drift.Told(node_id, fact.uuid, drift.of(fact)) for node_id, facts in told for fact in facts]
