"""What would make a replica fit where it does not (pure): clauses that complete "It would fit if: …".

Everything that stands against a device is named, with sizes: one of several obstacles gone helps nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from catalog import configs
from fleet import layouts
from kernel.isolation import Requirement
from scheduling.feasible import CPU, Reason, Refusal, Verdict, is_lasting, obstacles, why_not_spread
from scheduling.need import Need, need_on
from scheduling.snapshot import DeviceView, NodeView
from scheduling.whynot import Refused, Why
from scheduling.words import cpus, size

#: Bytes per weight, scales included, of what the weights could be stored as instead, best quality first.
_SMALLER: Final = tuple(
    (name, width)
    for name, width in (("bfloat16", 2.0), ("int8", 1.03), ("int4", 0.56))
    if name in configs.DTYPE_BYTES or name in configs.QUANTIZATIONS
)
MAX_NAMED: Final = 3
NO_DEVICES: Final = "a node with a CPU or GPU joined the fleet"
MORE_DEVICES: Final = "more devices of this kind joined, or it were split less"
ANOTHER_FORMAT: Final = "the model were uploaded in a format that an engine here runs"
MORE_QUOTA: Final = "the tenant's quota were larger, or it held less"


class Held(Protocol):
    """A replica that the reader may stop, and what that would free."""

    @property
    def label(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...


def would_fit_if(
    device: DeviceView, node: NodeView, refusal: Refusal, needs: Mapping[str, Need], holders: Sequence[Held] = ()
) -> str:
    """All that would have to be different on ``device``, which refused."""
    verdicts = obstacles(Verdict(refusal.reason, refusal.short_by), device, node, needs)
    if any(each.reason is Reason.WRONG_PROFILE for each in verdicts):  # it is to be cut: its size now says nothing
        verdicts = tuple(each for each in verdicts if each.reason is not Reason.INSUFFICIENT_DEVICE_MEMORY)
    return together(_clause(each, device, node, needs, holders) for each in verdicts)


def together(clauses: Iterable[str]) -> str:
    """Several clauses as one."""
    return "; and ".join(dict.fromkeys(each for each in clauses if each))


def _clause(
    verdict: Verdict, device: DeviceView, node: NodeView, needs: Mapping[str, Need], holders: Sequence[Held]
) -> str:
    short, lasting = verdict.short_by, is_lasting(verdict, device, node)
    need = need_on(device, needs)
    match verdict.reason:
        case Reason.INSUFFICIENT_DEVICE_MEMORY:
            return _more_memory(device, node, need, short, holders)
        case Reason.INSUFFICIENT_COMPUTE:
            more = f"{short / 10:g} % more of the compute of {device.product} were free on node {node.name}"
            return f"{more}: stop another replica there, or lower thread_percentage"
        case Reason.INSUFFICIENT_HOST_MEMORY if lasting:
            return f"node {node.name} had {size(short)} more host memory"
        case Reason.INSUFFICIENT_HOST_MEMORY:
            return f"{size(short)} more host memory were free on node {node.name}"
        case Reason.INSUFFICIENT_CPU if lasting:
            return f"num_threads were lower by {cpus(short)} (node {node.name} has {cpus(node.millicpus)})"
        case Reason.INSUFFICIENT_CPU:
            more = f"{cpus(short)} more were free on node {node.name}"
            return f"{more}: stop another replica there, or lower num_threads"
        case Reason.NOT_ENOUGH_DEVICES:
            return f"{short} more of the devices of node {node.name} could take a part of it"
        case Reason.DEVICE_TAKEN:
            return f"{device.product} {device.uuid} were free: whatever holds it would have to stop"
        case _:
            return _otherwise(verdict.reason, device, node, needs, need)


def _otherwise(reason: Reason, device: DeviceView, node: NodeView, needs: Mapping[str, Need], need: Need | None) -> str:
    """What would help where no number is short."""
    match reason:
        case Reason.NODE_CORDONED | Reason.NODE_DRAINING:
            return f"node {node.name} were in service: a platform admin can uncordon it"
        case Reason.NODE_LOST | Reason.NODE_NOT_READY:
            return f"node {node.name} reported again"
        case Reason.NO_RANK_ADDRESS:
            return f"the agent of node {node.name} were given an address for ranks (MILLPOND_RANK_ADDRESS)"
        case Reason.DEVICE_UNHEALTHY | Reason.DEVICE_MISSING:
            return f"{device.product} {device.uuid} were well again"
        case Reason.PARALLEL_PLAN_IMPOSSIBLE:
            return _spread(why_not_spread(device, needs))
        case Reason.WRONG_PRODUCT if why := why_not_spread(device, needs):
            return _spread(why)
        case Reason.WRONG_PRODUCT | Reason.WRONG_PROFILE if need is not None and _overfills(need, device):
            return _another_profile(need, device)
        case Reason.WRONG_PRODUCT if need is not None and need.profile:
            return "another profile were asked for, or another GPU were cut so"
        case Reason.WRONG_DEVICE_KIND | Reason.WRONG_PRODUCT | Reason.SIMULATED_DEVICE:
            return "a node with a free device of what it needs joined the fleet"
        case _:
            return _wall(reason, device, node, need)


def _spread(why: Refused | None) -> str:
    """By what stands against the plan."""
    match why.code if why is not None else None:
        case Why.TP_OVER_PCIE:
            return "tp_over_pcie were set, or it were spread in stages (pipeline_parallel)"
        case Why.NOT_DIVISIBLE:
            return "another number of ranks were asked for, or none: one that works is chosen then"
        case Why.TOO_LARGE:
            return "its weights were smaller (quantization), layers waited in host memory, or a device were larger"
        case Why.NO_RANK_ADDRESS:
            return "the agents of more of these nodes were given an address for ranks (MILLPOND_RANK_ADDRESS)"
        case Why.NOT_SUPPORTED:
            return "another way were asked for, or none: one that works is chosen then"
        case _:
            return "fewer ranks were asked for, or none: a number that works is chosen then"


def _wall(reason: Reason, device: DeviceView, node: NodeView, need: Need | None) -> str:
    if reason is Reason.ISOLATION_MIXED:
        return f"{device.product} {device.uuid} were free of shares of the class {device.shared_as}"
    if reason is Reason.WRONG_PROFILE:
        what = "were cut so" if device.empty else "were free and cut so"
        what = "were cut otherwise" if device.parent else what
        return f"{device.product} {device.uuid} {what}: a platform admin can plan it under Layouts"
    if device.parent or device.kind == CPU:
        return "a whole GPU were free, or less isolation were required"
    if need is not None and need.least == Requirement.MPS and not node.mps:
        return f"node {node.name} had nvidia-cuda-mps-control, or less isolation were required"
    return "a GPU were free that can be kept apart as required, or less were required"


def _geometry(device: DeviceView) -> layouts.Geometry | None:
    """What the GPU can be cut into; of an instance, the GPU that it was cut from, by its product."""
    return layouts.geometry_of(device.product, {} if device.parent else device.mig)


def _overfills(need: Need, device: DeviceView) -> bool:
    """True when no instance of the profile that is asked for would hold it, however a GPU is cut."""
    return bool(need.profile) and need.memory_bytes > layouts.most_bytes(need.profile, _geometry(device))


def _another_profile(need: Need, device: DeviceView) -> str:
    geometry = _geometry(device)
    most = layouts.most_bytes(need.profile, geometry)
    able = [each for each in (geometry.profiles if geometry else ()) if each.memory_bytes >= need.memory_bytes]
    ways = [f"ask for {min(able, key=lambda each: (each.slices, each.compute, each.media)).name}"] if able else []
    if not able and not device.parent and need.memory_bytes <= device.memory_bytes:
        ways = ["ask for no MIG profile"]
    ways += _smaller_need(need, need.memory_bytes - most)
    head = f"its MIG profile held {size(need.memory_bytes)} ({need.profile} holds {size(most)})"
    return f"{head}: {', or '.join(ways)}" if ways else head


def _more_memory(device: DeviceView, node: NodeView, need: Need | None, short: int, holders: Sequence[Held]) -> str:
    where = f"{device.product} of node {node.name}"
    beyond = short - device.held_bytes
    ways: list[str] = []
    if beyond <= 0:
        enough = _enough(holders, short)
        ways.append(f"stop {' and '.join(enough) if enough else 'another replica'} there")
    ways += _smaller_need(need, max(beyond, 0) or short)
    head = f"{where} had {size(beyond)} more memory" if beyond > 0 else f"{size(short)} more were free on {where}"
    return f"{head}: {', or '.join(ways)}" if ways else head


def _smaller_need(need: Need | None, short: int) -> list[str]:
    """What of the config would save ``short`` bytes."""
    if need is None or need.estimate is None:
        return []
    ways = [f"store its weights as {name}" for name in smaller_weights(need, short)[:1]]
    parts = need.estimate
    if not parts.kv_bytes_per_token and need.memory_bytes - short > parts.weights_bytes + parts.context_bytes:
        return ["lower max_num_seqs"]  # a graph: its batch decides
    if parts.kv_floor_bytes > short:
        ways.append(f"lower max_model_len or the KV cache by {size(short)}")
    elif need.memory_bytes - short > parts.weights_bytes + parts.context_bytes:  # a part of the workspace goes with it
        ways.append("lower max_model_len or the KV cache")
    return ways


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


def smaller_weights(need: Need, short: int) -> list[str]:
    """Formats of the weights that would save ``short`` bytes, the best first; none when they are unknown."""
    if need.estimate is None or need.weight_width <= 0:
        return []
    weights = need.estimate.weights_bytes / need.weight_width
    return [
        name for name, width in _SMALLER if width < need.weight_width and weights * (need.weight_width - width) >= short
    ]
