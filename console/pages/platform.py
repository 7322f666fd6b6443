"""Pages of platform admins: overview, GPU map, nodes, system health."""

import uuid
from collections import Counter
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import fleetviews, health, keyset
from console.freshness import before_secrets
from console.pages import tenants
from console.presenters import audit, glyphs
from console.web import Place, Undo, came_from, done, platform_page, refused
from fleet import access, care, faults, selectors, services
from fleet.api.views import join_command
from fleet.models import DeviceKind, MachineKind
from fleet.states import DeviceState, NodeState
from kernel import clock, errors
from kernel.texts import sought
from ledger import generations
from ledger.models import AuditEvent

VERBS = {
    "cordon": (services.cordon, gettext_lazy("Nothing new is placed on %(name)s.")),
    "uncordon": (services.uncordon, gettext_lazy("%(name)s is in service again.")),
    "drain": (services.drain, gettext_lazy("Replicas move off %(name)s.")),
    "remove": (services.remove, gettext_lazy("%(name)s is out of the fleet.")),
}
DEVICE_VERBS = {
    "quarantine": (care.quarantine, gettext_lazy("Replicas move off %(name)s.")),
    "return": (care.return_to_service, gettext_lazy("%(name)s is on its way back into service.")),
    "retire": (care.retire, gettext_lazy("%(name)s is retired; its replicas move.")),
}
RECENT = 8
NODES_ON_MAP = 12


@platform_page
def overview(request: HttpRequest, place: Place) -> HttpResponse:
    """The fleet in one sentence, its conditions, what is lost, who holds what."""
    gateways = list(selectors.gateways())
    context = {
        "counts": selectors.fleet_counts(),
        "conditions": selectors.conditions(),
        "totals": selectors.device_totals(),
        "gateways": [(gateway, is_live(gateway)) for gateway in gateways],
        "tenants": tenants.newest(),
        "lines": [audit.line(event) for event in AuditEvent.objects.filter(tenant_id=None).order_by("-id")[:RECENT]],
    }
    return render(request, "console/pages/platform.html", context)


def is_live(machine: Any) -> bool:
    """Whether the lease of a node or gateway still runs."""
    return machine.lease_expires_at is not None and machine.lease_expires_at > clock.now()


@platform_page
def devices(request: HttpRequest, place: Place) -> HttpResponse:
    """The map: devices as vessels, a page of nodes at a time; the fleet's totals on top, one device in the panel."""
    kept = {name: sought(request.GET.get(name, "")) for name in ("q", "state", "product", "node")}
    found = fleetviews.wanted(**kept)
    page = keyset.page(request, selectors.nodes_holding(found), NODES_ON_MAP, kept)
    nodes: dict[Any, list[fleetviews.DeviceView]] = {node.id: [] for node in page.rows}
    for view in fleetviews.views(found.filter(node__in=page.rows)):
        nodes[view.device.node_id].append(view)
    chosen = next(iter(fleetviews.views(selectors.devices().filter(uuid=sought(request.GET.get("device", ""))))), None)
    context = {
        "nodes": [(node, nodes[node.id], _kinds(nodes[node.id])) for node in page.rows],
        "keyset": page,
        "chosen": chosen,
        "events": selectors.health_events_of(chosen.device, limit=12) if chosen else [],
        "layout": _layout(chosen.device) if chosen else [],
        "advice": faults.command_for(chosen.device.repair, chosen.device.uuid) if chosen else "",
        "totals": selectors.device_totals(),
        "states": [(state.value, glyphs.of("gpu", state.value).word) for state in DeviceState],
        "products": selectors.products(),
        "kept": kept,
        "rest": urlencode({name: value for name, value in {**kept, **keyset.at(request)}.items() if value}),
        "wanted": kept["q"],
        "is_filtered": any(kept.values()),
    }
    return render(request, "console/pages/devices.html", context)


def _layout(device: Any) -> list[dict[str, Any]]:
    """The MIG instances that the device reports, by their first slice."""
    mig = device.facts.get("mig") or {}
    return sorted(mig.get("instances") or (), key=lambda each: each.get("start", 0))


def _kinds(views: list[fleetviews.DeviceView]) -> list[tuple[str, bool, int]]:
    """What devices a node has: product, whether it is simulated, how many."""
    counts = Counter((view.device.product, view.device.kind == DeviceKind.SIMULATED) for view in views)
    return [(product, is_simulated, count) for (product, is_simulated), count in counts.items()]


