"""Filters (pure): may a group of this replica use that device, and if not, why not, as a code and in a sentence.

``judge`` answers with a code and the shortage, cheaply; ``explain`` writes the sentence for those that are shown.
"""

import enum
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fleet import layouts
from fleet.states import DeviceState, NodeState
from kernel.isolation import MAX_MPS_CLIENTS, Isolation, Requirement
from scheduling.need import Need, is_owned, need_on, wall
from scheduling.snapshot import DeviceView, NodeView
from scheduling.whynot import Refused
from scheduling.words import cpus, size


class Reason(enum.StrEnum):
    """Why a device cannot take a replica. The order is how near the refusal is to a place, the nearest first."""

    NOT_ENOUGH_DEVICES = "NotEnoughDevices"
    INSUFFICIENT_DEVICE_MEMORY = "InsufficientDeviceMemory"
    INSUFFICIENT_COMPUTE = "InsufficientCompute"
    INSUFFICIENT_HOST_MEMORY = "InsufficientHostMemory"
    INSUFFICIENT_CPU = "InsufficientCpu"
    DEVICE_TAKEN = "DeviceTaken"
    PARALLEL_PLAN_IMPOSSIBLE = "ParallelPlanImpossible"
    NO_RANK_ADDRESS = "NoRankAddress"
    ISOLATION_MIXED = "IsolationMixed"
    ISOLATION_UNAVAILABLE = "IsolationUnavailable"
    WRONG_PROFILE = "WrongProfile"
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
CPU: Final = "cpu"
_ANY, _MPS = Requirement.ANY.value, Isolation.MPS.value
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
    return _unwell(device)


def _unwell(device: DeviceView) -> Verdict | None:
    if not device.present:
        return Verdict(Reason.DEVICE_MISSING)
    return Verdict(Reason.DEVICE_UNHEALTHY) if device.state != _HEALTHY else None


