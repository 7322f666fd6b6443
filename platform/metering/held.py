"""Reads of device-hours: the books of counted hours, and the hours since then measured as they stand.

A tenant sees what its own deployments hold: it pays for capacity, its callers pay for tokens.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from decimal import Decimal

from django.db.models import DateTimeField, Sum, Value

from fleet.models import DeviceKind
from kernel import clock, scope
from metering import devicehours, labels
from metering.devicehours import Held
from metering.models import NOBODY, DeviceHour
from metering.periods import HeldBy
from metering.selectors import UNITS
from tenants.models import Tenant

_SECONDS = 3600
_GROUP = ("tenant_id", "deployment_id", "endpoint_id", "revision_id", "product", "kind")
_SUMMED = ("held_seconds", "busy_seconds", "cost")


@dataclasses.dataclass(frozen=True)
class HeldSums:
    """Hours of whole GPUs, and of CPUs beside them. ``cost`` is in millionths of the currency, of both."""

    gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    idle_cpu_hours: float = 0.0
    cost: Decimal = Decimal(0)

    def plus(self, other: "HeldSums") -> "HeldSums":
        """Both together."""
        return HeldSums(*(getattr(self, field) + getattr(other, field) for field in HELD_SUMS))

    @property
    def held(self) -> float:
        """All of it, for the order of rows."""
        return self.gpu_hours or self.cpu_hours


HELD_SUMS = tuple(field.name for field in dataclasses.fields(HeldSums))


@dataclasses.dataclass(frozen=True)
class HeldRow:
    """One group: ``id`` of what it is grouped by, ``label`` for people."""

    id: str
    label: str
    sums: HeldSums


def held_by(tenant: Tenant | None, group_by: HeldBy, start: datetime.datetime, end: datetime.datetime) -> list[HeldRow]:
    """Device-hours from ``start`` to ``end`` (hours) of one tenant, or of all (``None``), by time or by most first."""
    rows = _rows(tenant, group_by, start, end)
    names = _names(tenant, group_by, rows)
    merged: dict[str, HeldRow] = {}
    for row in rows:
        ident, label = names(row)
        before = merged.get(ident)
        merged[ident] = HeldRow(ident, label, _sums(row) if before is None else before.sums.plus(_sums(row)))
    if group_by in (HeldBy.HOUR, HeldBy.DAY, HeldBy.MONTH):
        return sorted(merged.values(), key=lambda row: row.id)
    return sorted(merged.values(), key=lambda row: (-row.sums.held, row.label))


def totals(rows: Iterable[HeldRow]) -> HeldSums:
    """All rows together."""
    total = HeldSums()
    for row in rows:
        total = total.plus(row.sums)
    return total


def _rows(tenant: Tenant | None, group_by: HeldBy, start: datetime.datetime, end: datetime.datetime) -> list[Held]:
    """What is in the books, summed up by the database, and the hours that are not in them yet."""
    now = clock.now()
    waiting = [hour for hour in devicehours.pending(now) if start <= hour < end]
    hours = DeviceHour._base_manager.filter(hour__gte=start, hour__lt=end).exclude(hour__in=waiting)
    if tenant is not None:
        hours = hours.filter(tenant_id=tenant.id)
    unit = UNITS.get(group_by.value)
    by = ("kind", "product") if unit is not None else _GROUP
    # One moment stands for the whole period where time does not matter.
    known = hours.annotate(unit=unit if unit is not None else Value(start, output_field=DateTimeField()))
    sums = known.order_by().values("unit", *by).annotate(**{name: Sum(name) for name in _SUMMED})
    found = [
        Held(row["unit"], *(row.get(name, NOBODY) for name in _GROUP), *(row[name] for name in _SUMMED)) for row in sums
    ]
    tenant_id = None if tenant is None else tenant.id
    return found + devicehours.measure(waiting, tenant_id)


def _sums(row: Held) -> HeldSums:
    held, idle = row.held_seconds / _SECONDS, (row.held_seconds - row.busy_seconds) / _SECONDS
    if row.kind == DeviceKind.CPU:
        return HeldSums(cpu_hours=held, idle_cpu_hours=idle, cost=row.cost)
    return HeldSums(gpu_hours=held, idle_gpu_hours=idle, cost=row.cost)


def _names(tenant: Tenant | None, group_by: HeldBy, rows: list[Held]) -> Callable[[Held], labels.Label]:
    match group_by:
        case HeldBy.HOUR:
            return lambda row: _time(row.hour)
        case HeldBy.DAY:
            return lambda row: _time(row.hour.astimezone(datetime.UTC).replace(hour=0))
        case HeldBy.MONTH:
            return lambda row: _time(row.hour.astimezone(datetime.UTC).replace(hour=0, day=1))
        case HeldBy.DEVICE:
            return lambda row: (row.product, row.product)
        case _:
            return _ids(tenant, group_by, rows)


def _ids(tenant: Tenant | None, group_by: HeldBy, rows: list[Held]) -> Callable[[Held], labels.Label]:
    if group_by is HeldBy.TENANT or tenant is None:
        tenants = labels.tenants({row.tenant_id for row in rows})
        return lambda row: tenants[row.tenant_id]
    with scope.tenant(tenant.id):
        if group_by is HeldBy.DEPLOYMENT:
            deployments = labels.deployments(tenant, {row.deployment_id for row in rows})
            return lambda row: deployments[row.deployment_id]
        if group_by is HeldBy.ENDPOINT:
            endpoints = labels.endpoints(tenant, {row.endpoint_id for row in rows})
            return lambda row: endpoints[row.endpoint_id]
        naming = labels.models if group_by is HeldBy.MODEL else labels.revisions
        behind = naming(tenant, {(row.revision_id, row.endpoint_id) for row in rows})
        return lambda row: behind[row.revision_id, row.endpoint_id]


def _time(moment: datetime.datetime) -> labels.Label:
    text = moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return text, text