@platform_page
def nodes(request: HttpRequest, place: Place) -> HttpResponse:
    """Machines and gateways."""
    found = list(selectors.nodes())
    context = {
        "nodes": found,
        "silent": {node.id for node in found if selectors.is_silent(node)},
        "gateways": [(gateway, is_live(gateway)) for gateway in selectors.gateways()],
    }
    return render(request, "console/pages/nodes.html", context)


@platform_page
def node(request: HttpRequest, place: Place, node_id: uuid.UUID) -> HttpResponse:
    """One machine."""
    found = access.access_node(place.actor, node_id)
    context = {
        "node": selectors.node_with_counts(found.id),
        "is_silent": selectors.is_silent(found),
        "views": fleetviews.views(selectors.devices_of(found)),
        "events": selectors.health_events(found),
    }
    return render(request, "console/pages/node.html", context)


@platform_page
def node_verb(request: HttpRequest, place: Place, node_id: uuid.UUID, verb: str) -> HttpResponse:
    """The dialog of cordon, uncordon, drain or remove, and the act."""
    if verb not in VERBS:
        raise errors.NotFound("There is no such act.")
    found = access.access_node(place.actor, node_id)
    back = came_from(
        request, reverse("console:platform-node", kwargs={"node_id": node_id}), reverse("console:platform-faults")
    )
    if request.method != "POST":
        parts = [part for view in fleetviews.views(selectors.devices_of(found)) for part in view.parts]
        holders = sorted({part.holder.tenant for part in parts if part.holder})
        context = {
            "node": selectors.node_with_counts(found.id),
            "verb": verb,
            "goes_on": found.state == NodeState.DRAINING,
            "tenants_here": holders,
            "needs_name": verb in ("drain", "remove"),
        }
        return render(request, "console/pages/node_verb.html", context)
    if verb in ("drain", "remove") and request.POST.get("name", "").strip() != found.name:
        return refused(request, errors.InvalidInput(_("The name does not match.")), back)
    act, said = VERBS[verb]
    options = {"accept_gap": request.POST.get("accept_gap") == "on"} if verb == "drain" else {}
    try:
        act(actor=place.actor, node=found, **options)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    undo = None
    if verb == "cordon" and found.state == NodeState.READY:
        undo = Undo(reverse("console:platform-node-verb", kwargs={"node_id": node_id, "verb": "uncordon"}))
    to = reverse("console:platform-nodes") if verb == "remove" else back
    return done(request, str(said) % {"name": found.name}, to, undo)


@platform_page
def device_verb(request: HttpRequest, place: Place, device_id: uuid.UUID, verb: str) -> HttpResponse:
    """The dialog of quarantine, return or retire, and the act."""
    if verb not in DEVICE_VERBS:
        raise errors.NotFound("There is no such act.")
    found = access.access_device(place.actor, device_id)
    shown = f"{reverse('console:platform-devices')}?{urlencode({'device': found.uuid})}"
    back = came_from(request, shown, reverse("console:platform-faults"))
    if request.method != "POST":
        (view,) = fleetviews.views(selectors.devices().filter(id=device_id))
        context = {"device": found, "verb": verb, "replicas": len(view.parts), "tenants_here": view.tenants}
        return render(request, "console/pages/device_verb.html", context)
    act, said = DEVICE_VERBS[verb]
    try:
        act(actor=place.actor, device=found, message=request.POST.get("message", "").strip()[:300])
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, str(said) % {"name": found.product}, back)


@never_cache
@platform_page
@before_secrets
def join(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog for a join token, and the token in the answer to its POST."""
    kind = MachineKind.GATEWAY if request.POST.get("kind") == MachineKind.GATEWAY else MachineKind.NODE
    if request.method != "POST":
        return render(request, "console/pages/join_form.html")
    token, text = services.create_join_token(actor=place.actor, kind=kind, name=request.POST.get("name", "").strip())
    return render(
        request, "console/pages/join_created.html", {"token": token, "secret": text, "command": join_command(kind)}
    )


@platform_page
def system(request: HttpRequest, place: Place) -> HttpResponse:
    """Whether the parts of the control plane answer, and how old what they say is."""
    context = {
        "services": health.services(),
        "gateways": [(gateway, is_live(gateway)) for gateway in selectors.gateways()],
        "generation": generations.current(generations.ROUTES),
        "loops": health.loops(),
        "outbox": health.outbox(),
        "conditions": health.conditions(),
    }
    return render(request, "console/pages/system.html", context)
