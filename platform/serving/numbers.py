"""The numbers that engines report, of any number of replicas written in one statement."""

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db import connection

#: Rows are locked in one order, and none is waited for: the same numbers come again, newer.
_NOTE: Final = """
WITH told AS (
    SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::text[], %s::text[]) AS t(id, generation, ledger, stats)
), locked AS (
    SELECT told.* FROM serving_replica replica
    JOIN told ON told.id = replica.id AND told.generation = replica.generation
    ORDER BY replica.id FOR NO KEY UPDATE OF replica SKIP LOCKED
)
UPDATE serving_replica SET ledger = locked.ledger::jsonb, stats = locked.stats::jsonb, observed_at = %s
FROM locked WHERE serving_replica.id = locked.id
"""


class Numbers(NamedTuple):
    """What a replica's engine holds of memory, and how busy it is: plain JSON, ``None`` where it does not say."""

    replica_id: uuid.UUID
    generation: int
    ledger: Mapping[str, Any] | None
    stats: Mapping[str, Any] | None


def note(told: Sequence[Numbers], at: datetime.datetime) -> None:
    """Write what was reported ``at``; a replica that is on another generation by now is left alone."""
    if not told:
        return
    ids, generations = [each.replica_id for each in told], [each.generation for each in told]
    ledgers, stats = [_text(each.ledger) for each in told], [_text(each.stats) for each in told]
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, [ids, generations, ledgers, stats, at])


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)
