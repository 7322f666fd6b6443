"""Usage: requests and tokens, GPU-hours held and idle, and what both cost; charts, tables, CSV."""

import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from console.presenters import charts
from console.web import Here, tenant_page
from kernel import clock
from metering import held, selectors
from metering.periods import GroupBy, HeldBy, whole_hours

PERIODS = (("1", _("24 h")), ("7", _("7 d")), ("30", _("30 d")), ("90", _("90 d")), ("365", _("12 months")))
#: The unit of the charts: as many columns as can be told apart.
UNITS = {"1": GroupBy.HOUR, "7": GroupBy.DAY, "30": GroupBy.DAY, "90": GroupBy.DAY, "365": GroupBy.MONTH}
GROUPS = (
    (GroupBy.HOUR, _("Hour")),
    (GroupBy.DAY, _("Day")),
    (GroupBy.MONTH, _("Month")),
    (GroupBy.MODEL, _("Model")),
    (GroupBy.KEY, _("Key")),
    (GroupBy.REVISION, _("Revision")),
    (GroupBy.ENDPOINT, _("Endpoint")),
    (GroupBy.CALLER, _("Caller")),
)
HELD_GROUPS = (
    (HeldBy.DEVICE, _("Device type")),
    (HeldBy.DEPLOYMENT, _("Deployment")),
    (HeldBy.MODEL, _("Model")),
    (HeldBy.REVISION, _("Revision")),
    (HeldBy.DAY, _("Day")),
    (HeldBy.MONTH, _("Month")),
)
#: Hours of more than this period are too many for one page.
HOURLY_DAYS = 30


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The page; what is shown is in the address."""
    days = request.GET.get("days", "7")
    days = days if days in dict(PERIODS) else "7"
    groups = [(value, label) for value, label in GROUPS if value is not GroupBy.HOUR or int(days) <= HOURLY_DAYS]
    group_by = _chosen(request.GET.get("by", ""), [value for value, _label in groups], GroupBy.DAY)
    held_by = _chosen(request.GET.get("held", ""), [value for value, _label in HELD_GROUPS], HeldBy.DEVICE)
    now = clock.now()
    start, end = whole_hours(now - datetime.timedelta(days=int(days)), now, group_by=group_by, now=now)
    rows = selectors.usage_by(here.tenant, group_by, start, end)
    parts = held.held_by(here.tenant, held_by, start, end)
    unit = UNITS[days]
    used = selectors.usage_by(here.tenant, unit, start, end)
    kept = held.held_by(here.tenant, HeldBy(unit.value), start, end)
    tokens = _filled({row.id: row.sums.total_tokens for row in used}, start, end, unit)
    busy = _filled({row.id: row.sums.gpu_hours - row.sums.idle_gpu_hours for row in kept}, start, end, unit)
    idle = _filled({row.id: row.sums.idle_gpu_hours for row in kept}, start, end, unit)
    mine, holding = selectors.totals(used), held.totals(parts)
    period = {"from": start.isoformat(), "to": end.isoformat(), "format": "csv"}
    base = f"/api/v1/tenants/{here.tenant.slug}/usage"
    context: dict[str, Any] = {
        "rows": rows, "totals": selectors.totals(rows) if group_by is GroupBy.CALLER else mine,
        "group_by": group_by.value, "groups": groups, "days": days, "periods": PERIODS, "unit": unit.value,
        "held": parts, "held_totals": holding, "held_by": held_by.value, "held_groups": HELD_GROUPS,
        "idle_share": holding.idle_gpu_hours / holding.gpu_hours if holding.gpu_hours else None,
        "whole_cost": mine.cost + holding.cost,
        "tokens": charts.stacked([(at, value, 0.0) for at, value in tokens]),
        "hours": charts.stacked([(at, value, free) for (at, value), (_at, free) in zip(busy, idle, strict=True)]),
        "start": start, "end": end,
        "csv": f"{base}?{urlencode({**period, 'group_by': group_by.value})}",
        "held_csv": f"{base}/devices?{urlencode({**period, 'group_by': held_by.value})}",
        "command": f"millpond --tenant {here.tenant.slug} usage --devices --by {held_by.value}",
        "unit_word": {"hour": _("per hour"), "day": _("per day"), "month": pgettext_lazy("chart", "per month")}[unit],
    }  # fmt: skip
    return render(request, "console/pages/usage.html", context)


def _chosen(text: str, allowed: list[Any], default: Any) -> Any:
    return next((value for value in allowed if value.value == text), default)


def _filled(
    known: dict[str, float], start: datetime.datetime, end: datetime.datetime, unit: GroupBy
) -> list[tuple[str, float]]:
    """A value for every hour, day or month of the period: one without use is zero, not absent."""
    by_time = {parse_datetime(ident): value for ident, value in known.items()}
    at = {GroupBy.HOUR: start, GroupBy.DAY: start.replace(hour=0)}.get(unit, start.replace(hour=0, day=1))
    found = []
    while at < end:
        label = at.strftime({GroupBy.HOUR: "%H:%M", GroupBy.DAY: "%m-%d"}.get(unit, "%Y-%m"))
        found.append((label, float(by_time.get(at, 0))))
        if unit is GroupBy.MONTH:
            at = (at + datetime.timedelta(days=31)).replace(day=1)
        else:
            at += datetime.timedelta(hours=1) if unit is GroupBy.HOUR else datetime.timedelta(days=1)
    return found
