"""Reads of the fleet. Callers have checked that the actor is a platform admin."""

import dataclasses
import uuid

from django.db import models
from django.db.models import Count, Prefetch, Q

from fleet import holders, leases
from fleet.holders import Holder
from fleet.models import Device, Gateway, HealthEvent, Node, Partition
from fleet.states import WATCHED, DeviceState, NodeState
from kernel import clock
from kernel.texts import counted


def nodes() -> "models.QuerySet[Node]":
    """Nodes of the fleet with ``device_count`` and ``replica_count``; removed ones are left out."""
    return _annotated(Node.objects.exclude(state=NodeState.REMOVED)).order_by("name", "id")


def is_silent(node: Node) -> bool:
    """Whether the lease of a node that should be answering has run out: also when very many are silent, and none is
    declared lost for it."""
    expires = node.lease_expires_at
    return node.state in WATCHED and expires is not None and expires <= clock.now()


def node_with_counts(node_id: uuid.UUID) -> Node:
    """One node with the counts of :func:`nodes`, also a removed one."""
    return _annotated(Node.objects.all()).get(id=node_id)


def _annotated(found: "models.QuerySet[Node]") -> "models.QuerySet[Node]":
    return found.annotate(
        device_count=Count("devices", filter=Q(devices__parent=None), distinct=True),
        replica_count=Count("devices__partitions__replica_id", distinct=True),
        device_bytes=models.Subquery(_sum_of("memory_bytes", parent=None)),
        held_device_bytes=models.Subquery(_sum_of("held_bytes")),
    )


def _sum_of(column: str, **whole: None) -> "models.QuerySet[Device, int]":
    return (
        Device.objects.filter(node=models.OuterRef("pk"), present=True, **whole)
        .order_by()
        .values("node")
        .annotate(total=models.Sum(column))
        .values("total")  # type: ignore[return-value]
    )


def devices() -> "models.QuerySet[Device]":
    """Devices with their node and partitions (``partitions.all()``), by node and slot."""
    return (
        Device.objects.select_related("node", "parent")
        .exclude(node__state=NodeState.REMOVED)
        .prefetch_related(Prefetch("partitions", Partition.objects.order_by("created_at", "id")))
        .order_by("node__name", "pci_bus_id", "uuid")
    )


def nodes_holding(found: "models.QuerySet[Device]") -> "models.QuerySet[Node]":
    """The nodes that have a device of ``found``."""
    return Node.objects.filter(id__in=found.order_by().values("node"))


def device_totals() -> dict[str, int]:
    """Of the whole fleet: devices; those held, free, and out of service, which together are all; those not healthy,
    held or not; bytes held and bytes. One query."""
    cut = Device.objects.filter(parent__isnull=False).values("parent")
    whole = ~Q(id__in=cut)  # a GPU that is cut is counted by its instances
    held, well = Q(held_bytes__gt=0), Q(state=DeviceState.HEALTHY)
    found = Device.objects.exclude(node__state=NodeState.REMOVED).aggregate(
        total=Count("id", filter=whole),
        held=Count("id", filter=whole & held),
        free=Count("id", filter=whole & ~held & well),
        away=Count("id", filter=whole & ~held & ~well),
        unwell=Count("id", filter=~well),
        held_bytes=models.Sum("held_bytes", filter=whole, default=0),
        memory_bytes=models.Sum("memory_bytes", filter=whole, default=0),
    )
    return {name: int(value) for name, value in found.items()}


def products() -> list[str]:
    """Names of the devices of the fleet, each once."""
    found = Device.objects.exclude(node__state=NodeState.REMOVED).order_by("product")
    return list(found.values_list("product", flat=True).distinct())


def devices_of(node: Node) -> "models.QuerySet[Device]":
    """The devices of one node, as :func:`devices`."""
    return devices().filter(node=node)


def holders_of(found: "models.QuerySet[Device] | list[Device]") -> dict[uuid.UUID, Holder]:
    """Who holds the partitions of ``found``, by replica id."""
    return holders.describe({part.replica_id for device in found for part in device.partitions.all()})


def health_events(node: Node, limit: int = 50) -> list[HealthEvent]:
    """What the node and its devices said lately, newest first."""
    return list(HealthEvent.objects.select_related("device").filter(node=node).order_by("-id")[:limit])


def health_events_of(device: Device, limit: int = 50) -> list[HealthEvent]:
    """What a device said lately, and what happened to its whole node, newest first."""
    mine = Q(device=device) | Q(device=None, node_id=device.node_id)
    return list(HealthEvent.objects.select_related("device").filter(mine).order_by("-id")[:limit])


def health_log(wanted: str = "") -> "models.QuerySet[HealthEvent]":
    """What all nodes and devices said, newest first; ``wanted`` is part of a code, node name or device UUID."""
    found = HealthEvent.objects.select_related("device", "node").order_by("-id")
    if not wanted:
        return found
    return found.filter(Q(code__icontains=wanted) | Q(node__name__icontains=wanted) | Q(device__uuid__icontains=wanted))


def unwell() -> "models.QuerySet[Device]":
    """Devices with an open fault, as :func:`devices`: the latest first."""
    return devices().exclude(state=DeviceState.HEALTHY).order_by("-state_changed_at", "uuid")


def out_of_service() -> "models.QuerySet[Node]":
    """Nodes on which nothing new is placed, as :func:`nodes`: cordoned, draining, drained or lost."""
    return nodes().exclude(state__in=[NodeState.READY, NodeState.JOINING])


def gateways() -> "models.QuerySet[Gateway]":
    """Gateways that were not removed."""
    return Gateway.objects.filter(removed_at=None)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A statement about the whole fleet, derived now."""

    type: str
    status: bool
    reason: str
    message: str


def conditions() -> list[Condition]:
    """What is to be said about the fleet as a whole."""
    judgement = leases.current_judgement()
    held = judgement.verdict is leases.Verdict.HOLD
    sentence = judgement.sentence if held else "Nodes fall silent one by one, or not at all."
    lost = Node.objects.filter(state=NodeState.LOST).count()
    ready = Node.objects.filter(state=NodeState.READY).count()
    return [
        Condition("MassSilence", held, "ManyNodesSilent" if held else "", sentence),
        Condition(
            "NodesAnswering",
            lost == 0 and ready > 0,
            "NodesLost" if lost else ("" if ready else "NoNodes"),
            f"{counted(ready, 'node')} ready, {lost} lost." if lost or ready else "No node has joined yet.",
        ),
    ]


def fleet_counts() -> dict[str, int]:
    """Numbers for the home page."""
    return Node.objects.exclude(state=NodeState.REMOVED).aggregate(
        nodes=Count("id"),
        ready=Count("id", filter=Q(state=NodeState.READY)),
        lost=Count("id", filter=Q(state=NodeState.LOST)),
    )
