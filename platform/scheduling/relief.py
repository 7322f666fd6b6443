"""Who would have to go so that a replica finds its places (pure): preemption by priority, and reclaim of borrowed room.

Who may go is said by ``claims``. Of all ways the one is taken where the least important, fewest and smallest go; those
that find a place elsewhere are moved, the others end. What is leaving already is waited for before anybody goes. For a
replica over several nodes all of them make room, or none; one that has to go ends on all its nodes together.
"""

import dataclasses
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kernel.isolation import Isolation, Requirement
from scheduling import rank, stages
from scheduling.answers import Ask
from scheduling.bins import NEVER
from scheduling.board import Board, Spot
from scheduling.claims import Tenants, claim_of
from scheduling.holders import Holders, bins_of
from scheduling.need import Need
from scheduling.snapshot import HolderView
from scheduling.victims import ByBin, Pad, Standing, on_node, over_nodes, standing

#: Replicas that may have to go for one.
MAX_FOR_ONE: Final = 64


@dataclasses.dataclass(frozen=True)
class Relief:
    """``moves`` find a place elsewhere (node by id), ``evicts`` do not; ``waits`` are leaving anyway.

    ``spots`` are where the one that asks will be, with ``need`` in each.
    """

    spots: tuple[Spot, ...]
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


class _Way(NamedTuple):
    """One way to find places; the least of them is taken. Nothing is compared after ``order``."""

    standing: Standing
    order: int
    need: Need
    product: str
    victims: list[HolderView]


def find(board: Board, ask: Ask, held: Holders, tenants: Tenants, *, wait_only: bool = False) -> Relief | None:
    """The least that must go for ``ask``, ``None`` when nothing may or nothing would help.

    ``wait_only``: nobody is to go, but waiting for those who leave anyway may be enough.
    """
    leaving = held.leaving()
    staying = {} if wait_only else held.staying()
    if not (leaving or staying):
        return None
    with Pad(board) as pad:
        for gone in _once(leaving.values()):
            pad.remove(gone)
        best = min(_ways(board, ask, staying, leaving, tenants), key=lambda way: way[:2], default=None)
        if best is None or len(best.victims) > MAX_FOR_ONE:
            return None
        for victim in best.victims:
            pad.remove(victim)
        stage, spots = _spots(board, ask, best)
    waits = _once([leaving.get(at, []) for at in sorted({spot.bin for spot in spots})])
    return _told_apart(board, stage, spots, best.victims, waits)


def _ways(board: Board, ask: Ask, staying: ByBin, leaving: ByBin, tenants: Tenants) -> Iterator[_Way]:
    """What leaves already is off the board."""
    for need in ask.needs.values():
        claim = claim_of(board, ask, need, tenants)
        if need.stages > 1:
            for order, product in enumerate(stages.products(board, need)):
                waiting = bool(leaving) and bool(stages.look(board, need, _wish(ask), product))
                over = [] if waiting else over_nodes(board, need, product, staying, claim.copy(), _wish(ask))
                if over is not None:
                    yield _Way(standing(over), order, need, product, over)
            continue
        highest = sys.maxsize
        for at in sorted({*staying, *leaving}):
            waiting = at in leaving and board.bins[at].can(need)
            here = [] if waiting else on_node(board, at, need, staying.get(at, []), claim.copy(), highest)
            if here is not None:
                yield _Way(standing(here), at, need, "", here)
                highest = min(highest, standing(here)[0])


def _spots(board: Board, ask: Ask, way: _Way) -> tuple[Need, list[Spot]]:
    if way.product:
        return stages.of_product(way.need, way.product), stages.look(board, way.need, _wish(ask), way.product)
    return way.need, [Spot(way.order, board.bins[way.order].cheapest(way.need)[1])]


def _wish(ask: Ask) -> rank.Wish:
    return rank.Wish(ask.deployment_id, ask.desired)


def _once(groups: Iterable[Sequence[HolderView]]) -> list[HolderView]:
    """Each of them once: one over several nodes stands with each of its nodes."""
    return list({holder.replica_id: holder for group in groups for holder in group}.values())


def _told_apart(
    board: Board, need: Need, spots: Sequence[Spot], victims: Sequence[HolderView], waits: Sequence[HolderView]
) -> Relief:
    """Who of the victims finds a place elsewhere, once the one that asks has theirs.

    Nobody is moved to where others end. A replica over several nodes is not moved: its successor is planned like any.
    """
    evicts, moves = [], []
    with Pad(board) as pad:
        for holder in (*waits, *victims):
            pad.remove(holder)
        for spot in spots:
            pad.take(spot, need)
        ending: dict[int, object] = {at: None for holder in (*waits, *victims) for at in bins_of(board, holder)}
        ending |= {spot.bin: None for spot in spots}
        for victim in sorted(victims, key=lambda h: (-h.priority, h.replica_id)):
            if not _on_one_node(board, victim):
                evicts.append(victim)
                continue
            wanted = need_of(board, victim)
            scores = board.scores(wanted)
            cost, elsewhere = scores.best(ending)
            if cost < NEVER:
                pad.take(Spot(elsewhere, scores.options[elsewhere][1]), wanted)
                moves.append((victim, board.bins[elsewhere].node.id))
            else:
                evicts.append(victim)
    return Relief(tuple(spots), need, tuple(evicts), tuple(moves), tuple(waits))


def _on_one_node(board: Board, holder: HolderView) -> bool:
    known = all(each.device_id in board.device_position for each in holder.holdings)
    return known and len(bins_of(board, holder)) == 1


def reserve(board: Board, found: Relief) -> None:
    """Keep on the board what the one that asks will take there, so that nobody else takes it while the others end.

    What those leave over is not given away either, before they are gone.
    """
    with Pad(board) as pad:
        for holder in (*found.waits, *found.victims):
            pad.remove(holder)
        for spot in found.spots:
            pad.take(spot, found.need)
        before = pad.before()
        kept = {at: _both(now, before[at]) for at, now in board.views(before).items()}
    board.restore(kept)


def _both(now: stages.View, before: stages.View) -> stages.View:
    """A node that has what it had and what it will have, whichever is more."""
    node = dataclasses.replace(
        now[0],
        held_host_bytes=max(now[0].held_host_bytes, before[0].held_host_bytes),
        held_millicpus=max(now[0].held_millicpus, before[0].held_millicpus),
        memory_available_bytes=min(now[0].memory_available_bytes, before[0].memory_available_bytes),
    )
    devices = [
        dataclasses.replace(
            after,
            held_bytes=max(after.held_bytes, then.held_bytes),
            held_millis=max(after.held_millis, then.held_millis),
            exclusive=after.exclusive or then.exclusive,
            shared=after.shared or then.shared,
            shared_as=after.shared_as or then.shared_as,
            sharers=max(after.sharers, then.sharers),
        )
        for after, then in zip(now[1], before[1], strict=True)
    ]
    return node, devices


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
