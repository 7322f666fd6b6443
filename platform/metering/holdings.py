"""Who holds how much of a device, and for how long: one row per partition, written with the partition itself."""

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from django.db.models.signals import post_delete

from fleet import partitions as fleet_partitions
from fleet.models import Device, DeviceKind, Partition
from kernel import clock, scope
from metering.models import Holding
from quotas import weights
from serving.models import Replica
from serving.selectors import weighted


def listen() -> None:
    """Follow every partition that is given away or freed in this process, in the same transaction."""
    fleet_partitions.taken.connect(_taken, sender=Partition, dispatch_uid="metering.taken")
    post_delete.connect(_freed, sender=Partition, dispatch_uid="metering.freed")


def reconcile() -> int:
    """Make open rows what partitions there are; return how many differed (those from before this room kept books)."""
    with scope.all_tenants():
        open_ids = set(Holding.objects.filter(ended_at=None).values_list("partition_id", flat=True))
    there = set(Partition.objects.values_list("id", flat=True))
    missing = Partition.objects.select_related("device__parent").filter(id__in=there - open_ids)
    _open(missing)
    gone = open_ids - there
    for ident in gone:
        _close(ident)
    return len(missing) + len(gone)


def _taken(sender: object, partitions: Sequence[Partition], **_: Any) -> None:
    _open(partitions)


def _freed(sender: object, instance: Partition, **_: Any) -> None:
    _close(instance.id)


def _open(partitions: Collection[Partition]) -> None:
    """Begin a row for each; what has no owner is nobody's to pay."""
    with scope.all_tenants():
        owners = Replica.objects.filter(id__in={partition.replica_id for partition in partitions}).order_by()
        names = ("tenant_id", "deployment_id", "deployment__endpoint_id", "deployment__revision_id")
        known = {key: rest for key, *rest in owners.values_list("id", *names)}
        rows = [
            _row(partition, *known[partition.replica_id]) for partition in partitions if partition.replica_id in known
        ]
        Holding.objects.bulk_create(rows, ignore_conflicts=True)


def _row(
    partition: Partition, tenant_id: uuid.UUID, deployment_id: uuid.UUID, endpoint_id: uuid.UUID, revision_id: uuid.UUID
) -> Holding:
    device = partition.device
    whole = device.parent or device
    return Holding(
        partition_id=partition.id,
        replica_id=partition.replica_id,
        tenant_id=tenant_id,
        deployment_id=deployment_id,
        endpoint_id=endpoint_id,
        revision_id=revision_id,
        product=whole.product,
        kind=whole.kind,
        millis=_millis(partition, device),
        began_at=partition.created_at,
    )


def _close(partition_id: uuid.UUID) -> None:
    with scope.all_tenants():
        Holding.objects.filter(partition_id=partition_id, ended_at=None).update(ended_at=clock.now())


def _millis(partition: Partition, device: Device) -> int:
    """Thousandths of the device. A CPU counts nothing in quotas; here its share of the memory is told, as CPU-hours."""
    if device.kind == DeviceKind.CPU:
        return weights.part_millis(weights.WHOLE_GPU_MILLIS, partition.memory_bytes, device.memory_bytes)
    return weighted(partition)
