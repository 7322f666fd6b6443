"""Taking and freeing parts of devices: the only code that moves the counters of devices and nodes.

Both run in the caller's transaction and lock the node, then its devices by UUID, always in this order. The database
refuses what these functions might get wrong: a second owner, a device over its memory, whole and shared at once.
"""

import dataclasses
import uuid
from collections.abc import Collection

from django.db import IntegrityError, transaction
from django.db.models import F

from fleet.errors import CapacityGone
from fleet.models import Device, Node, Partition
from kernel import clock
from kernel.isolation import MAX_MPS_CLIENTS, Isolation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank takes: device memory and what it holds of the node beside it."""

    memory_bytes: int
    host_bytes: int
    millicpus: int
    isolation: Isolation = Isolation.COOPERATIVE
    thread_percentage: int = 0


def take(*, replica_id: uuid.UUID, device_id: uuid.UUID, share: Share, rank: int = 0) -> Partition:
    """Give ``share`` of a device to a rank of a replica.

    Raises:
        CapacityGone: the device cannot hold it (any more), or the rank has a partition already.
    """
    _require_transaction()
    device = lock_device(device_id)
    if device.is_cut:
        raise CapacityGone(f"Device {device.uuid} is cut by MIG: only its instances can be given away.")
    if device.held_bytes + share.memory_bytes > device.memory_bytes:
        raise CapacityGone(
            f"Device {device.uuid} has {device.memory_bytes - device.held_bytes} bytes left; "
            f"{share.memory_bytes} are needed."
        )
    if device.held_percent + share.thread_percentage > 100:
        raise CapacityGone(
            f"Device {device.uuid} has {100 - device.held_percent} % of its multiprocessors left; "
            f"{share.thread_percentage} % are asked for."
        )
    if share.isolation is Isolation.MPS and device.partitions.count() >= MAX_MPS_CLIENTS:
        raise CapacityGone(f"Device {device.uuid} has {MAX_MPS_CLIENTS} MPS shares already; its server takes no more.")
    try:
        with transaction.atomic():
            partition = Partition.objects.create(
                device=device,
                isolation=share.isolation,
                memory_bytes=share.memory_bytes,
                host_bytes=share.host_bytes,
                millicpus=share.millicpus,
                thread_percentage=share.thread_percentage,
                replica_id=replica_id,
                rank=rank,
                created_at=clock.now(),
            )
    except IntegrityError as exc:
        raise CapacityGone(
            f"Device {device.uuid} cannot be given to this replica: it has another owner, or shares of another kind."
        ) from exc
    Device.objects.filter(id=device.id).update(
        held_bytes=F("held_bytes") + share.memory_bytes, held_percent=F("held_percent") + share.thread_percentage
    )
    Node.objects.filter(id=device.node_id).update(
        held_host_bytes=F("held_host_bytes") + share.host_bytes, held_millicpus=F("held_millicpus") + share.millicpus
    )
    return partition


def lock_device(device_id: uuid.UUID, *, on: uuid.UUID | None = None) -> Device:
    """The device, locked together with its node until the transaction ends: nothing on it changes meanwhile.

    Whoever holds locks on nodes names the node that it expects (``on``): another one would be locked out of order.

    Raises:
        CapacityGone: it is gone, or has just moved to another node.
    """
    _require_transaction()
    node_id = Device.objects.filter(id=device_id).values_list("node_id", flat=True).first()
    if node_id is None:
        raise CapacityGone("The device is gone.")
    if on not in (None, node_id):
        raise CapacityGone("The device has moved to another node since the plan was made.")
    lock_nodes([node_id])
    device = Device.objects.select_for_update(no_key=True).filter(id=device_id, node_id=node_id).first()
    if device is None:
        raise CapacityGone("The device has just left its node.")
    return device


def lock_nodes(node_ids: Collection[uuid.UUID]) -> None:
    """Lock the rows of nodes, always in the same order, until the transaction ends; nothing of them is read."""
    _require_transaction()
    list(Node.objects.select_for_update(no_key=True).filter(id__in=node_ids).order_by("id").values_list("id"))


def release(replica_id: uuid.UUID, *, node_id: uuid.UUID | None = None) -> int:
    """Free everything that ``replica_id`` holds (on one node, where it is named); return how many partitions.

    Freeing twice is harmless.
    """
    _require_transaction()
    rows = (
        Partition.objects.select_related("device")
        .defer("device__facts", "device__readings")
        .filter(replica_id=replica_id)
    )
    if node_id is not None:
        rows = rows.filter(device__node_id=node_id)
    held = list(rows.order_by("device__node_id", "device__uuid"))
    freed = 0
    for partition in held:
        lock_nodes([partition.device.node_id])
        list(Device.objects.select_for_update(no_key=True).filter(id=partition.device_id).values_list("id").order_by())
        if not Partition.objects.filter(id=partition.id).delete()[0]:
            continue
        freed += 1
        Device.objects.filter(id=partition.device_id).update(
            held_bytes=F("held_bytes") - partition.memory_bytes,
            held_percent=F("held_percent") - partition.thread_percentage,
        )
        Node.objects.filter(id=partition.device.node_id).update(
            held_host_bytes=F("held_host_bytes") - partition.host_bytes,
            held_millicpus=F("held_millicpus") - partition.millicpus,
        )
    return freed


def _require_transaction() -> None:
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("partitions move in the transaction of their change")
