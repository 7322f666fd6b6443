"""Keeping the books: comparing sums with records once an hour is closed, and forgetting what has had its time.

Both are level-triggered and bounded: each call looks at what is, does one helping, and a missed call is caught up.
"""

import datetime
import logging
from typing import Final

from django.conf import settings
from django.db import connection, transaction

from kernel import clock, scope
from metering.booking import BOOKS_LOCK, GROUP, GROUP_COLUMNS, SUM_COLUMNS, SUMS
from metering.models import DeviceCount, DeviceHour, Holding, Recount, UsageHour, UsageRecord
from metering.periods import CLOSED_AFTER, HOUR, hour_of

logger = logging.getLogger(__name__)

LOOK_BACK_HOURS: Final = 48
PRUNE_ROWS: Final = 5_000

_DIFFERS: Final = " OR ".join(
    f"metering_usagehour.{name} IS DISTINCT FROM EXCLUDED.{name}" for name in SUM_COLUMNS[:-1]
)
_RECOUNT: Final = f"""
    WITH counted AS (
        INSERT INTO metering_usagehour ({GROUP_COLUMNS}, {", ".join(SUM_COLUMNS)})
        SELECT {GROUP}, {SUMS} FROM metering_usagerecord
        WHERE started_at >= %(hour)s AND started_at < %(end)s
        GROUP BY {GROUP} ORDER BY {GROUP}
        ON CONFLICT ({GROUP_COLUMNS}) DO UPDATE
        SET {", ".join(f"{name} = EXCLUDED.{name}" for name in SUM_COLUMNS)}
        WHERE {_DIFFERS}
        RETURNING 1
    )
    SELECT count(*) FROM counted
"""  # noqa: S608  (column names of this module, no input)


def recount_next() -> Recount | None:
    """Recount the oldest closed hour of the last two days that was not recounted yet; ``None`` when all were."""
    newest = hour_of(clock.now() - CLOSED_AFTER) - HOUR
    oldest = newest - (LOOK_BACK_HOURS - 1) * HOUR
    done = set(Recount.objects.filter(hour__gte=oldest).values_list("hour", flat=True))
    for age in range(LOOK_BACK_HOURS - 1, -1, -1):
        if (hour := newest - age * HOUR) not in done:
            return recount(hour)
    return None


def recount(hour: datetime.datetime) -> Recount:
    """Make the sums of ``hour`` what its records say, and note how many differed (0 unless something is wrong)."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [BOOKS_LOCK])
            cursor.execute(_RECOUNT, {"hour": hour, "end": hour + HOUR})
            corrected = int(cursor.fetchone()[0])
        row, _created = Recount.objects.update_or_create(
            hour=hour, defaults={"at": clock.now(), "corrected": corrected}
        )
    if corrected:
        logger.error("hourly sums differed from their records", extra={"hour": hour.isoformat(), "rows": corrected})
    return row


def prune() -> int:
    """Delete at most 5000 rows of a kind that are older than the settings keep them; return how many."""
    now = clock.now()
    with scope.all_tenants():
        old_records = UsageRecord.objects.filter(started_at__lt=now - _days(settings.METERING_RECORD_DAYS))
        old_hours = UsageHour.objects.filter(hour__lt=now - _days(settings.METERING_HOUR_DAYS))
        gone = 0
        record_ids = old_records.order_by().values("pk")[:PRUNE_ROWS]
        gone += UsageRecord.objects.filter(pk__in=record_ids).delete()[0]
        hour_ids = old_hours.order_by().values("pk")[:PRUNE_ROWS]
        gone += UsageHour.objects.filter(pk__in=hour_ids).delete()[0]
        held = Holding.objects.filter(ended_at__lt=now - _days(settings.METERING_RECORD_DAYS))
        gone += Holding.objects.filter(pk__in=held.order_by().values("pk")[:PRUNE_ROWS]).delete()[0]
        old_held = DeviceHour.objects.filter(hour__lt=now - _days(settings.METERING_HOUR_DAYS))
        gone += DeviceHour.objects.filter(pk__in=old_held.order_by().values("pk")[:PRUNE_ROWS]).delete()[0]
    for counted in (Recount, DeviceCount):
        counted.objects.filter(hour__lt=now - _days(settings.METERING_RECORD_DAYS)).delete()
    return gone


def _days(number: int) -> datetime.timedelta:
    return datetime.timedelta(days=number)
