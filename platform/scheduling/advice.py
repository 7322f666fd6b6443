"""What would make a replica fit where it does not (pure): in sentences that name the device and the size."""

from collections.abc import Sequence
from typing import Final, Protocol

from catalog import configs
from scheduling.feasible import Reason, Refusal
from scheduling.need import Need
from scheduling.snapshot import DeviceView, NodeView
from scheduling.words import cpus, size

KNOBS: Final = "max_model_len or the KV cache"
#: Bytes per weight, scales included, of what the weights could be stored as instead, best quality first.
_SMALLER: Final = tuple(
    (name, width)
    for name, width in (("bfloat16", 2.0), ("int8", 1.03), ("int4", 0.56))
    if name in configs.DTYPE_BYTES or name in configs.QUANTIZATIONS
)
MAX_NAMED: Final = 3


class Held(Protocol):
    """A replica that the reader may stop, and what that would free."""

    @property
    def label(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...


def would_fit_if(
    device: DeviceView | None, node: NodeView | None, refusal: Refusal | None, holders: Sequence[Held] = ()
) -> str:
    """What would help on the device that stands nearest."""
    if device is None or node is None:
        return "A node with a CPU or GPU joins the fleet."
    if refusal is None:
        return "More devices of this kind joined, or it were split less."
    short = refusal.short_by
    where = f"on {device.product} of node {node.name}"
    match refusal.reason:
        case Reason.INSUFFICIENT_DEVICE_MEMORY:
            return _more_memory(device, short, where, holders)
        case Reason.INSUFFICIENT_COMPUTE:
            return f"{short / 10:g} % more of its compute were free {where}: stop another replica there."
        case Reason.INSUFFICIENT_HOST_MEMORY:
            return f"{size(short)} more host memory were free on node {node.name}."
        case Reason.INSUFFICIENT_CPU:
            more = f"{cpus(short)} more were free on node {node.name}"
            return f"{more}: stop another replica there, or lower num_threads."
        case Reason.NOT_ENOUGH_DEVICES:
            return f"{short} more of the devices of node {node.name} could take a part of it."
        case Reason.DEVICE_TAKEN:
            return f"{device.product} {device.uuid} were free: the replica that holds it would have to stop."
        case _:
            return _otherwise(refusal.reason, device, node)


def _otherwise(reason: Reason, device: DeviceView, node: NodeView) -> str:
    """What would help where no number is short."""
    match reason:
        case (
            Reason.ISOLATION_MIXED
            | Reason.ISOLATION_UNAVAILABLE
            | Reason.WRONG_PROFILE
            | Reason.PARALLEL_PLAN_IMPOSSIBLE
        ):
            return _walls(reason, device)
        case Reason.NODE_CORDONED | Reason.NODE_DRAINING:
            return f"Node {node.name} were in service: a platform admin can uncordon it."
        case Reason.NODE_LOST | Reason.NODE_NOT_READY:
            return f"Node {node.name} reported again."
        case Reason.DEVICE_UNHEALTHY | Reason.DEVICE_MISSING:
            return f"{device.product} {device.uuid} were well again."
        case Reason.WRONG_DEVICE_KIND | Reason.WRONG_PRODUCT:
            return "A node with a free device of what it needs joins the fleet."
        case _:
            return "A node with a free CPU or GPU joins the fleet."


def _walls(reason: Reason, device: DeviceView) -> str:
    if reason is Reason.ISOLATION_MIXED:
        return f"{device.product} {device.uuid} were free of shares of the class {device.shared_as}."
    if reason is Reason.WRONG_PROFILE:
        return "A GPU were cut into such an instance: a platform admin can plan it under Layouts."
    if reason is Reason.PARALLEL_PLAN_IMPOSSIBLE:
        return "Its weights were smaller (quantization), layers waited in host memory, or a device were larger."
    return "A GPU were free that can be kept apart as required, or less were required."


def _more_memory(device: DeviceView, short: int, where: str, holders: Sequence[Held]) -> str:
    enough = _enough(holders, short)
    if enough:
        return f"{size(short)} more were free {where}: stop {' and '.join(enough)} there, or lower {KNOBS}."
    if device.held_bytes >= short:
        return f"{size(short)} more were free {where}: stop another replica there, or lower {KNOBS}."
    return f"The device were larger by {size(short)}, or {KNOBS} lower ({where})."


def _enough(holders: Sequence[Held], short: int) -> list[str]:
    """The fewest replicas whose end would free ``short``, by name; none when they are not enough."""
    named, freed = [], 0
    for held in sorted(holders, key=lambda each: (-each.memory_bytes, each.label)):
        if held.memory_bytes >= short:
            one = min((h for h in holders if h.memory_bytes >= short), key=lambda h: (h.memory_bytes, h.label))
            return [one.label]
        named.append(held.label)
        freed += held.memory_bytes
        if freed >= short:
            return named if len(named) <= MAX_NAMED else []
    return []


def remedies(
    device: DeviceView, node: NodeView, refusal: Refusal, need: Need | None, holders: Sequence[Held] = ()
) -> str:
    """All that would make it fit on this device: "needs 3.1 GiB more on GPU-…; free by stopping X or by int8"."""
    if refusal.reason is not Reason.INSUFFICIENT_DEVICE_MEMORY or need is None:
        return would_fit_if(device, node, refusal, holders)
    ways = [f"stopping {' and '.join(enough)}"] if (enough := _enough(holders, refusal.short_by)) else []
    ways += [f"{name} weights" for name in smaller_weights(need, refusal.short_by)[:1]]
    if need.estimate is not None and need.estimate.kv_floor_bytes > refusal.short_by:
        ways.append(f"lowering {KNOBS} by {size(refusal.short_by)}")
    text = f"needs {size(refusal.short_by)} more on {device.uuid}"
    return f"{text}; free by {' or by '.join(ways)}" if ways else text


def smaller_weights(need: Need, short: int) -> list[str]:
    """Formats of the weights that would save ``short`` bytes, the best first; none when they are unknown."""
    if need.estimate is None or need.weight_width <= 0:
        return []
    weights = need.estimate.weights_bytes / need.weight_width
    return [
        name for name, width in _SMALLER if width < need.weight_width and weights * (need.weight_width - width) >= short
    ]
