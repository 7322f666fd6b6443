"""Who holds how much of a device, and for how long: one row per partition, written with the partition itself."""

import uuid
from typing import Any

from django.db.models.signals import post_delete, post_save

from fleet.models import Device, DeviceKind, Partition
from kernel import clock, scope
from metering.models import Holding
from quotas import weights
from serving.models import Replica
from serving.selectors import weighted


def listen() -> None:
    """Follow every partition that is given away or freed in this process, in the same transaction."""
    post_save.connect(_taken, sender=Partition, dispatch_uid="metering.taken")
    post_delete.connect(_freed, sender=Partition, dispatch_uid="metering.freed")


def reconcile() -> int:
    """Make open rows what partitions there are; return how many differed (those from before this room kept books)."""
    with scope.all_tenants():
        open_ids = set(Holding.objects.filter(ended_at=None).values_list("partition_id", flat=True))
    there = set(Partition.objects.values_list("id", flat=True))
    missing = Partition.objects.select_related("device__parent").filter(id__in=there - open_ids)
    for partition in missing:
        _open(partition)
    gone = open_ids - there
    for ident in gone:
        _close(ident)
    return len(missing) + len(gone)


def _taken(sender: object, instance: Partition, created: bool, **_: Any) -> None:
    if created:
        _open(instance)


def _freed(sender: object, instance: Partition, **_: Any) -> None:
    _close(instance.id)


def _open(partition: Partition) -> None:
    with scope.all_tenants():
        replica = Replica.objects.select_related("deployment").filter(id=partition.replica_id).first()
        if replica is None:  # a partition without an owner is nobody's to pay
            return
        device = partition.device
        whole = device.parent or device
        row = Holding(
            partition_id=partition.id,
            replica_id=replica.id,
            tenant_id=replica.tenant_id,
            deployment_id=replica.deployment_id,
            endpoint_id=replica.deployment.endpoint_id,
            revision_id=replica.deployment.revision_id,
            product=whole.product,
            kind=whole.kind,
            millis=_millis(partition, device),
            began_at=partition.created_at,
        )
        Holding.objects.bulk_create([row], ignore_conflicts=True)


def _close(partition_id: uuid.UUID) -> None:
    with scope.all_tenants():
        Holding.objects.filter(partition_id=partition_id, ended_at=None).update(ended_at=clock.now())


def _millis(partition: Partition, device: Device) -> int:
    """Thousandths of the device. A CPU counts nothing in quotas; here its share of the memory is told, as CPU-hours."""
    if device.kind == DeviceKind.CPU:
        return weights.part_millis(weights.WHOLE_GPU_MILLIS, partition.memory_bytes, device.memory_bytes)
    return weighted(partition)
