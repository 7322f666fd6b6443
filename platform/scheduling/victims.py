"""The fewest replicas without which a need finds its places (pure): on one node, or for stages over several.

A replica over several nodes is one victim: all of it ends together, and what it leaves on every node counts.
"""

import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from scheduling import rank, stages
from scheduling.bins import NEVER, Bin
from scheduling.board import Board, Spot
from scheduling.claims import Claim
from scheduling.holders import bins_of
from scheduling.need import Need
from scheduling.snapshot import HolderView, Holding

Standing = tuple[int, int, int, int]
#: Hurts more than anything.
WORST: Final[Standing] = (sys.maxsize, 0, 0, 0)
ByBin = Mapping[int, Sequence[HolderView]]


class Pad:
    """Changes to a board that are taken back at the end of a ``with``."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._before: stages.Views = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._board.restore(self._before)

    def before(self) -> stages.Views:
        """What stood in the nodes that were changed."""
        return dict(self._before)

    def remove(self, holder: HolderView) -> None:
        """Take ``holder`` off all its nodes."""
        here = bins_of(self._board, holder)
        self._touch(here)
        for at in sorted(here):
            self._board.release(at, holder)

    def take(self, spot: Spot, need: Need) -> None:
        """Book one group."""
        self._touch([spot.bin])
        self._board.take(spot, need)

    def put(self, views: stages.Views) -> None:
        """Put nodes in another state."""
        self._touch(views)
        self._board.restore(views)

    def _touch(self, bins: Iterable[int]) -> None:
        self._before |= self._board.views(at for at in bins if at not in self._before)


def standing(victims: Sequence[HolderView]) -> Standing:
    """How much it hurts when they go; the least is chosen."""
    return (
        max((v.importance for v in victims), default=-1),
        len(victims),
        sum(v.importance for v in victims),
        sum(v.memory_bytes for v in victims),
    )


def on_node(
    board: Board, at: int, need: Need, holders: Sequence[HolderView], claim: Claim, highest: int = sys.maxsize
) -> list[HolderView] | None:
    """The fewest of ``holders`` without which one group of ``need`` fits on the node; ``None``: that is not enough.

    ``None`` also where somebody above the priority ``highest`` would have to go. ``claim`` counts all that were tried.
    """
    trial = _Trial(board, at)
    for holder in sorted(holders, key=lambda h: (h.importance, -h.memory_bytes, h.replica_id)):
        if holder.importance > highest:
            return None
        if not claim.allows(holder):
            continue
        claim.goes(holder)
        trial.remove(holder)
        if trial.node.can(need):
            return trial.fewest(need)
    return None


class _Trial:
    """One node without some of its holders."""

    def __init__(self, board: Board, at: int) -> None:
        self._board, self._at = board, at
        self.node: Bin = board.bins[at].clone()
        self._gone: dict[uuid.UUID, tuple[HolderView, list[tuple[int, Holding]]]] = {}

    def remove(self, holder: HolderView) -> None:
        parts = self._board.parts(self._at, holder)
        self._gone[holder.replica_id] = (holder, parts)
        self.node.release(parts)

    def fewest(self, need: Need) -> list[HolderView]:
        """Those of the removed that have to be, for ``need`` to fit."""
        for spared in _important_first([holder for holder, _parts in self._gone.values()]):
            _holder, parts = self._gone.pop(spared.replica_id)
            rest = [each for _holder, theirs in self._gone.values() for each in theirs]
            self.node.put_back(parts, self._board.bins[self._at], rest)
            if not self.node.can(need):
                self.remove(spared)
        return [holder for holder, _parts in self._gone.values()]


def _important_first(holders: Iterable[HolderView]) -> list[HolderView]:
    return sorted(holders, key=lambda h: (-h.importance, h.memory_bytes, h.replica_id))


def over_nodes(
    board: Board, need: Need, product: str, by_bin: ByBin, claim: Claim, wish: rank.Wish
) -> list[HolderView] | None:
    """The fewest without which all stages of ``need`` find places on devices of ``product``; ``None``: impossible.

    Stage by stage: where there is room, or else on the node where those hurt least that have to go for it. Whoever
    turns out to be in nobody's way is left out in the end.
    """
    stage = stages.of_product(need, product)
    going: list[HolderView] = []
    with Pad(board) as pad:
        for _number in range(need.stages):
            found = _for_stage(board, stage, by_bin, going, claim)
            if found is None:
                return None
            at, victims = found
            for victim in victims:
                claim.goes(victim)
                pad.remove(victim)
            going += victims
            pad.take(Spot(at, board.bins[at].cheapest(stage)[1]), stages.closed(stage))
    for spared in _important_first(going):
        rest = [holder for holder in going if holder is not spared]
        if rest and _room_without(board, need, product, rest, wish):
            going = rest
    return going


def _room_without(board: Board, need: Need, product: str, holders: Iterable[HolderView], wish: rank.Wish) -> bool:
    with Pad(board) as pad:
        for holder in holders:
            pad.remove(holder)
        return bool(stages.look(board, need, wish, product))


def _for_stage(
    board: Board, stage: Need, by_bin: ByBin, going: Sequence[HolderView], claim: Claim
) -> tuple[int, list[HolderView]] | None:
    cost, free = board.scores(stage).best({})
    if cost < NEVER:
        return free, []
    gone = {holder.replica_id for holder in going}
    best: tuple[Standing, int, list[HolderView]] = (WORST, -1, [])
    for at in sorted(by_bin):
        here = [holder for holder in by_bin[at] if holder.replica_id not in gone]
        found = on_node(board, at, stage, here, claim.copy(), best[0][0]) if here else None
        if found is not None and standing(found) < best[0]:
            best = (standing(found), at, found)
    return None if best[1] < 0 else best[1:]
