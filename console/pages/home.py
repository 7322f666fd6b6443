"""Home of a tenant: one derived sentence, figures, what needs attention, endpoints, quotas, events, how to call."""

import datetime
from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from catalog import selectors as catalog
from console import queries
from console.pages import deployment_parts as parts
from console.presenters import audit, charts, hbm, needs, samples
from console.web import Here, tenant_page
from kernel import clock
from ledger import selectors as ledger
from metering import held
from metering import selectors as metering
from metering.periods import GroupBy, HeldBy, whole_hours
from quotas import selectors as quotas
from quotas.amount import Kind
from serving import selectors as serving
from telemetry import series
from tenants import selectors as tenants
from tenants.roles import Permission

RECENT = 6
RANGES = (("1h", gettext_lazy("1 h")), ("24h", gettext_lazy("24 h")), ("7d", gettext_lazy("7 d")))
HOURS = {"1h": 1, "24h": 24, "7d": 7 * 24}
DEFAULT_RANGE = "24h"
# Endpoints that need a look come first, those that rest last.
_ORDER = ("failed", "degraded", "pending", "starting", "progressing", "ready", "stopping", "idle", "stopped", "none")
MAX_LOOKED_AT = 20
#: Those that need a look come first; the others are on their own page.
MAX_ENDPOINTS = 25
MAX_NEEDS = 12
# Steps of a replica's way are many; at home only what people did and what ended well or badly.
_QUIET = {
    "replica.created",
    "replica.fetching",
    "replica.loading",
    "replica.warming",
    "replica.assigned",
    "replica.pending",
    "replica.draining",
    "replica.stopped",
}


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The page; ``?range=`` is the time that figures and charts cover."""
    asked = request.GET.get("range", "")
    asked = asked if asked in HOURS else DEFAULT_RANGE
    hours = HOURS[asked]
    named = list(serving.endpoints_of(here.tenant))
    deployments = [one for endpoint in named for one in endpoint.deployments.all()]
    rows = [(one, serving.health_of(one)) for one in deployments]
    live = [(one, row) for one in deployments for row in one.replicas.all() if row.state != "stopped"]
    levels = [(one, row, memory) for one, row in live if (memory := hbm.of_ledger(row.ledger)) is not None]
    attention = [
        *needs.of_deployments(here.tenant.slug, rows),
        *needs.of_levels(here.tenant.slug, levels),
        *needs.of_versions(here.tenant.slug, _latest_versions(here)),
        *needs.of_keys(here.tenant.slug, _ending_keys(here), clock.now()),
    ]
    endpoints = [_endpoint(endpoint) for endpoint in named]
    endpoints.sort(key=lambda row: (_ORDER.index(row["word"]) if row["word"] in _ORDER else 0, row["endpoint"].name))
    granted = serving.granted_endpoints(here.tenant)
    wanted = sum(one.desired_replicas for one in deployments if one.state == "running")
    context: dict[str, Any] = {
        "said": _sentence(endpoints, sum(1 for _one, _row, memory in levels if memory.mood)),
        "figures": _figures(here, [row for _one, row in live], wanted, hours),
        "ranges": RANGES,
        "range": asked,
        "range_word": dict(RANGES)[asked],
        "attention": attention[:MAX_NEEDS],
        "needs": len(attention),
        "endpoints": endpoints[:MAX_ENDPOINTS],
        "more_endpoints": max(0, len(endpoints) - MAX_ENDPOINTS),
        "granted": granted,
        "quota": quotas.lines_of(here.tenant),
        "kinds": {kind.name: kind for kind in Kind},
        "recent": _recent(here),
        "samples": samples.chat(settings.GATEWAY_URL, _to_call(endpoints, granted)),
        "may_deploy": here.can(Permission.DEPLOY),
        "may_publish": here.can(Permission.PUBLISH),
        "has_models": not endpoints and catalog.models_of(here.tenant).exists(),
    }
    return render(request, "console/pages/home.html", context)


def _ending_keys(here: Here) -> list[Any]:
    """Keys whose time is nearly over, or was not long ago: the newest few."""
    now = clock.now()
    keys = tenants.keys_of(here.tenant).filter(revoked_at=None, expires_at__lt=now + needs.SOON)
    return list(keys.order_by("-expires_at")[:MAX_NEEDS])


def _latest_versions(here: Here) -> list[Any]:
    """The latest version of each model whose latest is not ready."""
    models: Any = catalog.models_of(here.tenant)  # annotated with the two numbers
    behind = models.filter(Q(latest_ready=None) | ~Q(latest_number=F("latest_ready")))
    return catalog.latest_versions(here.tenant, behind.prefetch_related(None)[:MAX_LOOKED_AT])


def _endpoint(endpoint: Any) -> dict[str, Any]:
    deployments = list(endpoint.deployments.all())
    replicas = [row for one in deployments for row in one.replicas.all() if row.state != "stopped"]
    health = serving.endpoint_health(endpoint)
    is_stopped = bool(deployments) and all(one.state == "stopped" for one in deployments)
    return {
        "endpoint": endpoint,
        "health": health,
        "word": "stopped" if is_stopped else health.word if deployments else "none",
        "desired": sum(one.desired_replicas for one in deployments if one.state == "running"),
        "main": deployments[-1] if deployments else None,
        "memory": queries.holding(replicas).memory,
        "sums": parts.sums(replicas),
    }


def _sentence(endpoints: list[dict[str, Any]], above: int) -> str:
    answering = sum(1 for row in endpoints if row["health"].ready)
    total = len(endpoints)
    if not total:
        return _("Nothing is deployed yet.")
    if answering == total:
        text = ngettext("The endpoint answers.", "All %(total)s endpoints answer.", total) % {"total": total}
    else:
        text = ngettext(
            "%(answering)s of %(total)s endpoint answers.", "%(answering)s of %(total)s endpoints answer.", total
        ) % {"answering": answering, "total": total}
    if above:
        more = ngettext(
            "%(above)s replica is above its high watermark.",
            "%(above)s replicas are above their high watermark.",
            above,
        ) % {"above": above}
        text = pgettext("two sentences", "%(first)s %(second)s") % {"first": text, "second": more}
    return text


def _figures(here: Here, replicas: list[Any], wanted: int, hours: int) -> dict[str, Any]:
    """The last ``hours`` against as many before; ``wanted`` replicas should run."""
    now = clock.now()
    length = datetime.timedelta(hours=hours)
    start, end = whole_hours(now - length, now, group_by=GroupBy.HOUR, now=now)
    today, before = (
        metering.total_used(here.tenant, start, end),
        metering.total_used(here.tenant, start - length, start),
    )
    by_time = {row.id: row.sums for row in metering.usage_by(here.tenant, GroupBy.HOUR, start, end)}
    moments = [start + datetime.timedelta(hours=hour) for hour in range(int((end - start).total_seconds() // 3600))]
    by_hour = [by_time.get(at.strftime("%Y-%m-%dT%H:%M:%SZ"), metering.Sums()) for at in moments]
    load = parts.sums(replicas)
    minutes = 60 if hours == 1 else series.MAX_MINUTES
    points = series.series([row.id for row in replicas][: series.MAX_REPLICAS], minutes)
    ttft = [
        max(known) if (known := [point.ttft_p95_ms for point in found if point.ttft_p95_ms is not None]) else None
        for _at, found in parts.charts_of(points)
    ]
    devices = held.totals(held.held_by(here.tenant, HeldBy.DEVICE, start, end))
    return {
        "requests": today.requests,
        "requests_change": _change(today.requests, before.requests),
        "requests_line": [sums.requests for sums in by_hour],
        "error_rate": today.errors / today.requests if today.requests else None,
        "errors": today.errors,
        "tokens": today.completion_tokens,
        "tokens_change": _change(today.completion_tokens, before.completion_tokens),
        "tokens_line": [sums.completion_tokens for sums in by_hour],
        "ttft": load["ttft_p95_ms"],
        "ttft_line": ttft,
        "cost": today.cost + devices.cost,
        "token_cost": today.cost,
        "device_cost": devices.cost,
        "running": load["running"],
        "waiting": load["waiting"],
        "replicas": sum(1 for row in replicas if row.state in ("ready", "degraded", "asleep")),
        "wanted": wanted,
        "charts": [_requests(points, list(zip(moments, by_hour, strict=True)), hours), parts.level_chart(points)],
    }


def _requests(points: Any, by_hour: list[tuple[datetime.datetime, metering.Sums]], hours: int) -> charts.Chart:
    """Requests over time: as replicas count them within the hour, as the books have them over longer."""
    if hours == 1:
        line = parts.request_rate(points)
        return charts.line_chart(_("Requests"), "/s", [("main", _("all endpoints"), line)], filled=True)
    booked: list[charts.Point] = [(at, float(sums.requests)) for at, sums in by_hour]
    return charts.line_chart(_("Requests"), _("per hour"), [("main", _("all endpoints"), booked)], filled=True)


def _change(now: int, before: int) -> str:
    """The difference to yesterday in percent; "" when there is nothing to compare."""
    return f"{(now - before) / before * 100:+.0f}" if before else ""


def _recent(here: Here) -> list[audit.Line]:
    events = ledger.events_of_tenant(here.tenant.id).exclude(action__in=_QUIET).exclude(data__kind="playground")
    return [audit.line(event) for event in events[:RECENT]]


def _to_call(endpoints: list[dict[str, Any]], granted: list[Any]) -> str:
    ready = [row["endpoint"].name for row in endpoints if row["health"].ready]
    names = ready or [row["endpoint"].name for row in endpoints] or [item.model for item in granted]
    return names[0] if names else "my-endpoint"
