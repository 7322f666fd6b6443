"""Usage: requests and tokens by day, key, endpoint, model or caller; a chart, a table, CSV."""

import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from console.presenters import charts
from console.web import Here, tenant_page
from kernel import clock
from metering import selectors
from metering.periods import GroupBy, whole_hours

PERIODS = (("1", _("24 h")), ("7", _("7 d")), ("30", _("30 d")), ("90", _("90 d")))
GROUPS = (
    (GroupBy.DAY, _("Day")),
    (GroupBy.KEY, _("Key")),
    (GroupBy.ENDPOINT, _("Endpoint")),
    (GroupBy.MODEL, _("Model")),
    (GroupBy.REVISION, _("Revision")),
    (GroupBy.CALLER, _("Caller")),
)


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The page; what is shown is in the address."""
    days = request.GET.get("days", "7")
    days = days if days in dict(PERIODS) else "7"
    group = request.GET.get("by", GroupBy.DAY)
    group_by = GroupBy(group) if group in {value.value for value, _label in GROUPS} else GroupBy.DAY
    now = clock.now()
    wanted_from = now - datetime.timedelta(days=int(days))
    start, end = whole_hours(wanted_from, now, group_by=group_by, now=now)
    rows = selectors.usage_by(here.tenant, group_by, start, end)
    unit = GroupBy.HOUR if days == "1" else GroupBy.DAY
    timeline = _filled(selectors.usage_by(here.tenant, unit, start, end), start, end, unit)
    bars, scale = charts.columns(timeline)
    context: dict[str, Any] = {
        "rows": rows,
        "totals": selectors.totals(rows),
        "group_by": group_by.value,
        "groups": GROUPS,
        "days": days,
        "periods": PERIODS,
        "bars": bars,
        "scale": scale,
        "timeline": timeline,
        "start": start,
        "end": end,
        "csv": f"/api/v1/tenants/{here.tenant.slug}/usage?"
        + urlencode({"format": "csv", "group_by": group_by.value, "from": start.isoformat(), "to": end.isoformat()}),
    }
    return render(request, "console/pages/usage.html", context)


def _filled(
    rows: list[selectors.UsageRow], start: datetime.datetime, end: datetime.datetime, unit: GroupBy
) -> list[tuple[str, float]]:
    """Tokens of every hour or day of the period: one without use is zero, not absent."""
    step = datetime.timedelta(hours=1) if unit is GroupBy.HOUR else datetime.timedelta(days=1)
    by_time = {parse_datetime(row.id): row.sums.total_tokens for row in rows}
    at = start if unit is GroupBy.HOUR else start.replace(hour=0)
    found = []
    while at < end:
        label = at.strftime("%H:%M" if unit is GroupBy.HOUR else "%m-%d")
        found.append((label, float(by_time.get(at, 0))))
        at += step
    return found
