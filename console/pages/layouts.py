"""How GPUs are cut by MIG: what is proposed for what waits, what became of each change, and the acts."""

import uuid
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from console.presenters import audit
from console.web import Place, done, platform_page, refused
from fleet import access, cutting, layouts, selectors
from fleet.layouts import Layout
from fleet.models import Device
from kernel import errors
from ledger.models import AuditEvent
from scheduling import cuts

HISTORY = 10
MAX_TEXT = 200


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """Proposals, the GPUs that can be cut, and who changed what."""
    plan = cuts.for_waiting(actor=place.actor)
    rows = [row for row in selectors.devices().filter(parent=None) if _geometry(row) is not None]
    history = AuditEvent.objects.filter(tenant_id=None, action="device.layout_set").order_by("-id")[:HISTORY]
    context = {
        "proposals": [
            {
                "cut": cut,
                "now": slices_of(_geometry(cut.device), cut.now),
                "then": slices_of(_geometry(cut.device), cut.proposal.layout),
                "unused": ", ".join(placed.profile.name for placed in sorted(cut.proposal.unused)),
                "placements": ",".join(f"{p.profile.id}@{p.start}" for p in cut.proposal.layout),
            }
            for cut in plan.cuts
        ],
        "unserved": plan.unserved,
        "devices": [{"device": row, "now": slices_of(_geometry(row), cuts.now_of(row))} for row in rows],
        "lines": [audit.line(event) for event in history],
    }
    return render(request, "console/pages/layouts.html", context)


@platform_page
def apply(request: HttpRequest, place: Place, device_id: uuid.UUID) -> HttpResponse:
    """Cut a GPU as a proposal said."""
    return _act(
        request, place, device_id, lambda row: cutting.cut(actor=place.actor, device=row, placements=_wanted(request))
    )


@platform_page
def roll_back(request: HttpRequest, place: Place, device_id: uuid.UUID) -> HttpResponse:
    """Go back to the layout before."""
    return _act(request, place, device_id, lambda row: cutting.roll_back(actor=place.actor, device=row))


def _act(request: HttpRequest, place: Place, device_id: uuid.UUID, act: Callable[[Device], Device]) -> HttpResponse:
    back = reverse("console:platform-layouts")
    if request.method != "POST":
        return HttpResponseRedirect(back)
    try:
        row = act(access.access_device(place.actor, device_id))
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("The node of %(name)s is told to cut it.") % {"name": row.product}, back)


def _wanted(request: HttpRequest) -> list[tuple[int, int]]:
    """Pairs of profile id and first slice, from ``19@0,14@2``.

    Raises:
        errors.InvalidInput: it is nothing like that.
    """
    text = request.POST.get("placements", "")[:MAX_TEXT]
    found = []
    for pair in filter(None, text.split(",")):
        profile, _at, start = pair.partition("@")
        if not (profile.isascii() and profile.isdigit() and start.isascii() and start.isdigit()):
            raise errors.InvalidInput(_("This is no layout."))
        found.append((int(profile), int(start)))
    return found


def _geometry(row: Device) -> layouts.Geometry | None:
    return layouts.geometry_of(row.product, row.facts.get("mig"))


def slices_of(geometry: layouts.Geometry | None, layout: Layout) -> list[dict[str, Any]]:
    """A layout as boxes in a row of memory slices: where each begins and how wide it is, in percent."""
    if geometry is None:
        return []
    return [
        {
            "name": placed.profile.name,
            "memory_bytes": placed.profile.memory_bytes,
            "x": round(100 * placed.start / geometry.slices, 2),
            "middle": round(100 * (placed.start + placed.profile.slices / 2) / geometry.slices, 2),
            "width": round(100 * placed.profile.slices / geometry.slices, 2),
        }
        for placed in sorted(layout, key=lambda each: each.start)
    ]
