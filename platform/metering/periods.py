"""Periods of the books (pure). Sums are kept per hour, so a period is made of whole hours, in UTC."""

import datetime
import enum
from typing import Final

from kernel import errors

HOUR: Final = datetime.timedelta(hours=1)
DEFAULT_LENGTH: Final = datetime.timedelta(days=7)
LONGEST: Final = datetime.timedelta(days=800)
LONGEST_BY_HOUR: Final = datetime.timedelta(days=62)


class GroupBy(enum.StrEnum):
    """How usage is summed up. ``caller`` is the owner's view: who called the tenant's endpoints."""

    KEY = "key"
    ENDPOINT = "endpoint"
    MODEL = "model"
    HOUR = "hour"
    DAY = "day"
    CALLER = "caller"


def hour_of(moment: datetime.datetime) -> datetime.datetime:
    """The beginning of the hour (UTC) that ``moment`` lies in."""
    return moment.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)


def whole_hours(
    start: datetime.datetime | None,
    end: datetime.datetime | None,
    *,
    group_by: GroupBy,
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
    longest = LONGEST_BY_HOUR if group_by is GroupBy.HOUR else LONGEST
    if last - first > longest + HOUR:
        raise errors.InvalidInput(
            f"The period is longer than {longest.days} days; ask for less, or group by day.", data={"field": "from"}
        )
    return first, last
