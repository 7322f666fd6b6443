"""Device-hours: what deployments held of devices, hour by hour, and for how much of it a request was in flight.

**Held**: from the moment a partition is given to a replica until it is freed, loading and draining included, times the
share of the device. **Busy**: the part of that time in which at least one request of that replica was in flight, from
its arrival at the gateway to its end, however many there were. **Idle**: held and not busy.
"""

import datetime
import logging
import uuid
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from django.db import connection, transaction

from kernel import clock, scope
from metering import deviceprices
from metering.models import DeviceCount, DeviceHour
from metering.periods import CLOSED_AFTER, HOUR, hour_of

logger = logging.getLogger(__name__)

#: Counting alone holds it: two workers never write one hour.
COUNT_LOCK: Final = 7_020_260_002
#: How long before an hour a request may have begun and still count as in flight in it.
LONGEST_REQUEST: Final = datetime.timedelta(hours=2)
#: Hours that are counted again when a late record is delivered; older ones stay as they are.
LOOK_BACK_HOURS: Final = 48
_THOUSANDTHS: Final = 1000

# Requests of a replica are put together into spans first: ten at once make it no busier than one.
_SPANS: Final = """
    WITH hours AS (
        SELECT unnest(%(hours)s::timestamptz[]) AS hour
    ), held AS (
        SELECT hour, metering_holding.*, tstzrange(greatest(began_at, hour),
            least(coalesce(ended_at, %(now)s), %(now)s, hour + interval '1 hour')) AS span
        FROM hours JOIN metering_holding ON began_at < least(%(now)s, hour + interval '1 hour')
            AND (ended_at IS NULL OR ended_at > hour)
        WHERE %(tenant)s::uuid IS NULL OR tenant_id = %(tenant)s::uuid
    ), busy AS (
        SELECT replica_id, range_agg(tstzrange(
            started_at, started_at + make_interval(secs => least(duration_ms / 1000.0, %(longest)s)))) AS spans
        FROM metering_usagerecord
        WHERE started_at >= %(since)s AND started_at < %(now)s
            AND replica_id IN (SELECT replica_id FROM held)
        GROUP BY replica_id
    )
    SELECT hour, held.tenant_id, held.deployment_id, held.endpoint_id, held.revision_id, held.product, held.kind,
        sum(millis * extract(epoch FROM upper(span) - lower(span))),
        sum(millis * coalesce((
            SELECT sum(extract(epoch FROM upper(part) - lower(part)))
            FROM unnest(busy.spans * tstzmultirange(span)) AS part), 0))
    FROM held LEFT JOIN busy USING (replica_id)
    WHERE NOT isempty(span)
    GROUP BY hour, held.tenant_id, held.deployment_id, held.endpoint_id, held.revision_id, held.product, held.kind
    ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


class Held(NamedTuple):
    """One group of one hour. Seconds are device-seconds by share; ``cost`` is in millionths of the currency."""

    hour: datetime.datetime
    tenant_id: uuid.UUID
    deployment_id: uuid.UUID
    endpoint_id: uuid.UUID
    revision_id: uuid.UUID
    product: str
    kind: str
    held_seconds: float
    busy_seconds: float
    cost: Decimal


def measure(hours: Sequence[datetime.datetime], tenant_id: uuid.UUID | None = None) -> list[Held]:
    """What was held in each of ``hours``, up to now, of one tenant or of all; in two queries."""
    if not hours:
        return []
    book = deviceprices.book()
    parameters: dict[str, Any] = {
        "hours": list(hours),
        "now": min(clock.now(), max(hours) + HOUR),
        "since": min(hours) - LONGEST_REQUEST,
        "longest": LONGEST_REQUEST.total_seconds(),
        "tenant": None if tenant_id is None else str(tenant_id),
    }
    with connection.cursor() as cursor:
        cursor.execute(_SPANS, parameters)
        rows = cursor.fetchall()
    found = []
    for hour, tenant, deployment, endpoint, revision, product, kind, held, busy in rows:
        seconds = float(held) / _THOUSANDTHS
        in_use = min(float(busy) / _THOUSANDTHS, seconds)
        cost = book.at(hour).cost(product, seconds)
        found.append(Held(hour, tenant, deployment, endpoint, revision, product, kind, seconds, in_use, cost))
    return found


def count_next() -> datetime.datetime | None:
    """Put the oldest closed hour of the last two days that is not in the books into them; ``None`` when all are."""
    for hour in pending(clock.now()):
        if hour + HOUR + CLOSED_AFTER <= clock.now():
            count(hour)
            return hour
    return None


def pending(now: datetime.datetime) -> list[datetime.datetime]:
    """Hours up to the running one whose device-hours are not in the books, oldest first."""
    newest = hour_of(now)
    hours = [newest - age * HOUR for age in range(LOOK_BACK_HOURS - 1, -1, -1)]
    done = set(DeviceCount.objects.filter(hour__gte=hours[0]).values_list("hour", flat=True))
    return [hour for hour in hours if hour not in done]


def count(hour: datetime.datetime) -> None:
    """Write the device-hours of ``hour``, instead of what was written before."""
    with transaction.atomic(), scope.all_tenants():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [COUNT_LOCK])
        DeviceCount.objects.update_or_create(hour=hour, defaults={"at": clock.now()})
        DeviceHour.objects.filter(hour=hour).delete()
        DeviceHour.objects.bulk_create([DeviceHour(**row._asdict()) for row in measure([hour])])


def reopen(moments: Iterable[datetime.datetime]) -> None:
    """Records of these times were booked: hours that were counted without them are counted again."""
    now = clock.now()
    hours: Collection[datetime.datetime] = {
        hour
        for moment in moments
        if (hour := hour_of(moment)) + HOUR + CLOSED_AFTER <= now and now - hour < LOOK_BACK_HOURS * HOUR
    }
    if hours:
        DeviceCount.objects.filter(hour__in=hours).delete()
