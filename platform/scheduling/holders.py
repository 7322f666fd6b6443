"""The replicas that have places, while a plan is made (pure): by node, and who of them goes already."""

import uuid
from collections.abc import Iterable, Sequence

from fleet.states import NodeState
from kernel.isolation import Isolation, Requirement
from scheduling.answers import HolderLine
from scheduling.board import Board
from scheduling.need import Need
from scheduling.products import allowed
from scheduling.snapshot import HolderView

Lines = dict[uuid.UUID, tuple[HolderLine, ...]]


class Holders:
    """Read once: a plan asks for them at every refusal."""

    def __init__(self, board: Board, holders: Sequence[HolderView]) -> None:
        self._all = holders
        self._staying: dict[int, list[HolderView]] = {}
        self._leaving: dict[int, list[HolderView]] = {}
        self._going: set[uuid.UUID] = set()
        self._lines: dict[uuid.UUID, Lines] = {}
        for holder in holders:
            here = bins_of(board, holder)
            heard = [at for at in here if board.bins[at].node.state != NodeState.LOST.value]
            if holder.leaving:
                into = self._leaving
            elif holder.endable and holder.stranded == (len(heard) < len(here)):
                into = self._staying
            else:  # a node is silent and not declared lost, or has just come back: it is let be
                continue
            for at in heard:  # what is on a lost node is not free for certain before that node reports
                into.setdefault(at, []).append(holder)

    def __bool__(self) -> bool:
        return bool(self._all)

    def staying(self) -> dict[int, list[HolderView]]:
        """By node, those that may be asked to go."""
        return self._besides_going(self._staying)

    def leaving(self) -> dict[int, list[HolderView]]:
        """By node, those that end anyway, and whose room nobody waits for yet."""
        return self._besides_going(self._leaving)

    def _besides_going(self, by_bin: dict[int, list[HolderView]]) -> dict[int, list[HolderView]]:
        if not self._going:
            return by_bin
        found = {}
        for at, holders in by_bin.items():
            if here := [holder for holder in holders if holder.replica_id not in self._going]:
                found[at] = here
        return found

    def go(self, holders: Iterable[HolderView]) -> None:
        """These make room for somebody."""
        self._going.update(holder.replica_id for holder in holders)

    def end(self, holders: Iterable[HolderView]) -> None:
        """These are told to go, and nobody waits for their room yet."""
        ending = {holder.replica_id for holder in holders}
        for at, here in list(self._staying.items()):
            gone = [holder for holder in here if holder.replica_id in ending]
            if gone:
                self._staying[at] = [holder for holder in here if holder.replica_id not in ending]
                self._leaving.setdefault(at, []).extend(gone)

    def lines_of(self, tenant_id: uuid.UUID | None) -> Lines:
        """What a tenant itself holds, by device: nobody is told of others' replicas."""
        if tenant_id is None:
            return {}
        found = self._lines.get(tenant_id)
        if found is None:
            lines: dict[uuid.UUID, list[HolderLine]] = {}
            for holder in self._all:
                if holder.tenant_id == tenant_id:
                    for holding in holder.holdings:
                        line = HolderLine(holder.label, holding.memory_bytes, holder.deployment_id)
                        lines.setdefault(holding.device_id, []).append(line)
            found = self._lines[tenant_id] = {device_id: tuple(each) for device_id, each in lines.items()}
        return found


def bins_of(board: Board, holder: HolderView) -> frozenset[int]:
    """The nodes of the board that ``holder`` has something of."""
    known = board.device_position
    return frozenset(known[each.device_id][0] for each in holder.holdings if each.device_id in known)


def need_of(board: Board, holder: HolderView) -> Need | None:
    """What a replica holds, as a need; ``None`` where it does not have all of it any more.

    What was planned for several devices was planned for those of one product, and is linked where they are; what is on
    one may be moved to what its config names.
    """
    positions = [board.device_position.get(holding.device_id, (-1, -1)) for holding in holder.holdings]
    if (-1, -1) in positions or len(positions) % holder.stages:
        return None
    devices = [board.bins[at].devices[each] for at, each in positions]
    group = len(devices) // holder.stages
    parts = [slice(begin, begin + group) for begin in range(0, len(devices), group)]
    groups = [holder.holdings[part] for part in parts]
    linked = _linked([[each.link_domain for each in devices[part]] for part in parts])
    first = holder.holdings[0]
    return Need(
        kind=devices[0].kind,
        memory_bytes=max(holding.memory_bytes for holding in holder.holdings),
        host_bytes=max(sum(holding.host_bytes for holding in each) for each in groups),
        millicpus=max(sum(holding.millicpus for holding in each) for each in groups),
        millis=max(holding.millis for holding in holder.holdings),
        devices=group,
        stages=holder.stages,
        over_nodes=_over_nodes(board, holder, positions),
        linked=linked > 1,
        linked_by=linked if 1 < linked < group else 0,
        products=frozenset({devices[0].product}) if len(devices) > 1 else allowed(holder.products, board.products),
        whole=first.exclusive,
        least=Requirement.MPS.value if first.isolation == Isolation.MPS else Requirement.ANY.value,
    )


def _over_nodes(board: Board, holder: HolderView, positions: Sequence[tuple[int, int]]) -> bool:
    """True for real stages: they can only go where nodes take part in that, as those that they are on do."""
    places = [board.bins[at] for at, _device in positions]
    real = all(place.devices[device].kind == "cuda" for place, (_at, device) in zip(places, positions, strict=True))
    return holder.stages > 1 and real and all(place.node.rank_address for place in places)


def _linked(groups: Sequence[Sequence[str]]) -> int:
    """How many consecutive devices of the groups are in one NVLink domain each, by their domains; 1: it is none."""
    count = len(groups[0])
    for each in range(count, 1, -1):
        chunks = [of[begin : begin + each] for of in groups for begin in range(0, count, each)]
        if count % each == 0 and all(chunk[0] and len(set(chunk)) == 1 for chunk in chunks):
            return each
    return 1
