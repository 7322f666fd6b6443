"""What the planner answers (pure): where a replica goes, or why nowhere and what would help, in words and as data."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scheduling import advice
from scheduling.feasible import Reason, Refusal, Verdict, is_lasting, why_not_spread
from scheduling.need import Need, need_on, wall
from scheduling.snapshot import DeviceView, NodeView

if TYPE_CHECKING:
    from scheduling.relief import Relief
    from scheduling.spreading import Spread


#: What no end of others changes.
_OF_THE_DEVICE: Final = frozenset(
    {Reason.WRONG_PRODUCT, Reason.WRONG_DEVICE_KIND, Reason.SIMULATED_DEVICE, Reason.PARALLEL_PLAN_IMPOSSIBLE}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
    """A replica that wants a place.

    ``files`` are the digests of its weights, ``avoid`` the node it failed on last, ``desired`` how many replicas its
    deployment wants. Of a higher ``priority`` it may take the place of lower ones (``relief``). ``first``: it was never
    planned before. ``making_room``: others end for it already (``relief``). ``products`` are the names of devices that
    it may run on (``products.bound``), none: any. ``spread`` has what plans over several devices are made from.
    """

    replica_id: uuid.UUID
    generation: int
    deployment_id: uuid.UUID
    needs: Mapping[str, Need]
    files: frozenset[str] = frozenset()
    avoid: uuid.UUID | None = None
    desired: int = 1
    tenant_id: uuid.UUID | None = None
    priority: int = 0
    first: bool = False
    making_room: bool = False
    products: tuple[str, ...] = ()
    spread: "Spread | None" = None


@dataclasses.dataclass(frozen=True)
class Place:
    """The device of one rank, as it was before it was taken. ``host_bytes`` and ``millicpus`` are this rank's part."""

    rank: int
    stage: int
    node: NodeView
    device: DeviceView
    host_bytes: int
    millicpus: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One device and the answer about it."""

    device: DeviceView
    node: NodeView
    refusal: Refusal | None

    def as_dict(self, needs: Mapping[str, Need], holders: Sequence["HolderLine"] = ()) -> dict[str, Any]:
        """For JSON: what REST, console, command line and the replica's row show."""
        need = need_on(self.device, needs)
        return {
            "node": self.node.name,
            "device_uuid": self.device.uuid,
            "product": self.device.product,
            "kind": self.device.kind,
            "free_bytes": self.device.free_bytes,
            "memory_bytes": self.device.memory_bytes,
            "isolation": wall(need, self.device) if need else None,
            "need_bytes": need.memory_bytes if need else None,
            "fits": self.refusal is None,
            "reason": self.refusal.reason.value if self.refusal else "",
            "message": self.refusal.message if self.refusal else "It fits.",
            "plan_code": self._plan_code(needs),
            "short_by": self.refusal.short_by if self.refusal else 0,
            "would_fit_if": self.would_fit_if(needs, holders),
        }

    def _plan_code(self, needs: Mapping[str, Need]) -> str:
        if self.refusal is None or self.refusal.reason not in (Reason.PARALLEL_PLAN_IMPOSSIBLE, Reason.WRONG_PRODUCT):
            return ""
        why = why_not_spread(self.device, needs)
        return why.code.value if why is not None else ""

    def would_fit_if(self, needs: Mapping[str, Need], holders: Sequence["HolderLine"] = ()) -> str:
        """All that would have to be different here; "" where it fits."""
        return advice.would_fit_if(self.device, self.node, self.refusal, needs, holders) if self.refusal else ""


