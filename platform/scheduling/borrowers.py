"""Who gives back what a group lacks (pure): its tenants hold all that they may hold together, and one of them asks for
what is guaranteed to it.

Only tenants of that group give, what is above their guarantees: the one that is furthest above it by weight first, of
its replicas those of the lowest priority, and of equals one that is enough before several. On which devices they are
does not matter.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from scheduling.answers import Ask
from scheduling.claims import Claim, Tenants
from scheduling.snapshot import GroupView, HolderView
from scheduling.victims import ByBin

#: Replicas that may have to go for one, on whatever account.
MAX_FOR_ONE: Final = 64

Amounts = tuple[int, int]


class Given(NamedTuple):
    """``apart`` go beside those whose devices are wanted; ``ends`` are all that must end for the group's limit: what
    is only moved would hold as much elsewhere."""

    apart: list[HolderView]
    ends: frozenset[uuid.UUID]


class Borrowers:
    """The replicas of other tenants of a group, which may have to go for one that asks."""

    def __init__(self, ask: Ask, group: GroupView, tenants: Tenants, staying: Iterable[HolderView]) -> None:
        self.group = group
        self._members = {key for key, tenant in tenants.items() if tenant.group == group.id}
        others = self._members - {ask.tenant_id}
        self._all = [holder for holder in staying if holder.tenant_id in others and any(holder.released)]
        self._ids = {holder.replica_id for holder in self._all}

    def of(self, staying: ByBin) -> ByBin:
        """By node, those of ``staying`` that are here: what leaves with them serves both the group and a place."""
        found = {}
        for at, holders in staying.items():
            if here := [holder for holder in holders if holder.replica_id in self._ids]:
                found[at] = here
        return found

    def give(self, more: Amounts, going: Sequence[HolderView], claim: Claim) -> Given | None:
        """Who goes beside ``going`` so that the group can hold ``more`` (bytes, thousandths of a GPU); ``None``: it
        cannot. ``claim`` counts ``going`` already."""
        lack = self.group.lacks(*more)
        inside = [holder for holder in going if holder.tenant_id in self._members and any(holder.released)]
        left = _left(lack, inside)
        gone = {holder.replica_id for holder in going}
        rest = [holder for holder in self._all if holder.replica_id not in gone]
        apart = _take(left, rest, claim.copy(), _in_turn)
        if apart is None:  # a small one that went first may have left too little above a guarantee for a large one
            apart = _take(left, rest, claim.copy(), _largest_first)
        if apart is None:
            return None
        ends = _needed(lack, inside, apart)
        return Given(apart, frozenset(holder.replica_id for holder in (*apart, *ends)))


def _in_turn(claim: Claim, holder: HolderView, left: Amounts) -> tuple[float, ...]:
    return -claim.above(holder.tenant_id), holder.importance, -_part(holder, left), holder.memory_bytes


def _largest_first(claim: Claim, holder: HolderView, left: Amounts) -> tuple[float, ...]:
    return -_part(holder, left), -claim.above(holder.tenant_id), holder.importance, holder.memory_bytes


def _take(
    lack: Amounts,
    among: Sequence[HolderView],
    claim: Claim,
    order: Callable[[Claim, HolderView, Amounts], tuple[float, ...]],
) -> list[HolderView] | None:
    """As few of ``among`` as give back what is lacking, one after the other in that order; ``None``: too little."""
    taken: list[HolderView] = []
    rest = list(among)
    while any(left := _left(lack, taken)):
        able = [holder for holder in rest if _part(holder, left) and claim.allows(holder)]
        if not able or len(taken) == MAX_FOR_ONE:
            return None
        holder = min(able, key=lambda each: (order(claim, each, left), each.replica_id))
        claim.goes(holder)
        rest.remove(holder)
        taken.append(holder)
    return _needed(lack, taken, ())


def _left(lack: Amounts, gone: Iterable[HolderView]) -> Amounts:
    size, millis = lack
    for holder in gone:
        size, millis = size - holder.released[0], millis - holder.released[1]
    return max(0, size), max(0, millis)


def _needed(lack: Amounts, holders: Sequence[HolderView], beside: Sequence[HolderView]) -> list[HolderView]:
    """Those of ``holders`` that have to end beside the others, the important spared first."""
    needed = list(holders)
    for spared in sorted(holders, key=lambda each: (-each.importance, each.memory_bytes, each.replica_id)):
        rest = [holder for holder in needed if holder is not spared]
        if not any(_left(lack, [*rest, *beside])):
            needed = rest
    return needed


def _part(holder: HolderView, left: Amounts) -> float:
    """How much of what is left to give back ``holder`` gives, of the kind that it gives least of; 1: all."""
    return min(min(1.0, freed / lacking) for freed, lacking in zip(holder.released, left, strict=True) if lacking)
