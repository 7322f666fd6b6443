"""Reads of the books.

A tenant sees what it used; as an owner it also sees who called its endpoints, without their keys.
"""

import dataclasses
import datetime
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from django.db.models import F, QuerySet, Sum
from django.db.models.functions import TruncDay, TruncMonth

from kernel import clock, scope
from metering import labels
from metering.models import UsageHour
from metering.periods import GroupBy
from tenants.models import Tenant

SUMS: Final = (
    "requests",
    "errors",
    "aborted",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "unbilled_prompt_tokens",
    "unbilled_completion_tokens",
    "cost",
)


@dataclasses.dataclass(frozen=True)
class Sums:
    """What was used. Tokens are those that are charged; ``cached_tokens`` is the part of the prompt from a cache.

    ``cost`` is in millionths of the currency. ``unbilled_*`` were computed, and lost by the platform.
    """

    requests: int = 0
    errors: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    unbilled_prompt_tokens: int = 0
    unbilled_completion_tokens: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, other: "Sums") -> "Sums":
        """Both together."""
        return Sums(*(getattr(self, name) + getattr(other, name) for name in SUMS))

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclasses.dataclass(frozen=True)
class UsageRow:
    """One group: ``id`` (of the key, endpoint, model or caller; "" where there is none), ``label`` for people."""

    id: str
    label: str
    sums: Sums


def usage_by(tenant: Tenant, group_by: GroupBy, start: datetime.datetime, end: datetime.datetime) -> list[UsageRow]:
    """Usage from ``start`` (an hour) to ``end`` (an hour, not included), by time or by most tokens first."""
    rows = _by_caller(tenant, start, end) if group_by is GroupBy.CALLER else _own(tenant, group_by, start, end)
    if group_by in (GroupBy.HOUR, GroupBy.DAY, GroupBy.MONTH):
        return sorted(rows, key=lambda row: row.id)
    return sorted(rows, key=lambda row: (-row.sums.total_tokens, -row.sums.requests, row.label))


def totals(rows: Iterable[UsageRow]) -> Sums:
    """All rows together."""
    total = Sums()
    for row in rows:
        total = total.plus(row.sums)
    return total


def total_used(tenant: Tenant, start: datetime.datetime, end: datetime.datetime) -> Sums:
    """What ``tenant`` used as a caller from ``start`` to ``end``."""
    found = _hours(start, end).filter(tenant_id=tenant.id).aggregate(**_sum_fields())
    return _sums({name: found[name] or 0 for name in SUMS})


def today_by_key(tenant: Tenant) -> dict[uuid.UUID, Sums]:
    """What each key of ``tenant`` used since midnight (UTC), by key id."""
    midnight = clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    with scope.tenant(tenant.id):
        hours = UsageHour.objects.filter(hour__gte=midnight)
    return {row["key_id"]: _sums(row) for row in _grouped(hours, "key_id")}


def _own(tenant: Tenant, group_by: GroupBy, start: datetime.datetime, end: datetime.datetime) -> list[UsageRow]:
    hours = _hours(start, end).filter(tenant_id=tenant.id)
    match group_by:
        case GroupBy.HOUR | GroupBy.DAY | GroupBy.MONTH:
            found = _grouped(hours.annotate(unit=UNITS[group_by.value]), "unit")
            return [UsageRow(_text(row["unit"]), _text(row["unit"]), _sums(row)) for row in found]
        case GroupBy.KEY:
            grouped = [(row["key_id"], _sums(row)) for row in _grouped(hours, "key_id")]
            names = labels.keys(tenant, [key for key, _ in grouped])
            return _merged((*names[key], sums) for key, sums in grouped)
        case GroupBy.ENDPOINT:
            grouped = [(row["endpoint_id"], _sums(row)) for row in _grouped(hours, "endpoint_id")]
            names = labels.endpoints(tenant, [endpoint for endpoint, _ in grouped])
            return _merged((*names[endpoint], sums) for endpoint, sums in grouped)
        case _:
            found = _grouped(hours, "revision_id", "endpoint_id")
            pairs = [((row["revision_id"], row["endpoint_id"]), _sums(row)) for row in found]
            naming = labels.revisions if group_by is GroupBy.REVISION else labels.models
            names_of = naming(tenant, [pair for pair, _ in pairs])
            return _merged((*names_of[pair], sums) for pair, sums in pairs)


#: The unit of time that an hour belongs to, by the name of a grouping.
UNITS: Final[Mapping[str, Any]] = {
    "hour": F("hour"),
    "day": TruncDay("hour", tzinfo=datetime.UTC),
    "month": TruncMonth("hour", tzinfo=datetime.UTC),
}


def _by_caller(tenant: Tenant, start: datetime.datetime, end: datetime.datetime) -> list[UsageRow]:
    hours = _hours(start, end).filter(owner_tenant_id=tenant.id)
    grouped = [(row["tenant_id"], _sums(row)) for row in _grouped(hours, "tenant_id")]
    names = labels.tenants([caller for caller, _ in grouped])
    return _merged((*names[caller], sums) for caller, sums in grouped)


def _hours(start: datetime.datetime, end: datetime.datetime) -> "QuerySet[UsageHour]":
    """Sums of the period, of every tenant: the caller narrows them to what the tenant may see."""
    with scope.all_tenants():
        return UsageHour.objects.filter(hour__gte=start, hour__lt=end)


def _grouped(hours: "QuerySet[Any]", *by: str) -> list[dict[str, Any]]:
    """One row of sums per distinct ``by``."""
    return list(hours.order_by().values(*by).annotate(**_sum_fields()))


def _sum_fields() -> dict[str, Any]:
    return {name: Sum(name) for name in SUMS}


def _sums(row: dict[str, Any]) -> Sums:
    return Sums(**{name: int(row[name]) for name in SUMS if name != "cost"}, cost=Decimal(row["cost"]))


def _merged(rows: Iterable[tuple[str, str, Sums]]) -> list[UsageRow]:
    """One row per id: what has no row of its own any more (or never had) shares one."""
    merged: dict[str, UsageRow] = {}
    for ident, label, sums in rows:
        before = merged.get(ident)
        merged[ident] = UsageRow(ident, label, sums if before is None else before.sums.plus(sums))
    return list(merged.values())


def _text(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
