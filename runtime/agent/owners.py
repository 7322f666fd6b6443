"""Who uses a device: replicas by what they were granted, processes by the session that an engine opened."""

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from runtime.agent.replicas import Slot
from runtime.wire.assignments import Desired, Share
from runtime.wire.devices import DeviceReport, GpuProcess
from runtime.wire.reports import Phase

_RESTING = frozenset({Phase.STOPPED, Phase.FAILED})


def on_devices(slots: Iterable[Slot]) -> dict[str, str]:
    """Device UUID to a replica that runs on it, or is about to."""
    return {
        grant.uuid: slot.id
        for slot in slots
        if slot.running or (slot.assignment.desired is Desired.RUN and slot.phase not in _RESTING and not slot.blocked)
        for grant in slot.assignment.devices
    }


def shared_devices(slots: Iterable[Slot]) -> set[str]:
    """UUIDs of the GPUs whose MPS daemon is needed."""
    return {
        grant.uuid
        for slot in slots
        if slot.running or slot.assignment.desired is Desired.RUN
        for grant in slot.assignment.devices
        if grant.share is Share.MPS
    }


def with_owners(devices: Sequence[DeviceReport], slots: Iterable[Slot]) -> list[DeviceReport]:
    """``devices`` with the replica of each process that is one of ours."""
    leaders = {slot.running.process.pid: slot.id for slot in slots if slot.running}
    if not leaders:
        return list(devices)
    return [
        msgspec.structs.replace(device, processes=[_owned(item, leaders) for item in device.processes])
        if device.processes
        else device
        for device in devices
    ]


def _owned(process: GpuProcess, leaders: Mapping[int, str]) -> GpuProcess:
    try:
        leader = os.getsid(process.pid)
    except OSError:
        return process
    return msgspec.structs.replace(process, replica_id=leaders[leader]) if leader in leaders else process


def engine_memory(slots: Mapping[str, Slot], device_uuid: str) -> int:
    """Resident bytes of the engines on one device; called from a worker thread."""
    return sum(
        slot.running.process.memory_bytes()
        for slot in list(slots.values())
        if slot.running and any(grant.uuid == device_uuid for grant in slot.assignment.devices)
    )