@dataclasses.dataclass(frozen=True)
class HolderLine:
    """A replica of the asking tenant on a device: stopping it would free ``memory_bytes`` there."""

    label: str
    memory_bytes: int
    deployment_id: uuid.UUID | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What becomes of one ask: places for all its ranks or none, and the devices nearest to taking it.

    ``refused`` counts all devices by reason. ``relief`` says what would have to go first (see ``relief``).
    """

    ask: Ask
    places: tuple[Place, ...]
    need: Need | None
    candidates: tuple[Candidate, ...]
    refused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: Mapping[uuid.UUID, tuple[HolderLine, ...]] = dataclasses.field(default_factory=dict)
    over_quota: str = ""
    relief: "Relief | None" = None

    @property
    def chosen(self) -> DeviceView | None:
        """The device of the first rank."""
        return self.places[0].device if self.places else None

    @property
    def message(self) -> str:
        """One sentence: where it goes, or why it goes nowhere."""
        if self.places:
            return f"Goes to {', '.join(f'{place.device.product} {place.device.uuid}' for place in self.places)}."
        if not self.over_quota:
            return sentence(self.candidates, self.refused)
        here = self.candidates and self.candidates[0].refusal is None
        return self.over_quota if here else f"{self.over_quota} Besides: {sentence(self.candidates, self.refused)}"

    @property
    def reason(self) -> str:
        """The code of the refusal that stands nearest to a place; "" when there is a place."""
        if self.places:
            return ""
        if self.over_quota:
            return "QuotaExceeded"
        nearest = self.candidates[0] if self.candidates else None
        if nearest is None:
            return "NoDevices"
        return nearest.refusal.reason.value if nearest.refusal else "NotEnoughDevices"

    @property
    def room_helps(self) -> bool:
        """False when every device would refuse it so if it were empty, too."""
        return any(candidate.refusal is None or not _for_good(candidate) for candidate in self.candidates)

    @property
    def would_fit_if(self) -> str:
        """What would help, in one sentence; "" when there is a place."""
        if self.places:
            return ""
        quota = advice.MORE_QUOTA if self.over_quota else ""
        nearest = self.candidates[0] if self.candidates else None
        if nearest is None:
            return advice.together([quota, advice.NO_DEVICES])
        here = nearest.would_fit_if(self.ask.needs, self._lines(nearest))
        return advice.together([quota, here]) or advice.MORE_DEVICES

    def _lines(self, candidate: Candidate) -> tuple[HolderLine, ...]:
        """Without those of its own deployment: one replica instead of another is no help."""
        held = self.holders.get(candidate.device.id, ())
        return tuple(line for line in held if line.deployment_id != self.ask.deployment_id)

    def devices(self) -> list[dict[str, Any]]:
        """The verdicts as data, the nearest first."""
        return [candidate.as_dict(self.ask.needs, self._lines(candidate)) for candidate in self.candidates]

    def explanation(self) -> dict[str, Any]:
        """For the replica's row."""
        first = self.places[0] if self.places else None
        return {
            "need": self.need.as_dict() if self.need else None,
            "device_uuid": first.device.uuid if first else None,
            "node_id": str(first.node.id) if first else None,
            "ranks": [{"rank": p.rank, "stage": p.stage, "device_uuid": p.device.uuid} for p in self.places],
            "devices": self.devices(),
            "refused": dict(self.refused),
            "would_fit_if": self.would_fit_if,
        }


def _for_good(candidate: Candidate) -> bool:
    refusal = candidate.refusal
    if refusal is None or refusal.reason in _OF_THE_DEVICE:
        return refusal is not None
    return is_lasting(Verdict(refusal.reason, refusal.short_by), candidate.device, candidate.node)


def sentence(candidates: Sequence[Candidate], refused: Mapping[str, int]) -> str:
    """Why nothing fits: the nearest refusal in full, the others counted by reason."""
    if not candidates:
        return "There is no device in the fleet yet: join a node first."
    nearest, total = candidates[0], sum(refused.values())
    if nearest.refusal is None:
        return "Some devices could take a part of it, but too few for all of it at once."
    if total == 1:
        return f"{nearest.refusal.message} ({nearest.device.uuid} on node {nearest.node.name})"
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()) if count)
    near = f"Nearest, on node {nearest.node.name}: {nearest.refusal.message}"
    return f"None of {total} devices can take it ({told}). {near}"
