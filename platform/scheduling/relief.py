"""Who would have to go so that a replica finds its places (pure): preemption by priority, and reclaim of borrowed room.

Who may go is said by ``claims``, and for the limit of a group of tenants by ``borrowers``. Of all ways the one is taken
where the least important, fewest and smallest go; those that find a place elsewhere are moved, the others end. What is
leaving already is waited for before anybody goes. For a replica over several nodes all of them make room, or none; one
that has to go finds places for all its stages elsewhere, or ends on all its nodes together.
"""

import dataclasses
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scheduling import rank, stages
from scheduling.answers import Ask
from scheduling.bins import NEVER
from scheduling.board import Board, Spot
from scheduling.borrowers import MAX_FOR_ONE, Amounts, Borrowers
from scheduling.claims import Tenants, claim_of
from scheduling.holders import Holders, need_of
from scheduling.need import Need, charge
from scheduling.snapshot import GroupView, HolderView
from scheduling.victims import ByBin, Pad, Standing, on_node, over_nodes, standing


@dataclasses.dataclass(frozen=True)
class Relief:
    """``moves`` find a place elsewhere, ``evicts`` do not; ``waits`` are leaving anyway.

    ``spots`` are where the one that asks will be, with ``need`` in each; ``asks``: the bytes and thousandths of a GPU
    that it will hold. ``for_group`` of those who go leave only because the tenants of a group hold all that they may.
    """

    spots: tuple[Spot, ...]
    need: Need
    evicts: tuple[HolderView, ...]
    moves: tuple[HolderView, ...]
    waits: tuple[HolderView, ...] = ()
    for_group: tuple[HolderView, ...] = ()
    asks: Amounts = (0, 0)

    @property
    def victims(self) -> tuple[HolderView, ...]:
        """All who have to give way."""
        return (*self.evicts, *self.moves)

    @property
    def replica_ids(self) -> frozenset[uuid.UUID]:
        """Of those who have to give way."""
        return frozenset(holder.replica_id for holder in self.victims)


class _Way(NamedTuple):
    """One way to find places; the least of them is taken. Nothing is compared after ``order``.

    ``apart`` go beside the ``victims``, for the group alone; ``ends`` must not be moved.
    """

    standing: Standing
    order: int
    need: Need
    product: str
    victims: list[HolderView]
    apart: Sequence[HolderView] = ()
    ends: frozenset[uuid.UUID] = frozenset()


def find(
    board: Board, ask: Ask, held: Holders, tenants: Tenants, *, group: GroupView | None = None, wait_only: bool = False
) -> Relief | None:
    """The least that must go for ``ask``, ``None`` when nothing may or nothing would help.

    ``group`` is that of its tenant, where it may not hold so much more and what is asked for is guaranteed.
    ``wait_only``: nobody is to go, but waiting for those who leave anyway may be enough.
    """
    leaving = held.leaving()
    staying = {} if wait_only else held.staying()
    if not (leaving or staying or group):
        return None
    borrowers = Borrowers(ask, group, tenants, _once(staying.values())) if group is not None else None
    free = list(_free(board, ask)) if borrowers is not None else []
    with Pad(board) as pad:
        for gone in _once(leaving.values()):
            pad.remove(gone)
        ways = [*free, *_ways(board, ask, staying, leaving, tenants)]
        if borrowers is not None:
            ways += _ways(board, ask, borrowers.of(staying), {}, tenants)
        best = _least(board, ask, ways, borrowers, tenants)
        if best is None or len(best.victims) + len(best.apart) > MAX_FOR_ONE:
            return None
        for victim in best.victims:
            pad.remove(victim)
        _stage, spots = _spots(board, ask, best)
    beside = _once([leaving.get(at, []) for at in sorted({spot.bin for spot in spots})])
    with Pad(board) as pad:
        for victim in best.victims:
            pad.remove(victim)
        waits = _fewest(board, ask, best, beside, _devices(board, spots))
        for gone in waits:
            pad.remove(gone)
        stage, spots = _spots(board, ask, best)
    victims = tuple(sorted((*best.victims, *best.apart), key=lambda h: (-h.importance, h.replica_id)))
    asks = _amounts(board, stage, spots)
    found = Relief(tuple(spots), stage, victims, (), tuple(waits), tuple(best.apart), asks)
    moves = _movable(board, found, best.ends) if len(victims) > len(best.ends) else []
    moved = {holder.replica_id for holder in moves}
    evicts = tuple(holder for holder in victims if holder.replica_id not in moved)
    return dataclasses.replace(found, evicts=evicts, moves=tuple(moves))


def _free(board: Board, ask: Ask) -> Iterator[_Way]:
    """Where there is room already."""
    for need in ask.needs.values():
        if need.stages > 1:
            for order, product in enumerate(stages.products(board, need)):
                if stages.look(board, need, _wish(ask), product):
                    yield _Way(standing([]), order, need, product, [])
        elif (spot := rank.best(board, need, _wish(ask))) is not None:
            yield _Way(standing([]), spot.bin, need, "", [])


