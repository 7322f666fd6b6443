"""Who would have to go so that a replica finds a place (pure): preemption by priority, and reclaim of borrowed room.

A replica may end when
- it has a lower priority than the one that asks, and belongs to the same tenant; or
- its tenant keeps its whole guarantee without it (what it holds above that is borrowed), and it has a lower priority,
  or the tenant that asks stays within its own guarantee and the priority is no higher,
  or it borrows less afterwards, by weight, than the other still does, and the priority is no higher.
The guarantee of another tenant is never touched. Of all nodes the one is taken where the least important, fewest and
smallest go; those that find a place elsewhere are moved, the others end. What is leaving already is waited for before
anybody goes.
"""

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence, Set

from kernel.isolation import Isolation, Requirement
from scheduling.answers import Ask
from scheduling.bins import NEVER, Bin
from scheduling.board import Board, Spot
from scheduling.need import Need, charge
from scheduling.snapshot import UNLIMITED, HolderView, TenantView

Standing = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Relief:
    """``moves`` find a place elsewhere (node by id), ``evicts`` do not; ``waits`` are leaving anyway."""

    node_id: uuid.UUID
    need: Need
    evicts: tuple[HolderView, ...]
    moves: tuple[tuple[HolderView, uuid.UUID], ...]
    waits: tuple[HolderView, ...] = ()

    @property
    def victims(self) -> tuple[HolderView, ...]:
        """All who have to give way."""
        return (*self.evicts, *(holder for holder, _node in self.moves))

    @property
    def replica_ids(self) -> frozenset[uuid.UUID]:
        """Of those who have to give way."""
        return frozenset(holder.replica_id for holder in self.victims)


def find(
    board: Board,
    ask: Ask,
    holders: Sequence[HolderView],
    tenants: Mapping[uuid.UUID, TenantView],
    going: Set[uuid.UUID] = frozenset(),
) -> Relief | None:
    """The least that must go for ``ask``, ``None`` when nothing may or nothing would help.

    Replicas over several nodes neither go nor are helped: what one node frees says nothing about the others.
    """
    by_bin: dict[int, list[HolderView]] = {}
    leaving: dict[int, list[HolderView]] = {}
    for holder in holders:
        spots = {board.device_position[h.device_id][0] for h in holder.holdings if h.device_id in board.device_position}
        if len(spots) == 1 and holder.replica_id not in going and (holder.endable or holder.leaving):
            (leaving if holder.leaving else by_bin).setdefault(spots.pop(), []).append(holder)
    best: tuple[Standing, int, Need, list[HolderView]] | None = None
    for need in ask.needs.values():
        if need.stages > 1:
            continue
        entitled = _entitled(board, ask, need, tenants)
        for at in sorted({*by_bin, *leaving}):
            allowance = _Allowance(ask, need, tenants, entitled)
            victims = _victims(board, at, need, by_bin.get(at, []), leaving.get(at, []), allowance)
            if victims is not None:
                standing = _standing(victims)
                if best is None or (standing, at) < best[:2]:
                    best = (standing, at, need, victims)
    if best is None:
        return None
    _rank, at, need, victims = best
    return _told_apart(board, at, need, victims, leaving.get(at, []))


def _entitled(board: Board, ask: Ask, need: Need, tenants: Mapping[uuid.UUID, TenantView]) -> bool:
    """True when the tenant that asks stays within its guarantee, at the least that ``need`` counts of GPUs."""
    asking = tenants.get(ask.tenant_id) if ask.tenant_id is not None else None
    if asking is None:
        return False
    ranks = need.devices * need.stages
    costs = [charge(need, device) for each in board.bins for device in each.devices if device.kind == need.kind]
    return asking.within_guarantee(need.total_bytes, min(costs, default=0) * ranks)


def _standing(victims: Sequence[HolderView]) -> Standing:
    return (
        max((v.priority for v in victims), default=-1),
        len(victims),
        sum(v.priority for v in victims),
        sum(v.memory_bytes for v in victims),
    )


class _Allowance:
    """Whether one more may go, given those that go already."""

    def __init__(self, ask: Ask, need: Need, tenants: Mapping[uuid.UUID, TenantView], entitled: bool) -> None:
        self._ask = ask
        self._tenants = tenants
        self._asking = tenants.get(ask.tenant_id) if ask.tenant_id is not None else None
        self._more, self._entitled = need.total_bytes, entitled
        self._released: dict[uuid.UUID, tuple[int, int]] = {}

    def allows(self, holder: HolderView) -> bool:
        lower = holder.priority < self._ask.priority
        if holder.tenant_id == self._ask.tenant_id:
            return lower
        tenant = self._tenants.get(holder.tenant_id)
        released = self._with(holder)
        if tenant is None or not tenant.borrowed(*released):
            return False
        if lower or holder.priority > self._ask.priority:
            return lower
        return self._entitled or self._borrows_less(tenant, released[0])

    def goes(self, holder: HolderView) -> None:
        self._released[holder.tenant_id] = self._with(holder)

    def _with(self, holder: HolderView) -> tuple[int, int]:
        """Bytes and thousandths of a GPU that its tenant would have released then."""
        size, millis = self._released.get(holder.tenant_id, (0, 0))
        return size + holder.memory_bytes, millis + holder.gpu_millis

    def _borrows_less(self, tenant: TenantView, released: int) -> bool:
        """Once all is done the one that asks is no further above its guarantee: it cannot be taken back likewise."""
        if self._asking is None or tenant.guaranteed_bytes == UNLIMITED or not self._asking.weight:
            return False
        return self._asking.over_share(self._more) <= tenant.over_share(-released)


