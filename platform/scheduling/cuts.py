"""Which GPUs to cut how for the replicas that wait for a wall of hardware, or for a demand that a person names.

Nothing is cut by itself: a platform admin applies a proposal (``fleet.cutting``), and only to a GPU that nobody uses.
"""

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from django.db.models import Count

from fleet import cutting, layouts
from fleet.layouts import Candidate, Layout, Placed, Proposal, Want
from fleet.models import Device, DeviceKind, Partition
from fleet.states import DeviceState, NodeState
from kernel import errors, scope
from kernel.actors import Actor
from kernel.isolation import Requirement
from scheduling.cycle import waiting
from scheduling.need import Need
from serving.models import Replica
from tenants import access

#: Wants looked at in one proposal, and how many a named demand may have.
MAX_WANTS: Final = 64
_UNDER_WAY: Final = frozenset({"waiting", "applying"})


@dataclasses.dataclass(frozen=True)
class Waiting:
    """What one instance is wanted for; ``replica_id`` is ``None`` in a demand that a person named."""

    key: str
    kind: str
    want: Want
    replica_id: uuid.UUID | None = None
    tenant: str = ""
    endpoint: str = ""


@dataclasses.dataclass(frozen=True)
class Cut:
    """A proposal for one GPU: what it is cut into now and then, whom that serves, who has to leave first."""

    device: Device
    now: Layout
    proposal: Proposal
    served: tuple[tuple[Waiting, Placed], ...]

    @property
    def applicable(self) -> bool:
        """True when nobody uses the GPU, so that it can be cut at once."""
        return self.proposal.must_move == 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """Proposals for all GPUs, best first, and what none of them serves."""

    cuts: tuple[Cut, ...]
    unserved: tuple[Waiting, ...]


def for_waiting(*, actor: Actor) -> Plan:
    """What to cut for the replicas that wait now for a MIG instance. Platform admins only.

    One that asks for no profile waits for an instance only where one of some GPU here would hold it: else it waits for
    a whole GPU.
    """
    access.require_platform_admin(actor)
    every = [profile for _row, geometry in _with_geometry(_cuttable()) for profile in geometry.profiles]
    return _plan([each for each in _waiting() if each.want.profile or any(map(each.want.takes, every))])


def for_demand(*, actor: Actor, wanted: Sequence[Want], kind: str = DeviceKind.CUDA.value) -> Plan:
    """What to cut for a demand that a person names.

    Raises:
        errors.InvalidInput: none, or too many.
    """
    access.require_platform_admin(actor)
    if not 0 < len(wanted) <= MAX_WANTS:
        raise errors.InvalidInput(f"Name 1 to {MAX_WANTS} instances.", data={"field": "demand"})
    named = [dataclasses.replace(want, key=str(number)) for number, want in enumerate(wanted)]
    return _plan([Waiting(want.key, kind, want) for want in named])


def _waiting() -> list[Waiting]:
    found: list[Waiting] = []
    for ask in waiting():
        for kind, need in _walled(ask.needs).items():
            want = Want(need.memory_bytes, profile=need.profile, key=f"{ask.replica_id}/{kind}")
            found.append(Waiting(want.key, kind, want, ask.replica_id))
    with scope.all_tenants():
        rows = Replica.objects.filter(id__in=[each.replica_id for each in found]).exclude(reason="QuotaExceeded")
        names = {row.id: row for row in rows.select_related("tenant", "deployment__endpoint").defer("log_tail")}
    return [
        dataclasses.replace(
            each,
            tenant=names[each.replica_id].tenant.slug,
            endpoint=names[each.replica_id].deployment.endpoint.name,
        )
        for each in found
        if each.replica_id in names
    ][:MAX_WANTS]


def _walled(needs: Mapping[str, Need]) -> dict[str, Need]:
    """The needs that a MIG instance could meet and that ask for one: of one device, behind a wall of hardware."""
    return {
        need.kind: need
        for need in needs.values()
        if need.devices * need.stages == 1
        and need.kind != DeviceKind.CPU
        and (need.profile or need.least == Requirement.HARDWARE)
    }


def _plan(wanted: Sequence[Waiting]) -> Plan:
    rows = {row.uuid: row for row in _cuttable()}
    holders = _holders(list(rows.values()))
    cuts: list[Cut] = []
    served: set[str] = set()
    for kind in sorted({each.kind for each in wanted}):  # "cuda" before "simulated"
        mine = {each.key: each for each in wanted if each.kind == kind and _id(each) not in served}
        candidates = [
            Candidate(row.uuid, geometry, now_of(row), holders.get(row.id, 0))
            for row, geometry in _with_geometry(rows.values())
            if row.kind == kind
        ]
        for proposal in layouts.propose_all(candidates, [each.want for each in mine.values()]):
            pairs = tuple((mine[key], placed) for key, placed in proposal.serves)
            served |= {_id(each) for each, _placed in pairs}
            cuts.append(Cut(rows[proposal.key], now_of(rows[proposal.key]), proposal, pairs))
    left: dict[str, Waiting] = {}
    for each in wanted:
        if _id(each) not in served:
            left.setdefault(_id(each), each)
    return Plan(tuple(sorted(cuts, key=lambda cut: not cut.applicable)), tuple(left.values()))


def _id(each: Waiting) -> str:
    """One replica may want an instance of either kind of GPU; it is served once."""
    return str(each.replica_id or each.key)


def _cuttable() -> list[Device]:
    rows = (
        Device.objects.select_related("node")
        .filter(parent=None, present=True, state=DeviceState.HEALTHY, node__state=NodeState.READY)
        .exclude(kind=DeviceKind.CPU)
        .exclude(layout_phase__in=_UNDER_WAY)
        .order_by("node__name", "uuid")
    )
    return [row for row in rows if row.kind != DeviceKind.SIMULATED or row.stand_in]


def _with_geometry(rows: Iterable[Device]) -> Iterator[tuple[Device, layouts.Geometry]]:
    for row in rows:
        geometry = layouts.geometry_of(row.product, row.facts.get("mig"))
        if geometry is not None:
            yield row, geometry


def now_of(row: Device) -> Layout:
    """What a GPU is cut into by its node's report."""
    geometry = layouts.geometry_of(row.product, row.facts.get("mig"))
    if geometry is None:
        return ()
    try:
        return layouts.check(geometry, [(profile, start) for profile, start in cutting.reported(row)])
    except layouts.Illegal:
        return ()  # an instance that no table knows: whatever is proposed replaces it


def _holders(rows: Sequence[Device]) -> dict[uuid.UUID, int]:
    """How many replicas hold a part of each GPU or of an instance of it."""
    ids = [row.id for row in rows]
    found: dict[uuid.UUID, int] = {}
    for path in ("device_id", "device__parent_id"):
        parts = Partition.objects.filter(**{f"{path}__in": ids}).order_by().values_list(path)
        for device_id, count in parts.annotate(count=Count("replica_id", distinct=True)):
            found[device_id] = found.get(device_id, 0) + count
    return found