def _least(board: Board, ask: Ask, ways: Iterable[_Way], borrowers: Borrowers | None, tenants: Tenants) -> _Way | None:
    """The best of ``ways``, with those who go for the group's limit; they make a way no better than it was."""
    best: _Way | None = None
    for way in sorted(ways, key=lambda way: way[:2]):
        if best is not None and best[:2] <= way[:2]:
            break
        whole = way if borrowers is None else _with_borrowers(board, ask, way, borrowers, tenants)
        if whole is not None and (best is None or whole[:2] < best[:2]):
            best = whole
    return best


def _with_borrowers(board: Board, ask: Ask, way: _Way, borrowers: Borrowers, tenants: Tenants) -> _Way | None:
    claim = claim_of(board, ask, way.need, tenants)
    with Pad(board) as pad:
        for victim in way.victims:
            claim.goes(victim)
            pad.remove(victim)
        more = _amounts(board, *_spots(board, ask, way))
    given = borrowers.give(more, way.victims, claim)
    if given is None:
        return None
    hurt = standing([*way.victims, *given.apart])
    return way._replace(standing=hurt, apart=given.apart, ends=given.ends)


def _amounts(board: Board, need: Need, spots: Iterable[Spot]) -> Amounts:
    """Bytes and thousandths of a GPU that count for what is at ``spots``."""
    devices = [board.bins[spot.bin].devices[at] for spot in spots for at in spot.devices]
    return need.memory_bytes * len(devices), sum(charge(need, each) for each in devices)


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


def _devices(board: Board, spots: Iterable[Spot]) -> frozenset[uuid.UUID]:
    return frozenset(board.bins[spot.bin].devices[at].id for spot in spots for at in spot.devices)


def _fewest(
    board: Board, ask: Ask, way: _Way, leaving: list[HolderView], devices: frozenset[uuid.UUID]
) -> list[HolderView]:
    """Those of ``leaving`` that have to be gone: the room of the others is for the next that wait beside this one."""
    there = [holder for holder in leaving if any(each.device_id in devices for each in holder.holdings)]
    waits = there if _has_room(board, ask, way, there) else leaving
    for spared in sorted(waits, key=lambda holder: (holder.memory_bytes, holder.replica_id)):
        rest = [holder for holder in waits if holder is not spared]
        if _has_room(board, ask, way, rest):
            waits = rest
    return waits


def _has_room(board: Board, ask: Ask, way: _Way, without: Iterable[HolderView]) -> bool:
    with Pad(board) as pad:
        for holder in without:
            pad.remove(holder)
        if way.product:
            return bool(stages.look(board, way.need, _wish(ask), way.product))
        return board.bins[way.order].can(way.need)


def _wish(ask: Ask) -> rank.Wish:
    return rank.Wish(ask.deployment_id, ask.desired)


def _once(groups: Iterable[Sequence[HolderView]]) -> list[HolderView]:
    """Each of them once: one over several nodes stands with each of its nodes."""
    return list({holder.replica_id: holder for group in groups for holder in group}.values())


def _movable(board: Board, found: Relief, ends: frozenset[uuid.UUID]) -> list[HolderView]:
    """Who of the victims finds a place elsewhere while all of them still have theirs; what leaves needs no quota, but
    those who give back what a group lacks (``ends``) have none for a place elsewhere.

    Their successors are planned on what is free until then, so they are looked for on exactly that.
    """
    with Pad(board) as pad:
        pad.put(_kept(board, found))
        # who serves nobody has a successor already
        able = [each for each in found.victims if not each.stranded and each.replica_id not in ends]
        return [victim for victim in able if _placed_again(board, pad, victim)]


def _placed_again(board: Board, pad: Pad, holder: HolderView) -> bool:
    """Book places for all of ``holder`` once more; nothing is booked where one of its stages finds none."""
    need = need_of(board, holder)
    if need is None:
        return False
    if need.stages > 1:
        (product,) = need.products
        spots = stages.look(board, need, rank.Wish(holder.deployment_id), product)
        need = stages.of_product(need, product)
    else:
        scores = board.scores(need)
        cost, at = scores.best({})
        spots = [Spot(at, scores.options[at][1])] if cost < NEVER else []
    for spot in spots:
        pad.take(spot, need)
    return bool(spots)


def reserve(board: Board, found: Relief) -> None:
    """Keep on the board what the one that asks will take there, so that nobody else takes it while the others end.

    What those leave over is not given away either, before they are gone.
    """
    board.restore(_kept(board, found))


def _kept(board: Board, found: Relief) -> stages.Views:
    with Pad(board) as pad:
        for holder in (*found.waits, *found.victims):
            pad.remove(holder)
        for spot in found.spots:
            pad.take(spot, found.need)
        before = pad.before()
        return {at: _both(now, before[at]) for at, now in board.views(before).items()}


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
