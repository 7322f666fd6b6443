"""The plan (pure): for each replica that waits, a device or a refusal per device. Same snapshot, same plan."""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduling import rank
from scheduling.feasible import Reason, Refusal, refuse
from scheduling.need import Need
from scheduling.snapshot import DeviceView, NodeView, Snapshot
from scheduling.words import cpus, size

MAX_REFUSALS_KEPT: Final = 50
_KNOBS: Final = "max_model_len or the KV cache"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """A replica that wants a place. ``files`` are the digests of its weights, ``avoid`` the node it failed on last."""

    replica_id: uuid.UUID
    generation: int
    deployment_id: uuid.UUID
    needs: Mapping[str, Need]
    files: frozenset[str] = frozenset()
    avoid: uuid.UUID | None = None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One device and the answer about it."""

    device: DeviceView
    node: NodeView
    refusal: Refusal | None

    def as_dict(self, needs: Mapping[str, Need]) -> dict[str, Any]:
        """For JSON: what REST, console and the replica's row show."""
        need = needs.get(self.device.kind)
        return {
            "node": self.node.name,
            "device_uuid": self.device.uuid,
            "product": self.device.product,
            "kind": self.device.kind,
            "free_bytes": self.device.free_bytes,
            "memory_bytes": self.device.memory_bytes,
            "need_bytes": need.memory_bytes if need else None,
            "fits": self.refusal is None,
            "reason": self.refusal.reason.value if self.refusal else "",
            "message": self.refusal.message if self.refusal else "It fits.",
        }


@dataclasses.dataclass(frozen=True)
class Answer:
    """What becomes of one ask: ``chosen`` or nothing, and the verdict on every device."""

    ask: Ask
    chosen: DeviceView | None
    need: Need | None
    candidates: tuple[Candidate, ...]

    @property
    def message(self) -> str:
        """One sentence: where it goes, or why it goes nowhere."""
        if self.chosen is not None:
            return f"Goes to {self.chosen.product} {self.chosen.uuid}."
        return sentence(self.candidates)

    @property
    def reason(self) -> str:
        """The code of the refusal that stands nearest to a place; "" when there is a place."""
        if self.chosen is not None:
            return ""
        nearest = _nearest(self.candidates)
        return nearest.refusal.reason.value if nearest and nearest.refusal else "NoDevices"

    def explanation(self) -> dict[str, Any]:
        """For the replica's row."""
        return {
            "need": self.need.as_dict() if self.need else None,
            "device_uuid": self.chosen.uuid if self.chosen else None,
            "node_id": str(self.chosen.node_id) if self.chosen else None,
            "devices": [candidate.as_dict(self.ask.needs) for candidate in self.candidates[:MAX_REFUSALS_KEPT]],
            "would_fit_if": "" if self.chosen else would_fit_if(self.candidates),
        }


def plan(snapshot: Snapshot, asks: Sequence[Ask]) -> list[Answer]:
    """Answer each ask in order; what one takes is gone for the next."""
    answers: list[Answer] = []
    for ask in asks:
        answer = _answer(snapshot, ask)
        answers.append(answer)
        if answer.chosen is not None and answer.need is not None:
            snapshot = snapshot.with_taken(
                answer.chosen,
                deployment_id=ask.deployment_id,
                memory_bytes=answer.need.memory_bytes,
                host_bytes=answer.need.host_bytes,
                millicpus=answer.need.millicpus,
            )
    return answers


def _answer(snapshot: Snapshot, ask: Ask) -> Answer:
    candidates = tuple(
        Candidate(device, snapshot.nodes[device.node_id], refuse(device, snapshot.nodes[device.node_id], ask.needs))
        for device in snapshot.devices
    )
    fitting = [candidate for candidate in candidates if candidate.refusal is None]
    if not fitting:
        return Answer(ask, None, None, candidates)
    best = min(
        fitting,
        key=lambda candidate: rank.key(
            candidate.device,
            candidate.node,
            ask.needs[candidate.device.kind],
            deployment_id=ask.deployment_id,
            files=ask.files,
            avoid=ask.avoid,
        ),
    )
    return Answer(ask, best.device, ask.needs[best.device.kind], candidates)


def sentence(candidates: Sequence[Candidate]) -> str:
    """Why nothing fits: the nearest refusal in full, the others counted by reason."""
    nearest = _nearest(candidates)
    if nearest is None or nearest.refusal is None:
        return "There is no device in the fleet yet: join a node first."
    if len(candidates) == 1:
        return f"{nearest.refusal.message} ({nearest.device.uuid} on node {nearest.node.name})"
    counts = Counter(candidate.refusal.reason.value for candidate in candidates if candidate.refusal)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    near = f"Nearest, on node {nearest.node.name}: {nearest.refusal.message}"
    return f"None of {len(candidates)} devices can take it ({told}). {near}"


def would_fit_if(candidates: Sequence[Candidate]) -> str:
    """What would help, in one sentence."""
    nearest = _nearest(candidates)
    if nearest is None or nearest.refusal is None:
        return "A node with a CPU or GPU joins the fleet."
    short = nearest.refusal.short_by
    where = f"on {nearest.device.product} of node {nearest.node.name}"
    match nearest.refusal.reason:
        case Reason.INSUFFICIENT_DEVICE_MEMORY:
            if nearest.device.held_bytes >= short:
                return f"{size(short)} more were free {where}: stop another replica there, or lower {_KNOBS}."
            return f"The device were larger by {size(short)}, or {_KNOBS} lower ({where})."
        case Reason.INSUFFICIENT_HOST_MEMORY:
            return f"{size(short)} more host memory were free on node {nearest.node.name}."
        case Reason.INSUFFICIENT_CPU:
            more = f"{cpus(short)} more were free on node {nearest.node.name}"
            return f"{more}: stop another replica there, or lower num_threads."
        case Reason.NODE_CORDONED | Reason.NODE_DRAINING:
            return f"Node {nearest.node.name} were in service: a platform admin can uncordon it."
        case Reason.NODE_LOST | Reason.NODE_NOT_READY:
            return f"Node {nearest.node.name} reported again."
        case Reason.DEVICE_UNHEALTHY | Reason.DEVICE_MISSING:
            return f"{nearest.device.product} {nearest.device.uuid} were well again."
        case _:
            return "A node with a free CPU or GPU joins the fleet."


#: How near a refusal is to a place; shortages come first, the smallest shortage before all.
_DISTANCE: Final = (
    Reason.INSUFFICIENT_DEVICE_MEMORY,
    Reason.INSUFFICIENT_HOST_MEMORY,
    Reason.INSUFFICIENT_CPU,
    Reason.DEVICE_TAKEN,
    Reason.NODE_CORDONED,
    Reason.NODE_DRAINING,
    Reason.DEVICE_UNHEALTHY,
    Reason.DEVICE_MISSING,
    Reason.NODE_LOST,
    Reason.NODE_NOT_READY,
    Reason.WRONG_DEVICE_KIND,
    Reason.SIMULATED_DEVICE,
)


def _nearest(candidates: Sequence[Candidate]) -> Candidate | None:
    refused = [candidate for candidate in candidates if candidate.refusal is not None]
    if not refused:
        return None

    def distance(candidate: Candidate) -> tuple[int, int, str]:
        refusal = candidate.refusal
        if refusal is None:
            raise AssertionError("only refused candidates are compared")
        return _DISTANCE.index(refusal.reason), refusal.short_by, candidate.device.uuid

    return min(refused, key=distance)
