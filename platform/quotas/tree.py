"""Quotas as a tree (pure): platform, groups, tenants. What a leaf may take is bounded by every pool above it.

One tree is about one kind; the arithmetic is :class:`quotas.amount.Amount`'s.
"""

import dataclasses
import fractions
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from quotas.amount import UNLIMITED, ZERO, Amount

DEFAULT_WEIGHT: Final = 100
MAX_WEIGHT: Final = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """A node of the tree: ``used`` is held by itself (leaves), ``children`` hold the rest. Names are unique."""

    name: str
    limit: Amount = UNLIMITED
    guaranteed: Amount = UNLIMITED
    weight: int = DEFAULT_WEIGHT
    used: Amount = ZERO
    children: "tuple[Pool, ...]" = ()

    @property
    def held(self) -> Amount:
        """What everybody below holds together."""
        total = self.used
        for child in self.children:
            total = total.plus(child.held)
        return total

    @property
    def own_left(self) -> Amount:
        """What this pool alone would still allow."""
        return self.limit.left_after(self.held)

    def path(self, name: str) -> "tuple[Pool, ...]":
        """From here down to ``name``; empty when it is not below."""
        if self.name == name:
            return (self,)
        for child in self.children:
            if below := child.path(name):
                return (self, *below)
        return ()

    def walk(self) -> "Iterator[Pool]":
        """Every pool, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def left(self, name: str) -> Amount:
        """What ``name`` may still take: the least that any pool on its path allows.

        Raises:
            KeyError: there is no such pool.
        """
        return _least(pool.own_left for pool in self._known(name))

    def entitled(self, name: str) -> Amount:
        """What nobody may take back from ``name``: its guarantee, as far as the pools above can keep it."""
        path = self._known(name)
        return path[-1].guaranteed.least(_least(pool.limit for pool in path))

    def borrowed(self, name: str) -> Amount:
        """What ``name`` holds above that."""
        return self._known(name)[-1].held.beyond(self.entitled(name))

    def broken_promises(self) -> "list[Pool]":
        """Pools that guarantee more to those below than they may hold themselves."""
        found = []
        for pool in self.walk():
            promised = ZERO
            for child in pool.children:
                if not child.guaranteed.unlimited:
                    promised = promised.plus(child.guaranteed)
            if not pool.limit.covers(promised):
                found.append(pool)
        return found

    def taking(self, name: str, asked: Amount) -> "Pool":
        """The tree once ``name`` holds ``asked`` more."""
        if self.name == name:
            return dataclasses.replace(self, used=self.used.plus(asked))
        return dataclasses.replace(self, children=tuple(child.taking(name, asked) for child in self.children))

    def _known(self, name: str) -> "tuple[Pool, ...]":
        path = self.path(name)
        if not path:
            raise KeyError(f"there is no pool {name!r}")
        return path


def _least(amounts: Iterator[Amount]) -> Amount:
    found = UNLIMITED
    for amount in amounts:
        found = found.least(amount)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What one wants of a capacity, what of it is guaranteed, and its weight in what is left over."""

    wanted: int
    guaranteed: int
    weight: int = DEFAULT_WEIGHT


def fair_shares(capacity: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Divide ``capacity`` (units of one kind): guarantees first, what is left by weight, nobody more than they want.

    Where guarantees exceed the capacity each gets its part of it. Rest units go by name, so that the same claims get
    the same shares.
    """
    firm = {name: min(claim.wanted, claim.guaranteed) for name, claim in claims.items()}
    promised = sum(firm.values())
    if promised > capacity:
        return {name: part * capacity // promised for name, part in firm.items()}
    shares, left = dict(firm), capacity - promised
    while left:
        open_ = [name for name in sorted(claims) if shares[name] < claims[name].wanted and claims[name].weight]
        if not open_:
            break
        given = _round(left, open_, claims, shares)
        for name, more in given.items():
            shares[name] += more
        left -= sum(given.values())
    return shares


def _round(left: int, open_: Sequence[str], claims: Mapping[str, Claim], shares: Mapping[str, int]) -> dict[str, int]:
    """One pouring of ``left`` by weight; whoever is full drops out of the next."""
    total = sum(claims[name].weight for name in open_)
    given = {
        name: min(claims[name].wanted - shares[name], int(fractions.Fraction(left * claims[name].weight, total)))
        for name in open_
    }
    if any(given.values()):
        return given
    return {open_[0]: 1}  # less than one unit each: the first gets one, then the next round
