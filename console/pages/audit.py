"""The audit log of a tenant and of the platform: who did what, from where, by which way."""

import uuid
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.http import urlencode

from console.presenters import audit
from console.web import Here, Place, platform_page, tenant_page
from ledger import selectors
from ledger.models import AuditEvent

PER_PAGE = 50


@tenant_page
def tenant(request: HttpRequest, here: Here) -> HttpResponse:
    """Events that concern the tenant."""
    return _list(request, selectors.events_of_tenant(here.tenant.id))


@platform_page
def platform(request: HttpRequest, place: Place) -> HttpResponse:
    """Every event."""
    return _list(request, AuditEvent.objects.all())


def _list(request: HttpRequest, events: "QuerySet[AuditEvent]") -> HttpResponse:
    """Keyset pages, newest first, so that they do not shift while events are added."""
    wanted = request.GET.get("q", "").strip()
    if wanted:
        events = events.filter(
            Q(actor_label__icontains=wanted) | Q(subject_label__icontains=wanted) | Q(action__icontains=wanted)
        )
    after, before = _cursor(request.GET.get("after")), _cursor(request.GET.get("before"))
    if before:
        rows = list(events.filter(id__gt=before).order_by("id")[: PER_PAGE + 1])
        has_newer, rows = len(rows) > PER_PAGE, rows[:PER_PAGE][::-1]
        has_older = True
    else:
        found = events.filter(id__lt=after) if after else events
        rows = list(found.order_by("-id")[: PER_PAGE + 1])
        has_older, rows = len(rows) > PER_PAGE, rows[:PER_PAGE]
        has_newer = after is not None
    context: dict[str, Any] = {
        "lines": [audit.line(event) for event in rows],
        "wanted": wanted,
        "older": urlencode({"q": wanted, "after": str(rows[-1].id)}) if rows and has_older else "",
        "newer": urlencode({"q": wanted, "before": str(rows[0].id)}) if rows and has_newer else "",
    }
    return render(request, "console/pages/audit.html", context)


def _cursor(text: str | None) -> uuid.UUID | None:
    try:
        return uuid.UUID(text or "")
    except ValueError:
        return None
