"""Filters (pure): may this replica go on that device, and if not, why not, as a code and in a sentence with numbers."""

import dataclasses
import enum
from collections.abc import Mapping

from fleet.states import DeviceState, NodeState
from scheduling.need import Need
from scheduling.snapshot import DeviceView, NodeView
from scheduling.words import cpus, size


class Reason(enum.StrEnum):
    """Why a device cannot take a replica."""

    NODE_NOT_READY = "NodeNotReady"
    NODE_LOST = "NodeLost"
    NODE_CORDONED = "NodeCordoned"
    NODE_DRAINING = "NodeDraining"
    SIMULATED_DEVICE = "SimulatedDevice"
    WRONG_DEVICE_KIND = "WrongDeviceKind"
    DEVICE_MISSING = "DeviceMissing"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_TAKEN = "DeviceTaken"
    INSUFFICIENT_DEVICE_MEMORY = "InsufficientDeviceMemory"
    INSUFFICIENT_HOST_MEMORY = "InsufficientHostMemory"
    INSUFFICIENT_CPU = "InsufficientCpu"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """``short_by`` is what is missing, in bytes or thousandths of a CPU; 0 where nothing of the kind would help."""

    reason: Reason
    message: str
    short_by: int = 0


def refuse(device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Refusal | None:
    """Return why ``device`` cannot take the replica, ``None`` when it can. The first filter that refuses is named."""
    return (
        _node(node)
        or _kind(device, needs)
        or _health(device)
        or _device_memory(device, needs[device.kind])
        or _host_memory(node, needs[device.kind])
        or _cpu(node, needs[device.kind])
    )


def _node(node: NodeView) -> Refusal | None:
    match node.state:
        case NodeState.READY:
            return None
        case NodeState.CORDONED:
            return Refusal(Reason.NODE_CORDONED, f"Node {node.name} is cordoned: nothing new is placed there.")
        case NodeState.DRAINING | NodeState.DRAINED:
            return Refusal(Reason.NODE_DRAINING, f"Node {node.name} is being drained.")
        case NodeState.LOST:
            return Refusal(Reason.NODE_LOST, f"Node {node.name} does not answer.")
        case _:
            return Refusal(
                Reason.NODE_NOT_READY, f"Node {node.name} is {node.state}; it has not reported for work yet."
            )


def _kind(device: DeviceView, needs: Mapping[str, Need]) -> Refusal | None:
    if device.kind == "simulated":
        return Refusal(Reason.SIMULATED_DEVICE, f"{device.product} is simulated: no engine can run on it.")
    if device.kind not in needs:
        return Refusal(
            Reason.WRONG_DEVICE_KIND,
            f"This needs a device of kind {' or '.join(needs)}; {device.product} is {device.kind}.",
        )
    return None


def _health(device: DeviceView) -> Refusal | None:
    if not device.present:
        return Refusal(Reason.DEVICE_MISSING, f"Its node does not report {device.product} {device.uuid} any more.")
    if device.state != DeviceState.HEALTHY:
        return Refusal(
            Reason.DEVICE_UNHEALTHY,
            f"{device.product} {device.uuid} is {device.state}: {device.message or 'no details'}",
        )
    return None


def _device_memory(device: DeviceView, need: Need) -> Refusal | None:
    if device.exclusive:
        return Refusal(Reason.DEVICE_TAKEN, f"{device.product} {device.uuid} belongs to one replica as a whole.")
    short = need.memory_bytes - device.free_bytes
    if short <= 0:
        return None
    return Refusal(
        Reason.INSUFFICIENT_DEVICE_MEMORY,
        f"Needs {size(need.memory_bytes)} of device memory; {device.product} has {size(device.free_bytes)} free of "
        f"{size(device.memory_bytes)}.",
        short,
    )


def _host_memory(node: NodeView, need: Need) -> Refusal | None:
    unpromised = node.memory_bytes - node.held_host_bytes
    free = min(unpromised, node.memory_available_bytes)
    short = need.host_bytes - free
    if short <= 0:
        return None
    what = "not promised to others" if free == unpromised else "available right now"
    return Refusal(
        Reason.INSUFFICIENT_HOST_MEMORY,
        f"Needs {size(need.host_bytes)} of host memory; node {node.name} has {size(free)} {what}, "
        f"of {size(node.memory_bytes)}.",
        short,
    )


def _cpu(node: NodeView, need: Need) -> Refusal | None:
    free = node.millicpus - node.held_millicpus
    short = need.millicpus - free
    if short <= 0:
        return None
    return Refusal(
        Reason.INSUFFICIENT_CPU,
        f"Needs {cpus(need.millicpus)}; node {node.name} has {cpus(max(free, 0))} left of {cpus(node.millicpus)}.",
        short,
    )
