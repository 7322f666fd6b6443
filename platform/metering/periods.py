"""Periods of the books (pure). Sums are kept per hour, so a period is made of whole hours, in UTC."""

import datetime
import enum
from typing import Final

from kernel import errors
from tenants.models import BudgetPeriod

HOUR: Final = datetime.timedelta(hours=1)
DAY: Final = datetime.timedelta(days=1)
BEGINNING: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
DEFAULT_LENGTH: Final = datetime.timedelta(days=7)
#: How long after its end an hour waits for what is still on its way.
CLOSED_AFTER: Final = datetime.timedelta(minutes=10)
LONGEST: Final = datetime.timedelta(days=800)
LONGEST_BY_HOUR: Final = datetime.timedelta(days=62)


class HeldBy(enum.StrEnum):
    """How device-hours are summed up. ``tenant`` is the platform's view."""

    DEVICE = "device"
    DEPLOYMENT = "deployment"
    ENDPOINT = "endpoint"
    MODEL = "model"
    REVISION = "revision"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    TENANT = "tenant"


class GroupBy(enum.StrEnum):
    """How usage is summed up. ``caller`` is the owner's view: who called the tenant's endpoints."""

    KEY = "key"
    ENDPOINT = "endpoint"
    MODEL = "model"
    REVISION = "revision"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    CALLER = "caller"


def hour_of(moment: datetime.datetime) -> datetime.datetime:
    """The beginning of the hour (UTC) that ``moment`` lies in."""
    return moment.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)


def whole_hours(
    start: datetime.datetime | None,
    end: datetime.datetime | None,
    *,
    group_by: GroupBy | HeldBy,
    now: datetime.datetime,
) -> tuple[datetime.datetime, datetime.datetime]:
    """The half-open period of whole hours that covers ``start`` … ``end`` (default: the last seven days).

    Raises:
        errors.InvalidInput: the period is empty, or longer than can be answered in one call.
    """
    end = now if end is None else end
    start = end - DEFAULT_LENGTH if start is None else start
    first = hour_of(start)
    last = hour_of(end)
    if last < end:
        last += HOUR
    if last <= first:
        raise errors.InvalidInput("The period is empty: from must lie before to.", data={"field": "from"})
    longest = LONGEST_BY_HOUR if group_by.value == GroupBy.HOUR.value else LONGEST
    if last - first > longest + HOUR:
        raise errors.InvalidInput(
            f"The period is longer than {longest.days} days; ask for less, or group by day.", data={"field": "from"}
        )
    return first, last


def budget_period(duration: str, now: datetime.datetime) -> tuple[datetime.datetime, datetime.datetime | None]:
    """The calendar period (UTC; weeks begin on Monday) that ``now`` lies in; without an end where there is none."""
    hour = hour_of(now)
    day = hour.replace(hour=0)
    match duration:
        case BudgetPeriod.HOUR:
            return hour, hour + HOUR
        case BudgetPeriod.DAY:
            return day, day + DAY
        case BudgetPeriod.WEEK:
            monday = day - day.weekday() * DAY
            return monday, monday + 7 * DAY
        case BudgetPeriod.MONTH:
            first = day.replace(day=1)
            return first, (first + 31 * DAY).replace(day=1)
        case _:
            return BEGINNING, None
