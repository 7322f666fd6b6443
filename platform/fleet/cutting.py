"""How GPUs are cut by MIG: layouts that a person wants, sent to their nodes, and what became of them.

Only a GPU that nobody holds a part of is cut. What a node cannot make it puts back, and says so.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from django.db import transaction

from fleet import layouts, partitions
from fleet.changes import Changes
from fleet.errors import LayoutImpossible, LayoutInUse
from fleet.facts import LayoutFacts
from fleet.layouts import Geometry
from fleet.models import Device, Partition
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from kernel.texts import counted
from ledger.record import record
from tenants import access

#: Profile id and first memory slice of every instance.
Placements = Sequence[tuple[int, int]]


def cut(*, actor: Actor, device: Device, placements: Placements) -> Device:
    """Want ``device`` to be cut like this; no placements: whole again.

    Raises:
        LayoutImpossible: no GPU of the product can have this layout; the text says why.
        LayoutInUse: replicas hold parts of it.
    """
    geometry_of(device)

    def act(row: Device) -> list[list[int]]:
        try:
            layouts.check(geometry_of(row), placements)
        except layouts.Illegal as exc:
            raise LayoutImpossible(str(exc)) from exc
        return [[profile, start] for profile, start in sorted(placements, key=lambda pair: pair[1])]

    return _want(actor, device, act)


def roll_back(*, actor: Actor, device: Device) -> Device:
    """Want the layout that was wanted before the last change.

    Raises:
        LayoutImpossible: there was none.
        LayoutInUse: replicas hold parts of it.
    """

    def act(row: Device) -> list[list[int]]:
        if row.layout is None:
            raise LayoutImpossible("The layout of this device was never changed here.")
        before: list[list[int]] = row.layout_before or []
        return before

    return _want(actor, device, act)


def geometry_of(device: Device) -> Geometry:
    """What ``device`` can be cut into.

    Raises:
        LayoutImpossible: nothing: it is an instance itself, or its product knows no MIG.
    """
    found = None if device.parent_id else layouts.geometry_of(device.product, device.facts.get("mig"))
    if found is None:
        raise LayoutImpossible(f"{device.product} cannot be cut into MIG instances.")
    return found


@retry_on_conflict
def _want(actor: Actor, device: Device, act: Callable[[Device], list[list[int]]]) -> Device:
    access.require_platform_admin(actor)
    with transaction.atomic():
        row = partitions.lock_device(device.id)
        wanted = act(row)
        _require_idle(row)
        if row.layout == wanted:
            return row
        values = {
            "layout": wanted,
            "layout_before": row.layout or reported(row),
            "layout_generation": row.layout_generation + 1,
            "layout_phase": "waiting",
            "layout_message": "Its node has not read it yet.",
        }
        Device.objects.filter(id=row.id).update(**values)
        for name, value in values.items():
            setattr(row, name, value)
        record(
            actor=actor, action="device.layout_set", subject_kind="device", subject_id=row.id, tenant_id=None,
            subject_label=row.uuid, data={"layout": wanted, "generation": row.layout_generation},
        )  # fmt: skip
        changes = Changes()
        changes.node(row.node_id)
        changes.platform("devices")
        changes.announce()
    return row


def reported(row: Device) -> list[list[int]]:
    """The instances that a GPU has by its node's report, as pairs of profile id and first slice."""
    instances = (row.facts.get("mig") or {}).get("instances") or ()
    return sorted(([int(each["profile_id"]), int(each.get("start", 0))] for each in instances), key=lambda p: p[1])


def _require_idle(row: Device) -> None:
    instances = Device.objects.select_for_update(no_key=True).filter(parent=row).order_by("uuid")
    held = Partition.objects.filter(device_id__in=[row.id, *instances.values_list("id", flat=True)])
    replicas = held.values("replica_id").distinct().count()
    if replicas:
        raise LayoutInUse(
            f"A layout changes only on a GPU that nobody uses; {counted(replicas, 'replica')} would lose a place here. "
            "Quarantine it first and wait until nothing runs there.",
            data={"replicas": replicas},
        )


def hear(rows: Mapping[str, Device], told: Collection[LayoutFacts], changes: Changes) -> None:
    """Note how far layouts are, in the transaction of a report. One of an older generation is not heard."""
    for fact in told:
        row = rows.get(fact.device_uuid)
        if row is None or row.layout is None or fact.generation != row.layout_generation:
            continue
        if (row.layout_phase, row.layout_message) != (fact.phase, fact.message):
            row.layout_phase, row.layout_message = fact.phase, fact.message
            Device.objects.filter(id=row.id).update(layout_phase=fact.phase, layout_message=fact.message)
            changes.platform("devices")


def wanted_of(node_id: uuid.UUID) -> list[Device]:
    """Devices of a node whose layout somebody has decided."""
    rows = Device.objects.filter(node_id=node_id, parent=None).exclude(layout=None)
    return list(rows.order_by("uuid").only("uuid", "layout", "layout_generation"))
