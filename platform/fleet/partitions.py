"""Taking and freeing parts of devices: the only code that moves the counters of devices and nodes.

Both run in the caller's transaction and lock the node, then its devices by UUID, always in this order. The database
refuses what these functions might get wrong: a second owner, a device over its memory, whole and shared at once.
"""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.db import IntegrityError, models, transaction
from django.db.models import F
from django.dispatch import Signal

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """What one rank of a replica takes of a ``device``, which is locked."""

    device: Device
    share: Share
    rank: int = 0


#: Sent with ``partitions`` (a list, their devices at hand) in the transaction in which they are given away.
taken: Final = Signal()


def take(replica_id: uuid.UUID, ranks: Sequence[Rank]) -> list[Partition]:
    """Give all ``ranks`` of a replica their shares. After a refusal the transaction can only be rolled back.

    The number of queries does not grow with the ranks, as long as they take the same of every device and node.

    Raises:
        CapacityGone: a device cannot hold its rank (any more), or a rank has a partition already.
    """
    _require_transaction()
    before: Counter[uuid.UUID] = Counter()
    for each in ranks:
        _require_room(each.device, each.share, before[each.device.id])
        each.device.held_bytes += each.share.memory_bytes  # another rank may be on the same device
        each.device.held_percent += each.share.thread_percentage
        before[each.device.id] += 1
    rows = [_row(replica_id, each) for each in ranks]
    try:
        Partition.objects.bulk_create(rows)
    except IntegrityError as exc:
        named = ", ".join(sorted({each.device.uuid for each in ranks}))
        raise CapacityGone(
            f"Device {named} cannot be given to this replica: it has another owner, or shares of another kind."
        ) from exc
    _raise(
        Device.objects.all(),
        ("held_bytes", "held_percent"),
        ((row.device_id, (row.memory_bytes, row.thread_percentage)) for row in rows),
    )
    _raise(
        Node.objects.all(),
        ("held_host_bytes", "held_millicpus"),
        ((row.device.node_id, (row.host_bytes, row.millicpus)) for row in rows),
    )
    taken.send(sender=Partition, partitions=rows)
    return rows


def _row(replica_id: uuid.UUID, each: Rank) -> Partition:
    share = each.share
    return Partition(
        device=each.device,
        isolation=share.isolation,
        memory_bytes=share.memory_bytes,
        host_bytes=share.host_bytes,
        millicpus=share.millicpus,
        thread_percentage=share.thread_percentage,
        replica_id=replica_id,
        rank=each.rank,
        created_at=clock.now(),
    )


def _require_room(device: Device, share: Share, before: int) -> None:
    """Say what ``device`` lacks, where the database would only refuse; of MPS shares nothing else counts them.

    ``before`` are those that the same replica has just been given there.
    """
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
    if share.isolation is Isolation.MPS and device.partitions.count() + before >= MAX_MPS_CLIENTS:
        raise CapacityGone(f"Device {device.uuid} has {MAX_MPS_CLIENTS} MPS shares already; its server takes no more.")


def _raise(
    rows: "models.QuerySet[Any]", names: Sequence[str], amounts: Iterable[tuple[uuid.UUID, tuple[int, ...]]]
) -> None:
    """Add to the counters ``names`` of rows by id; those that get the same are written together."""
    totals: dict[uuid.UUID, tuple[int, ...]] = {}
    for key, more in amounts:
        so_far = totals.get(key, (0,) * len(names))
        totals[key] = tuple(a + b for a, b in zip(so_far, more, strict=True))
    alike: dict[tuple[int, ...], list[uuid.UUID]] = {}
    for key, total in totals.items():
        alike.setdefault(total, []).append(key)
    for total, keys in alike.items():
        added = {name: F(name) + number for name, number in zip(names, total, strict=True)}
        rows.filter(id__in=keys).update(**added)


def lock(wanted: Mapping[uuid.UUID, uuid.UUID]) -> dict[uuid.UUID, Device]:
    """Devices by id, with the node on which each is expected: nodes and devices are locked, and as they are now.

    Their nodes and parents are at hand. Locks are taken in the one order: nodes by id, then devices by node and UUID.

    Raises:
        CapacityGone: one is gone, or has moved to another node.
    """
    _require_transaction()
    nodes = Node.objects.select_for_update(no_key=True).filter(id__in=set(wanted.values())).order_by("id")
    at_hand = {node.id: node for node in nodes.defer("stored_sha256")}
    rows = Device.objects.select_for_update(no_key=True).filter(id__in=list(wanted), node_id__in=list(at_hand))
    found = {device.id: device for device in rows.defer("readings").order_by("node_id", "uuid")}
    for device_id, node_id in wanted.items():
        if device_id not in found or found[device_id].node_id != node_id:
            raise CapacityGone("A device is gone, or has just moved to another node.")
        found[device_id].node = at_hand[node_id]
    _with_parents(found.values())
    return found


def _with_parents(devices: Iterable[Device]) -> None:
    """Put the GPUs at hand from which MIG instances are cut: they go bad under the lock of their node alone."""
    cut = [device for device in devices if device.parent_id is not None]
    gpus = Device.objects.defer("readings").in_bulk({device.parent_id for device in cut}) if cut else {}
    for device in cut:
        device.parent = gpus[device.parent_id]


def lock_device(device_id: uuid.UUID) -> Device:
    """The device, locked together with its node until the transaction ends: nothing on it changes meanwhile.

    Raises:
        CapacityGone: it is gone, or has just moved to another node.
    """
    _require_transaction()
    node_id = Device.objects.filter(id=device_id).order_by().values_list("node_id", flat=True).first()
    if node_id is None:
        raise CapacityGone("The device is gone.")
    return lock({device_id: node_id})[device_id]


def _lock_node(node_id: uuid.UUID) -> None:
    list(Node.objects.select_for_update(no_key=True).filter(id=node_id).order_by().values_list("id"))


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
        _lock_node(partition.device.node_id)
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
