"""Booking: records and hourly sums in one statement, so that a record is in the books once, wholly or not at all."""

import dataclasses
import datetime
import hashlib
import json
import logging
import uuid
from collections.abc import Sequence
from typing import Any, Final

from django.db import connection, transaction

from kernel import clock
from kernel.conflicts import retry_on_conflict
from ledger import hints
from metering import devicehours, prices, reading
from metering.models import UnbookedRecord
from runtime.wire import codec
from runtime.wire import usage as wire
from telemetry import outcomes
from tenants import identity

logger = logging.getLogger(__name__)

# Bookings hold it shared, a recount alone: a recount never overwrites what was booked while it counted.
BOOKS_LOCK: Final = 7_020_260_001

_COLUMNS: Final = {
    "id": "text",
    "request_id": "text",
    "tenant_id": "uuid",
    "owner_tenant_id": "uuid",
    "key_id": "uuid",
    "endpoint_id": "uuid",
    "deployment_id": "uuid",
    "revision_id": "uuid",
    "replica_id": "uuid",
    "operation": "text",
    "status": "smallint",
    "outcome": "text",
    "started_at": "timestamptz",
    "duration_ms": "float8",
    "ttft_ms": "float8",
    "prompt_tokens": "bigint",
    "cached_tokens": "bigint",
    "completion_tokens": "bigint",
    "cost": "numeric",
    "billable": "boolean",
}

GROUP: Final = "tenant_id, date_trunc('hour', started_at, 'UTC'), owner_tenant_id, key_id, endpoint_id, revision_id"
SUMS: Final = """
    count(*),
    count(*) FILTER (WHERE outcome = 'error'),
    count(*) FILTER (WHERE outcome = 'aborted'),
    count(*) FILTER (WHERE NOT billable),
    coalesce(sum(prompt_tokens) FILTER (WHERE billable), 0),
    coalesce(sum(cached_tokens) FILTER (WHERE billable), 0),
    coalesce(sum(completion_tokens) FILTER (WHERE billable), 0),
    coalesce(sum(cost) FILTER (WHERE billable), 0),
    sum(duration_ms),
    coalesce(sum(prompt_tokens) FILTER (WHERE NOT billable), 0),
    coalesce(sum(completion_tokens) FILTER (WHERE NOT billable), 0)
"""
GROUP_COLUMNS: Final = "tenant_id, hour, owner_tenant_id, key_id, endpoint_id, revision_id"
SUM_COLUMNS: Final = (
    "requests",
    "errors",
    "aborted",
    "unbilled",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost",
    "duration_ms",
    "unbilled_prompt_tokens",
    "unbilled_completion_tokens",
)

_GIVEN: Final = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())

# Records are written in the order of their ids, sums in the order of their group: two deliveries of the same records,
# or of the same hour, wait for each other, never in a circle.
_BOOK: Final = f"""
    WITH fresh AS (
        INSERT INTO metering_usagerecord ({", ".join(_COLUMNS)}, gateway_id, booked_at)
        SELECT {", ".join(_COLUMNS)}, %(gateway_id)s::uuid, %(now)s::timestamptz
        FROM jsonb_to_recordset(%(rows)s::jsonb) AS given({_GIVEN}) ORDER BY id
        ON CONFLICT (id) DO NOTHING
        RETURNING *
    ), summed AS (
        INSERT INTO metering_usagehour ({GROUP_COLUMNS}, {", ".join(SUM_COLUMNS)})
        SELECT {GROUP}, {SUMS} FROM fresh GROUP BY {GROUP} ORDER BY {GROUP}
        ON CONFLICT ({GROUP_COLUMNS}) DO UPDATE
        SET {", ".join(f"{name} = metering_usagehour.{name} + EXCLUDED.{name}" for name in SUM_COLUMNS)}
        RETURNING tenant_id
    )
    SELECT coalesce((SELECT array_agg(id) FROM fresh), '{{}}'),
        coalesce((SELECT array_agg(DISTINCT tenant_id) FROM summed), '{{}}')
"""  # noqa: S608  (column names of this module, no input)


@dataclasses.dataclass(frozen=True)
class Booked:
    """What became of a batch: ``accepted`` are new, ``duplicates`` were booked before, ``refused`` make no sense."""

    accepted: int
    duplicates: int
    refused: int


def book(*, gateway_id: uuid.UUID, records: Sequence[wire.UsageRecord]) -> Booked:
    """Book ``records``; the same record again changes nothing. All of them are safe once this returns.

    A record that cannot be true is kept as :class:`UnbookedRecord` and logged: a gateway's bug must not keep the
    records behind it from being booked.
    """
    now = clock.now()
    rows: list[dict[str, Any]] = []
    refused: list[UnbookedRecord] = []
    charged = prices.book()
    for record in records:
        try:
            rows.append(reading.row_of(record, now=now, prices=charged))
        except reading.Unbookable as exc:
            refused.append(_unbooked(record, str(exc), gateway_id))
    accepted = _keep(rows, refused, gateway_id)
    for row in refused:
        logger.error("usage record makes no sense", extra={"gateway": str(gateway_id), "problem": row.problem})
    devicehours.reopen(moment for row in rows for moment in reading.span_of(row))
    identity.note_key_uses(_latest(rows))  # outside the books: a key's row is never waited for while they are held
    return Booked(accepted=accepted, duplicates=len(rows) - accepted, refused=len(refused))


@retry_on_conflict
def _keep(rows: list[dict[str, Any]], refused: list[UnbookedRecord], gateway_id: uuid.UUID) -> int:
    with transaction.atomic():
        accepted = _write(rows, gateway_id)
        UnbookedRecord.objects.bulk_create(sorted(refused, key=lambda row: row.id), ignore_conflicts=True)
    return accepted


def _write(rows: list[dict[str, Any]], gateway_id: uuid.UUID) -> int:
    if not rows:
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [BOOKS_LOCK])
        parameters: dict[str, str | datetime.datetime] = {
            "rows": json.dumps(rows),
            "gateway_id": str(gateway_id),
            "now": clock.now(),
        }
        cursor.execute(_BOOK, parameters)
        fresh, tenants = cursor.fetchone()
    for tenant_id in tenants:
        hints.push_on_commit(hints.tenant_topic(tenant_id), {"what": "usage"})
    by_id = {row["id"]: row for row in reversed(rows)}  # of one that came twice, the first
    outcomes.write([ended for key in fresh if (ended := reading.ended_of(by_id[key])) is not None])
    return len(fresh)


def _latest(rows: list[dict[str, Any]]) -> dict[uuid.UUID, datetime.datetime]:
    latest: dict[uuid.UUID, datetime.datetime] = {}
    for row in rows:
        key, moment = uuid.UUID(row["key_id"]), datetime.datetime.fromisoformat(row["started_at"])
        latest[key] = max(moment, latest.get(key, moment))
    return latest


def _unbooked(record: wire.UsageRecord, problem: str, gateway_id: uuid.UUID) -> UnbookedRecord:
    body = codec.encode(record)
    return UnbookedRecord(
        id=hashlib.sha256(body).hexdigest(),
        gateway_id=gateway_id,
        received_at=clock.now(),
        problem=problem,
        body=body.decode(),
    )
