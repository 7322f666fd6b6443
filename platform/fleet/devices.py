"""The devices of a report against the rows: found, changed, missing, sick, well again."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleet import drift
from fleet.facts import DeviceFacts
from fleet.models import Device, DeviceKind, HealthEvent, Node
from fleet.states import DEVICE, DeviceState
from kernel import clock, machine
from kernel.actors import Actor
from ledger import hints
from ledger.record import record_move

MAX_DEVICES = 256
MAX_UUID = 96
#: Reasons that reports set, and that reports may therefore take back.
MISSING, PROBLEM, SHRUNK = "DeviceMissing", "ProblemReported", "MemoryShrunk"
_BY_REPORT = frozenset({MISSING, PROBLEM, SHRUNK})


class Synced(NamedTuple):
    """The node's devices as they are now, by UUID; ``grown`` when usable capacity may have grown."""

    rows: dict[str, Device]
    grown: bool


def sync_devices(node: Node, facts: Sequence[DeviceFacts], *, actor: Actor, drifting: bool) -> Synced:
    """Make the rows say what the report says.

    ``drifting`` also writes the numbers that change all the time. A device is known by its UUID: one that another node
    reported last moves over when nothing holds it there, and is refused (with a health event) when something does.
    The caller has locked the node. Devices are taken in the order of their UUIDs, and another node's is never waited
    for, so that nodes that see the same devices do not wait for each other in a circle.
    """
    reported = {fact.uuid: fact for fact in facts[:MAX_DEVICES] if _makes_sense(fact)}
    rows = {device.uuid: device for device in Device.objects.filter(node=node)}
    new, grown = reported.keys() - rows.keys(), False
    for uuid in sorted(rows.keys() - reported.keys()):  # first: slices of what is gone are free for what is new
        _miss(rows[uuid], actor=actor)
        if rows[uuid].pk is None:
            del rows[uuid]
    if new:
        rows |= _make(node, [reported[uuid] for uuid in sorted(new) if not reported[uuid].parent_uuid], rows)
        rows |= _make(node, [reported[uuid] for uuid in sorted(new) if reported[uuid].parent_uuid in rows], rows)
    drifted: list[drift.Told] = []
    for uuid in sorted(reported, key=lambda each: (bool(reported[each].parent_uuid), each)):
        fact = reported[uuid]
        if fact.parent_uuid and fact.parent_uuid not in rows:
            continue
        if (device := rows.get(uuid) or _adopt(node, fact)) is not None:
            grown |= _update(device, fact, actor=actor) or uuid in new
            rows[uuid] = device
            if (drifting or uuid in new) and _differing(device, numbers := drift.of(fact)):
                drifted.append(drift.Told(node.id, uuid, numbers))
    drift.note(drifted)
    return Synced(rows, grown)


def _makes_sense(fact: DeviceFacts) -> bool:
    return fact.kind in DeviceKind.values and fact.memory_bytes > 0 and 0 < len(fact.uuid) <= MAX_UUID


def _miss(device: Device, *, actor: Actor) -> None:
    if not device.present:
        return
    if device.parent_id is not None and not device.held_bytes:
        device.delete()  # an instance lives as long as its layout
    elif _write(device, {"present": False}):
        _ail(device, MISSING, "The node's last report does not list this device.", actor=actor)


def _make(node: Node, facts: Sequence[DeviceFacts], rows: Mapping[str, Device]) -> dict[str, Device]:
    """Rows for devices that nobody has reported before, by UUID; what another node is first to report is left out."""
    known = set(Device.objects.filter(uuid__in=[fact.uuid for fact in facts]).values_list("uuid", flat=True))
    made = [
        Device(
            node=node,
            uuid=fact.uuid,
            state_changed_at=clock.now(),
            parent=rows.get(fact.parent_uuid),
            slice_start=fact.slice_start,
            slice_count=fact.slice_count,
            **_steady(fact),
            **drift.of(fact),
        )
        for fact in facts
        if fact.uuid not in known
    ]
    Device.objects.bulk_create(made, ignore_conflicts=True)
    ours = set(Device.objects.filter(id__in=[device.id for device in made]).values_list("id", flat=True))
    return {device.uuid: device for device in made if device.id in ours}


