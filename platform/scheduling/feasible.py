"""Filters (pure): may a group of this replica use that device, and if not, why not, as a code and in a sentence.

``judge`` answers with a code and the shortage, cheaply; ``explain`` writes the sentence for those that are shown.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from fleet.states import DeviceState, NodeState
from scheduling.need import Need
from scheduling.snapshot import DeviceView, NodeView
from scheduling.words import cpus, size


class Reason(enum.StrEnum):
    """Why a device cannot take a replica. The order is how near the refusal is to a place, the nearest first."""

    NOT_ENOUGH_DEVICES = "NotEnoughDevices"
    INSUFFICIENT_DEVICE_MEMORY = "InsufficientDeviceMemory"
    INSUFFICIENT_COMPUTE = "InsufficientCompute"
    INSUFFICIENT_HOST_MEMORY = "InsufficientHostMemory"
    INSUFFICIENT_CPU = "InsufficientCpu"
    DEVICE_TAKEN = "DeviceTaken"
    NODE_CORDONED = "NodeCordoned"
    NODE_DRAINING = "NodeDraining"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_MISSING = "DeviceMissing"
    NODE_LOST = "NodeLost"
    NODE_NOT_READY = "NodeNotReady"
    WRONG_PRODUCT = "WrongProduct"
    WRONG_DEVICE_KIND = "WrongDeviceKind"
    SIMULATED_DEVICE = "SimulatedDevice"


_NODE_REASONS: Mapping[str, Reason] = {
    NodeState.CORDONED.value: Reason.NODE_CORDONED,
    NodeState.DRAINING.value: Reason.NODE_DRAINING,
    NodeState.DRAINED.value: Reason.NODE_DRAINING,
    NodeState.LOST.value: Reason.NODE_LOST,
}
SIMULATED: Final = "simulated"
_READY, _HEALTHY = NodeState.READY.value, DeviceState.HEALTHY.value


class Verdict(NamedTuple):
    """``short_by`` is what is missing, in bytes, or thousandths of a CPU or device; 0 where no more would help."""

    reason: Reason
    short_by: int = 0


class Refusal(NamedTuple):
    """A verdict with its sentence."""

    reason: Reason
    message: str
    short_by: int = 0


def unusable(device: DeviceView, node: NodeView) -> Verdict | None:
    """Why nothing at all can be placed on ``device`` now."""
    if node.state != _READY:
        return Verdict(_NODE_REASONS.get(node.state, Reason.NODE_NOT_READY))
    if device.kind == SIMULATED and not device.stand_in:
        return Verdict(Reason.SIMULATED_DEVICE)
    if not device.present:
        return Verdict(Reason.DEVICE_MISSING)
    if device.state != _HEALTHY:
        return Verdict(Reason.DEVICE_UNHEALTHY)
    return None


def judge(device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Verdict | None:
    """Why ``device`` cannot be one of a group's, ``None`` when it can. The first filter that refuses is named."""
    if node.state == _READY and (device.kind != SIMULATED or device.stand_in):
        need = needs.get(device.kind)
        if need is None:
            return Verdict(Reason.WRONG_DEVICE_KIND)
        if need.products and device.product not in need.products:
            return Verdict(Reason.WRONG_PRODUCT)
        return unusable(device, node) or _room(device, node, need)
    return unusable(device, node)


def _room(device: DeviceView, node: NodeView, need: Need) -> Verdict | None:
    if device.exclusive or (need.whole and not device.empty):
        return Verdict(Reason.DEVICE_TAKEN)
    if need.memory_bytes > device.free_bytes:
        return Verdict(Reason.INSUFFICIENT_DEVICE_MEMORY, need.memory_bytes - device.free_bytes)
    if need.millis > device.free_millis:
        return Verdict(Reason.INSUFFICIENT_COMPUTE, need.millis - device.free_millis)
    if need.host_bytes > node.free_host_bytes:
        return Verdict(Reason.INSUFFICIENT_HOST_MEMORY, need.host_bytes - node.free_host_bytes)
    if need.millicpus > node.free_millicpus:
        return Verdict(Reason.INSUFFICIENT_CPU, need.millicpus - node.free_millicpus)
    return None


