"""The audit log of a tenant and of the platform: who did what, from where, by which way."""

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console import keyset
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
    found = keyset.page(request, events, PER_PAGE, {"q": wanted})
    context: dict[str, Any] = {"lines": [audit.line(event) for event in found.rows], "wanted": wanted, "keyset": found}
    return render(request, "console/pages/audit.html", context)