def _adopt(node: Node, fact: DeviceFacts) -> Device | None:
    """The row of a device that another node reported last; ``None`` where it stays that node's."""
    made = Device.objects.filter(uuid=fact.uuid).first()
    if made is None:
        return None  # it could not be made: its slices are another instance's, as a mistake in the report has it
    if made.held_bytes:
        said = HealthEvent.objects.filter(node=node, code="DeviceElsewhere", data__uuid=fact.uuid).exists()
        if not said:
            message = f"Device {fact.uuid} is reported here, but replicas hold it on another node; it is not used here."
            _event(node, None, "DeviceElsewhere", message, {"uuid": fact.uuid, "node": str(made.node_id)})
        return None
    free = Device.objects.select_for_update(no_key=True, skip_locked=True).filter(held_bytes=0)
    known = free.filter(id=made.id).first()
    if known is None:
        return None  # it is being used right now; the next report asks again
    known.node = node
    known.save(update_fields=["node"])
    return known


def _steady(fact: DeviceFacts, promised: int = 0) -> dict[str, Any]:
    """Columns that change seldom; what is ``promised`` stays on the books."""
    return {
        "kind": fact.kind,
        "product": fact.product[:120],
        "memory_bytes": max(fact.memory_bytes, promised),
        "present": True,
        "compute_capability": fact.compute_capability[:16],
        "driver_version": fact.driver_version[:40],
        "pci_bus_id": fact.pci_bus_id[:32],
        "stand_in": fact.stand_in,
        "facts": dict(fact.more),
    }


def _differing(device: Device, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if getattr(device, name) != value}


def _update(device: Device, fact: DeviceFacts, *, actor: Actor) -> bool:
    """Write what changed, but for what drifts; return True when the device has become usable."""
    changed = _differing(device, _steady(fact, device.held_bytes))
    larger = changed.get("memory_bytes", 0) > device.memory_bytes
    grown = larger or "present" in changed or changed.get("stand_in", False)
    if changed and not _write(device, changed):
        return False
    if fact.problem:
        _ail(device, PROBLEM, fact.problem[:1000], actor=actor)
        return False
    if fact.memory_bytes < device.held_bytes:
        said = f"The device reports {fact.memory_bytes} bytes, but {device.held_bytes} are promised to replicas."
        _ail(device, SHRUNK, said, actor=actor)
        return False
    return _recover(device, actor=actor) or grown


def _write(device: Device, values: Mapping[str, Any]) -> bool:
    """Write ``values``; False when another node has taken the device over meanwhile."""
    if not Device.objects.filter(id=device.id, node_id=device.node_id).update(**values):
        return False
    for name, value in values.items():
        setattr(device, name, value)
    return True


def _ail(device: Device, reason: str, message: str, *, actor: Actor) -> None:
    if device.state == DeviceState.HEALTHY:
        move = machine.move(device, DEVICE, DeviceState.SUSPECT, reason=reason, message=message)
        record_move(move, actor=actor, tenant_id=None, subject_label=device.uuid)
        _event(device.node, device, reason, message, {"uuid": device.uuid})
    elif device.state == DeviceState.SUSPECT and device.reason in _BY_REPORT and device.reason != reason:
        Device.objects.filter(id=device.id).update(reason=reason, message=message)
        device.reason, device.message = reason, message


def _recover(device: Device, *, actor: Actor) -> bool:
    if device.state != DeviceState.SUSPECT or device.reason not in _BY_REPORT:
        return False
    move = machine.move(device, DEVICE, DeviceState.HEALTHY, reason="Reported", message="The node reports it as well.")
    record_move(move, actor=actor, tenant_id=None, subject_label=device.uuid)
    _event(device.node, device, "Recovered", "The node reports the device as well again.", {"uuid": device.uuid})
    return True


def _event(node: Node, device: Device | None, code: str, message: str, data: Mapping[str, Any]) -> None:
    HealthEvent.objects.create(at=clock.now(), node=node, device=device, code=code, message=message, data=dict(data))
    hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "devices"})