def judge(device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Verdict | None:
    """Why ``device`` cannot be one of a group's, ``None`` when it can. The first filter that refuses is named, and what
    waiting does not change comes before what it does: a device that is too small stays so when its node is back."""
    need = _nothing_runs(device) or needed(device, needs)
    if isinstance(need, Verdict):
        return need
    return _too_small(device, need) or unusable(device, node) or lacking(device, node, need)


def obstacles(verdict: Verdict, device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> tuple[Verdict, ...]:
    """All that stands against ``device``, which was refused by ``verdict``: all of it would have to change."""
    need = _nothing_runs(device) or needed(device, needs)
    if isinstance(need, Verdict) or verdict.reason is Reason.NOT_ENOUGH_DEVICES:
        return (verdict,)
    found: dict[Reason, Verdict] = {}
    passing = (unusable(device, node), _unwell(device), _walled(device, node, need))
    for each in (_too_small(device, need), *passing, *_shortages(device, node, need)):
        if each is not None:
            found.setdefault(each.reason, each)
    return tuple(found.values())


def is_lasting(verdict: Verdict, device: DeviceView, node: NodeView) -> bool:
    """True when it would be refused so on an empty machine too: nobody's end would help."""
    match verdict.reason:
        case Reason.INSUFFICIENT_DEVICE_MEMORY:
            return verdict.short_by > device.held_bytes
        case Reason.INSUFFICIENT_CPU:
            return verdict.short_by > node.held_millicpus
        case Reason.INSUFFICIENT_HOST_MEMORY:
            return verdict.short_by > node.memory_bytes - node.free_host_bytes
        case _:
            return False


def _nothing_runs(device: DeviceView) -> Verdict | None:
    return Verdict(Reason.SIMULATED_DEVICE) if device.kind == SIMULATED and not device.stand_in else None


def _too_small(device: DeviceView, need: Need) -> Verdict | None:
    if need.memory_bytes <= device.memory_bytes:
        return None
    return Verdict(Reason.INSUFFICIENT_DEVICE_MEMORY, need.memory_bytes - device.free_bytes)


def needed(device: DeviceView, needs: Mapping[str, Need]) -> Need | Verdict:
    """What is needed of the device, or why nothing like it will do: kind and product alone say that."""
    need = need_on(device, needs)
    if need is None:
        other = any(each.kind == device.kind for each in needs.values())
        return Verdict(Reason.WRONG_PRODUCT if other else Reason.WRONG_DEVICE_KIND)
    if need.products and device.product not in need.products:
        return Verdict(Reason.WRONG_PRODUCT)
    if need.unsupported is not None:
        return Verdict(Reason.PARALLEL_PLAN_IMPOSSIBLE)
    if (
        need.profile
        and not device.parent
        and not any(layouts.same_shape(need.profile, each) for each in cuttable(device))
    ):
        return Verdict(Reason.WRONG_PRODUCT)
    return need


def cuttable(device: DeviceView) -> list[str]:
    """The MIG profiles that a whole GPU can be cut into."""
    geometry = layouts.geometry_of(device.product, device.mig)
    return [profile.name for profile in geometry.profiles] if geometry is not None else []


def lacking(device: DeviceView, node: NodeView, need: Need) -> Verdict | None:
    """What a device that can be used lacks for ``need``: a wall, or room."""
    return _too_small(device, need) or _walled(device, node, need) or _room(device, node, need)


def apart(device: DeviceView, node: NodeView, need: Need) -> bool:
    """True when ``need`` can be kept apart on ``device`` as it has to be."""
    return _walled(device, node, need) is None


def _walled(device: DeviceView, node: NodeView, need: Need) -> Verdict | None:
    if need.over_nodes and not node.rank_address:
        return Verdict(Reason.NO_RANK_ADDRESS)
    if need.profile and not layouts.same_shape(need.profile, device.profile):
        return Verdict(Reason.WRONG_PROFILE)
    if need.least == _ANY:
        return Verdict(Reason.ISOLATION_MIXED) if device.shared_as == _MPS and not need.whole else None
    given = wall(need, device)
    if not Isolation(given).meets(need.least) or (given != _MPS and need.limits_threads):
        return Verdict(Reason.ISOLATION_UNAVAILABLE)
    if given == _MPS and (device.kind == CPU or not node.mps):
        return Verdict(Reason.ISOLATION_UNAVAILABLE)
    if given in (_MPS, Isolation.COOPERATIVE) and device.shared_as not in ("", given):
        return Verdict(Reason.ISOLATION_MIXED)
    full = given == _MPS and device.sharers >= MAX_MPS_CLIENTS
    return Verdict(Reason.DEVICE_TAKEN) if full else None


def _room(device: DeviceView, node: NodeView, need: Need) -> Verdict | None:
    return next(_shortages(device, node, need), None)


def _shortages(device: DeviceView, node: NodeView, need: Need) -> Iterator[Verdict]:
    if device.exclusive or (not device.empty and is_owned(need, device)):
        yield Verdict(Reason.DEVICE_TAKEN)
    else:
        short = need.memory_bytes - device.memory_bytes + device.held_bytes
        if short > 0:
            yield Verdict(Reason.INSUFFICIENT_DEVICE_MEMORY, short)
        if need.millis > device.free_millis:
            yield Verdict(Reason.INSUFFICIENT_COMPUTE, need.millis - device.free_millis)
    if need.host_bytes > node.free_host_bytes:
        yield Verdict(Reason.INSUFFICIENT_HOST_MEMORY, need.host_bytes - node.free_host_bytes)
    if need.millicpus > node.free_millicpus:
        yield Verdict(Reason.INSUFFICIENT_CPU, need.millicpus - node.free_millicpus)


def refuse(device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Refusal | None:
    """:func:`judge` with the sentence."""
    verdict = judge(device, node, needs)
    return None if verdict is None else explain(verdict, device, node, needs)


def explain(verdict: Verdict, device: DeviceView, node: NodeView, needs: Mapping[str, Need]) -> Refusal:
    """The sentence of a verdict, with numbers."""
    need = need_on(device, needs)
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
        case Reason.NO_RANK_ADDRESS:
            return f"This needs several nodes; node {node.name} takes part in no replica over several nodes."
        case Reason.NODE_NOT_READY:
            return f"Node {node.name} is {node.state}; it has not reported for work yet."
        case _:
            return None


def _about_device(reason: Reason, device: DeviceView, needs: Mapping[str, Need]) -> str | None:
    need = need_on(device, needs)
    match reason:
        case Reason.SIMULATED_DEVICE:
            return f"{device.product} is simulated: no engine can run on it."
        case Reason.WRONG_DEVICE_KIND:
            kinds = " or ".join(dict.fromkeys(each.kind for each in needs.values() if each.kind != SIMULATED))
            return f"This needs a device of kind {kinds}; {device.product} is {device.kind}."
        case Reason.WRONG_PRODUCT:
            return _other_product(device, needs)
        case Reason.PARALLEL_PLAN_IMPOSSIBLE if need is not None:
            return need.unsupported.sentence if need.unsupported is not None else None
        case Reason.DEVICE_MISSING:
            return f"Its node does not report {device.product} {device.uuid} any more."
        case Reason.DEVICE_UNHEALTHY:
            return f"{device.product} {device.uuid} is {device.state}: {device.message or 'no details'}"
        case Reason.WRONG_PROFILE:
            here = f"this is {device.profile}" if device.parent else "this is no MIG instance"
            return f"This needs a MIG instance {_need(device, needs).profile}; {here}."
        case Reason.ISOLATION_MIXED:
            return (
                f"{device.product} {device.uuid} has shares of the class {device.shared_as}: no share of another class "
                "stands beside them."
            )
        case Reason.ISOLATION_UNAVAILABLE:
            return _no_wall(device, _need(device, needs))
        case Reason.DEVICE_TAKEN if device.exclusive:
            return f"{device.product} {device.uuid} belongs to one replica as a whole."
        case Reason.DEVICE_TAKEN:
            return f"A whole device is needed; others hold parts of {device.product} {device.uuid}."
        case _:
            return None


def _other_product(device: DeviceView, needs: Mapping[str, Need]) -> str:
    need = need_on(device, needs)
    if need is not None and need.profile and (not need.products or device.product in need.products):
        able = ", ".join(cuttable(device)) or "no MIG instances at all"
        return f"This needs a MIG instance {need.profile}; {device.product} can be cut into {able}."
    if why := why_not_spread(device, needs):
        return f"On {device.product} it cannot be spread: {why.sentence}"
    alike = [each for each in needs.values() if each.kind == device.kind]
    products = {name for each in alike for name in (*each.products, *each.elsewhere)}
    return f"This needs one of {', '.join(sorted(products))}; this is {device.product}."


def why_not_spread(device: DeviceView, needs: Mapping[str, Need]) -> Refused | None:
    """Why no plan over several devices of this product can be, where none can or others have one."""
    need = need_on(device, needs)
    if need is not None and need.unsupported is not None and device.product in (need.products or {device.product}):
        return need.unsupported
    return next((each.elsewhere[device.product] for each in needs.values() if device.product in each.elsewhere), None)


def _need(device: DeviceView, needs: Mapping[str, Need]) -> Need:
    found = need_on(device, needs)
    if found is None:
        raise AssertionError("only a device that something is needed of can be refused for its walls")
    return found


def _no_wall(device: DeviceView, need: Need) -> str:
    if device.parent and need.least == Requirement.EXCLUSIVE:
        return f"A whole device is required; {device.product} {device.uuid} is a MIG instance."
    if device.parent:
        return f"A limit on multiprocessors is kept by MPS; {device.product} {device.uuid} is a MIG instance."
    if device.kind == CPU:
        return "Limits that the driver keeps (MPS) are required; a CPU has none."
    return "Limits that the driver keeps (MPS) are required; the node of this GPU has no nvidia-cuda-mps-control."


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
            pairs = f" in groups of {need.linked_by}" if need.linked_by else ""
            together = f"{pairs} over NVLink" if need.linked else ""
            able = need.devices - verdict.short_by
            return f"Needs {need.devices} devices together{together}; node {node.name} has {able} that could."
