"""Devices as the map draws them: who holds what of each, joined from the fleet and from what replicas report."""

import dataclasses
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import models
from django.db.models import Q

from console.presenters import hbm
from fleet import selectors as fleet
from fleet.holders import Holder
from fleet.models import Device, Partition
from kernel import scope
from serving.models import Replica
from serving.states import ReplicaState


@dataclasses.dataclass(frozen=True)
class Part:
    """A partition with its holder and what that holder's engine reports."""

    partition: Any
    holder: Holder | None
    memory: hbm.Memory | None


@dataclasses.dataclass(frozen=True)
class DeviceView:
    """A device on the map; ``cells`` fill the vessel."""

    device: Any
    parts: list[Part]
    memory: hbm.Memory
    cells: list[hbm.Cell]

    @property
    def tenants(self) -> list[str]:
        """Slugs of those who hold a part."""
        return sorted({part.holder.tenant for part in self.parts if part.holder})


def ledgers_of(devices: Iterable[Any]) -> dict[uuid.UUID, Any]:
    """Memory ledgers by replica, of everything that holds a part of ``devices``."""
    ids = {part.replica_id for device in devices for part in device.partitions.all()}
    if not ids:
        return {}
    with scope.all_tenants():
        return dict(Replica.objects.filter(id__in=ids).values_list("id", "ledger"))


def memory_of(device: Any, ledgers: Mapping[uuid.UUID, Any]) -> hbm.Memory:
    """The whole device: what its replicas report, and what others use of it."""
    known = [hbm.of_ledger(ledgers.get(part.replica_id)) for part in device.partitions.all()]
    sums = {name: sum(getattr(memory, name) for memory in known if memory) for name in hbm.SEGMENTS}
    return hbm.Memory(total=device.memory_bytes, **sums)


def wanted(*, q: str = "", state: str = "", product: str = "", node: str = "") -> "models.QuerySet[Device]":
    """Devices as ``fleet.selectors.devices``, filtered; ``q`` is found in UUID, product, node, tenant and endpoint.

    One query for the holders when there is a ``q``; "" leaves a filter out.
    """
    found = fleet.devices()
    exact = {"state": state, "product": product, "node__name": node}
    found = found.filter(**{name: value for name, value in exact.items() if value})
    if not q:
        return found
    with scope.all_tenants():
        held = Q(tenant__slug__icontains=q) | Q(deployment__endpoint__name__icontains=q)
        holders = list(Replica.objects.exclude(state=ReplicaState.STOPPED).filter(held).values_list("id", flat=True))
    held_parts = Partition.objects.filter(replica_id__in=holders).values("device")
    named = Q(uuid__icontains=q) | Q(product__icontains=q) | Q(node__name__icontains=q)
    return found.filter(named | Q(id__in=held_parts))


def views(devices: Iterable[Any]) -> list[DeviceView]:
    """Devices with holders and memory; two queries for all of them."""
    rows = list(devices)
    ledgers, holders = ledgers_of(rows), fleet.holders_of(rows)
    found = []
    for device in rows:
        parts = [
            Part(part, holders.get(part.replica_id), hbm.of_ledger(ledgers.get(part.replica_id)))
            for part in device.partitions.all()
        ]
        cells = hbm.cells(
            ((part.partition.memory_bytes, part.partition.isolation, part.memory) for part in parts),
            device.memory_bytes,
        )
        found.append(DeviceView(device, parts, memory_of(device, ledgers), cells))
    return found