def refuse(device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Refusal | None:
    """:func:`judge` with the sentence."""
    verdict = judge(device, node, needs)
    return None if verdict is None else explain(verdict, device, node, needs)


def explain(verdict: Verdict, device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Refusal:
    """The sentence of a verdict, with numbers."""
    need = needs.get(device.kind)
    text = _about_node(verdict.reason, node) or _about_device(verdict.reason, device, needs)
    if text is None:
        if need is None:
            raise AssertionError("only a device of a needed kind can be short of something")
        text = _about_room(verdict, device, node, need)
    return Refusal(verdict.reason, text, verdict.short_by)


def _about_node(reason: Reason, node: NodeView) -> str | None:
    match reason:
        case Reason.NODE_CORDONED:
            return f"Node {node.name} is cordoned: nothing new is placed there."
        case Reason.NODE_DRAINING:
            return f"Node {node.name} is being drained."
        case Reason.NODE_LOST:
            return f"Node {node.name} does not answer."
        case Reason.NODE_NOT_READY:
            return f"Node {node.name} is {node.state}; it has not reported for work yet."
        case _:
            return None


def _about_device(reason: Reason, device: DeviceView, needs: Mapping[str, Need]) -> str | None:
    match reason:
        case Reason.SIMULATED_DEVICE:
            return f"{device.product} is simulated: no engine can run on it."
        case Reason.WRONG_DEVICE_KIND:
            kinds = " or ".join(kind for kind in needs if kind != SIMULATED)
            return f"This needs a device of kind {kinds}; {device.product} is {device.kind}."
        case Reason.WRONG_PRODUCT:
            return f"This needs one of {', '.join(sorted(needs[device.kind].products))}; this is {device.product}."
        case Reason.DEVICE_MISSING:
            return f"Its node does not report {device.product} {device.uuid} any more."
        case Reason.DEVICE_UNHEALTHY:
            return f"{device.product} {device.uuid} is {device.state}: {device.message or 'no details'}"
        case Reason.DEVICE_TAKEN if device.exclusive:
            return f"{device.product} {device.uuid} belongs to one replica as a whole."
        case Reason.DEVICE_TAKEN:
            return f"A whole device is needed; others hold parts of {device.product} {device.uuid}."
        case _:
            return None


def _about_room(verdict: Verdict, device: DeviceView, node: NodeView, need: Need) -> str:
    match verdict.reason:
        case Reason.INSUFFICIENT_DEVICE_MEMORY:
            return (
                f"Needs {size(need.memory_bytes)} of device memory; {device.product} has {size(device.free_bytes)} "
                f"free of {size(device.memory_bytes)}."
            )
        case Reason.INSUFFICIENT_COMPUTE:
            return (
                f"Needs {need.millis / 10:g} % of a device's compute; {device.product} has "
                f"{device.free_millis / 10:g} % left."
            )
        case Reason.INSUFFICIENT_HOST_MEMORY:
            unpromised = node.memory_bytes - node.held_host_bytes
            what = "not promised to others" if node.free_host_bytes == unpromised else "available right now"
            return (
                f"Needs {size(need.host_bytes)} of host memory; node {node.name} has {size(node.free_host_bytes)} "
                f"{what}, of {size(node.memory_bytes)}."
            )
        case Reason.INSUFFICIENT_CPU:
            return (
                f"Needs {cpus(need.millicpus)}; node {node.name} has {cpus(max(node.free_millicpus, 0))} left of "
                f"{cpus(node.millicpus)}."
            )
        case _:
            together = " over NVLink" if need.linked else ""
            able = need.devices - verdict.short_by
            return f"Needs {need.devices} devices together{together}; node {node.name} has {able} that could."