def reserve(board: Board, found: Relief) -> None:
    """Keep on the board what the one that asks will take there, so that nobody else takes it while the others end.

    What those leave over is not given away either, before they are gone.
    """
    at = board.position[found.node_id]
    before = board.views([at])[at]
    for holder in (*found.waits, *found.victims):
        remove(board.bins[at], board, holder)
    board.take(Spot(at, board.bins[at].cheapest(found.need)[1]), found.need)
    node, devices = board.views([at])[at]
    kept = dataclasses.replace(
        node,
        held_host_bytes=max(node.held_host_bytes, before[0].held_host_bytes),
        held_millicpus=max(node.held_millicpus, before[0].held_millicpus),
        memory_available_bytes=min(node.memory_available_bytes, before[0].memory_available_bytes),
    )
    both = [
        dataclasses.replace(
            now,
            held_bytes=max(now.held_bytes, then.held_bytes),
            held_millis=max(now.held_millis, then.held_millis),
            exclusive=now.exclusive or then.exclusive,
            shared=now.shared or then.shared,
            shared_as=now.shared_as or then.shared_as,
            sharers=max(now.sharers, then.sharers),
        )
        for now, then in zip(devices, before[1], strict=True)
    ]
    board.restore({at: (kept, both)})


def _victims(
    board: Board,
    at: int,
    need: Need,
    holders: Sequence[HolderView],
    leaving: Sequence[HolderView],
    allowance: _Allowance,
) -> list[HolderView] | None:
    """The fewest of ``holders`` without which, and without those ``leaving``, ``need`` fits on the node.

    ``None`` when that is not enough; nobody when it is enough to wait.
    """
    before = board.views([at])
    for gone in leaving:
        remove(board.bins[at], board, gone)
    empty = board.views([at])
    try:
        if leaving and _fits(board.bins[at], need):
            return []
        going: list[HolderView] = []
        for holder in sorted(holders, key=lambda h: (h.priority, -h.memory_bytes, h.replica_id)):
            if not allowance.allows(holder):
                continue
            allowance.goes(holder)
            remove(board.bins[at], board, holder)
            going.append(holder)
            if _fits(board.bins[at], need):
                return _fewer(board, at, need, going, lambda: board.restore(empty))
        return None
    finally:
        board.restore(before)


def _fewer(board: Board, at: int, need: Need, going: list[HolderView], restore: Callable[[], None]) -> list[HolderView]:
    """Leave out again whoever need not go, the most important first."""
    for spared in sorted(going, key=lambda h: (-h.priority, h.memory_bytes, h.replica_id)):
        rest = [holder for holder in going if holder is not spared]
        restore()
        for holder in rest:
            remove(board.bins[at], board, holder)
        if rest and _fits(board.bins[at], need):
            going = rest
    return going


def _fits(each: Bin, need: Need) -> bool:
    return each.cheapest(need)[0] < NEVER


def remove(each: Bin, board: Board, holder: HolderView) -> None:
    """Take what ``holder`` has off a node of the board."""
    host = cpu = used = 0
    for holding in holder.holdings:
        bin_at, device_at = board.device_position[holding.device_id]
        if bin_at != each.index:
            continue
        device = each.devices[device_at]
        left, millis = device.held_bytes - holding.memory_bytes, device.held_millis - holding.millis
        each.devices[device_at] = dataclasses.replace(
            device,
            held_bytes=left,
            held_millis=millis,
            exclusive=device.exclusive and not holding.exclusive,
            shared=device.shared and left > 0,
            shared_as=device.shared_as if left > 0 else "",
            sharers=max(device.sharers - 1, 0),
        )
        host += holding.host_bytes
        cpu += holding.millicpus
        used += holding.host_used_bytes
    each.node = dataclasses.replace(
        each.node,
        held_host_bytes=each.node.held_host_bytes - host,
        held_millicpus=each.node.held_millicpus - cpu,
        memory_available_bytes=each.node.memory_available_bytes + used,
    )
    each.refresh()


def _told_apart(
    board: Board, at: int, need: Need, victims: Sequence[HolderView], leaving: Sequence[HolderView]
) -> Relief:
    """Who of the victims finds a place elsewhere, once the one that asks has theirs."""
    before = board.views(range(len(board.bins)) if len(victims) > 1 else [at])
    evicts, moves = [], []
    try:
        for victim in (*leaving, *victims):
            remove(board.bins[at], board, victim)
        board.changed.append(at)
        board.take(Spot(at, board.bins[at].cheapest(need)[1]), need)
        for victim in sorted(victims, key=lambda h: (-h.priority, h.replica_id)):
            wanted = need_of(board, victim)
            cost, elsewhere = board.scores(wanted).best({at: None})
            if cost < NEVER:
                spot = Spot(elsewhere, board.scores(wanted).options[elsewhere][1])
                before |= {key: view for key, view in board.views([elsewhere]).items() if key not in before}
                board.take(spot, wanted)
                moves.append((victim, board.bins[elsewhere].node.id))
            else:
                evicts.append(victim)
    finally:
        board.restore(before)
    return Relief(board.bins[at].node.id, need, tuple(evicts), tuple(moves), tuple(leaving))


def need_of(board: Board, holder: HolderView) -> Need:
    """What a replica on one node holds, as a need."""
    first = holder.holdings[0]
    bin_at, device_at = board.device_position[first.device_id]
    return Need(
        kind=board.bins[bin_at].devices[device_at].kind,
        memory_bytes=max(holding.memory_bytes for holding in holder.holdings),
        host_bytes=sum(holding.host_bytes for holding in holder.holdings),
        millicpus=sum(holding.millicpus for holding in holder.holdings),
        millis=max(holding.millis for holding in holder.holdings),
        devices=len(holder.holdings),
        whole=first.exclusive,
        least=Requirement.MPS.value if first.isolation == Isolation.MPS else Requirement.ANY.value,
    )
