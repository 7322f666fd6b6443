"""Faults and maintenance, for platform admins: what is wrong, what was decided about it, what still runs there."""

import dataclasses
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console import fleetviews, keyset
from console.web import Place, platform_page
from fleet import faults, selectors
from fleet.states import DeviceState
from kernel.texts import sought

PER_PAGE: Final = 50
#: More open faults than a page can show well; the map has them all.
MOST: Final = 100
#: What the policy did with a device, by its state.
DECIDED: Final[dict[str, Promise]] = {
    DeviceState.SUSPECT: _("Nothing new is placed here; what runs goes on."),
    DeviceState.QUARANTINED: _("Replicas go elsewhere; nothing new is placed here."),
    DeviceState.RECOVERING: _("Watched before anything is placed here again."),
    DeviceState.RETIRED: _("Out of service for good; it is to be replaced."),
}
WAITS: Final[dict[str, Promise]] = {
    "condition": _("It waits until it answers again."),
    "reset": _("It waits for a reset or a restart of its machine."),
    "reboot": _("It waits for a restart of its machine."),
    "person": _("It waits for a person to take it back."),
}
#: What the policy did about one event.
ACTIONS: Final[dict[str, Promise]] = {
    "ignore": _("noted"),
    "watch": _("counted"),
    "suspect": _("nothing new placed"),
    "move": _("replicas moved"),
    "reset": _("replicas moved, reset needed"),
    "retire": _("retired"),
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """An open fault: the device with its holders, what was decided, and what it waits for."""

    view: fleetviews.DeviceView
    decided: str | Promise
    waits: str | Promise
    command: str


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """Open faults, nodes out of service, and what nodes and devices said lately."""
    wanted = sought(request.GET.get("q", ""))
    rows = list(selectors.unwell()[: MOST + 1])
    nodes = list(selectors.out_of_service())
    log = keyset.page(request, selectors.health_log(wanted), PER_PAGE, {"q": wanted})
    running = fleetviews.views(selectors.devices().filter(node__in=nodes)) if nodes else []
    context: dict[str, Any] = {
        "faults": [_fault(view) for view in fleetviews.views(rows[:MOST])],
        "has_more": len(rows) > MOST,
        "nodes": [(node, _holders(running, node.id)) for node in nodes],
        "events": [(event, ACTIONS.get(event.data.get("action", ""), "")) for event in log.rows],
        "wanted": wanted,
        "keyset": log,
    }
    return render(request, "console/pages/faults.html", context)


def _fault(view: fleetviews.DeviceView) -> Fault:
    device = view.device
    return Fault(
        view,
        DECIDED.get(device.state, ""),
        WAITS.get(device.repair, ""),
        faults.command_for(device.repair, device.uuid),
    )


def _holders(views: list[fleetviews.DeviceView], node_id: Any) -> list[Any]:
    """Who still runs on a node: one holder per replica."""
    parts = [part for view in views if view.device.node_id == node_id for part in view.parts if part.holder]
    return list({part.holder.replica_id: part.holder for part in parts if part.holder}.values())
