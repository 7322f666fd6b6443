"""What taking a GPU of one product costs those who can use no other (pure).

What stays free of the fleet is filled by the typical demand, so a known part of it will be asked for on certain
products only. By Hall's theorem all of that finds room exactly when, for every set of products, what may run on nothing
else is no more than what is free of them. So for each set that is named the demand for it until the fleet is full is a
random sum with a known mean and variance (requests come independently), and its shortage is that of a normal sum.
Taking a part of a product costs the growth of the worst shortage that it is in: next to nothing while there is plenty,
the whole part when it will be missed (Littlewood, 1972: the marginal rule for seats that full fares may still want). A
thousandth that will be missed counts like one that nothing can use any more.

It only ranks: where no other product fits, the scarce one is taken; where nothing is named, nothing changes.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduling.bins import Bin
from scheduling.demand import Demand, Shape
from scheduling.need import Need
from scheduling.worth import PLENTY, PRICE_WEIGHT, WHOLE, expected_shortage, part_of

#: Sets of products that are watched: the most asked for, and what overlapping ones are together.
MAX_SETS: Final = 64
#: What a missed thousandth counts in units of ``worth``, where one that nothing can use has lost use and price.
_MISSED: Final = 1 + PRICE_WEIGHT

Costs = Mapping[str, float]


class _Named(NamedTuple):
    """What is asked for on these products and no others, per thousandth that is asked for of the fleet."""

    products: frozenset[str]
    mean: float
    variance: float


class Group(NamedTuple):
    """Nodes whose GPUs are all of one product ("": they have none), and what picks their values from those of all."""

    product: str
    bins: Sequence[int]
    pick: Callable[[Sequence[float]], Sequence[float]]


class Scarcity:
    """What is free by product, and what taking of it costs. Thousandths of devices throughout.

    ``groups`` and ``mixed`` (nodes with GPUs of several products) divide the nodes.
    """

    def __init__(self, demand: Demand, bins: Sequence[Bin]) -> None:
        self._free: dict[str, int] = {}
        self._known: dict[tuple[int, int, int], Costs] = {}
        self._by_bin: list[Mapping[str, int]] = []
        self._sizes, counts = _sizes(bins) if demand.named else ({}, {})
        named = _sets(_named(demand, self._sizes, counts), self._sizes)
        self._sets = [(each, _by_size(each.products, self._sizes)) for each in named]
        self.groups: list[Group] = []
        self.mixed: list[int] = []
        if self._sets:
            self._by_bin = [{}] * len(bins)
            self.update(bins, range(len(bins)))
            self._divide()

    def update(self, bins: Sequence[Bin], changed: Iterable[int]) -> None:
        """Count again what is free of these nodes."""
        if not self._sets:
            return
        for at in set(changed):
            now = bins[at].by_product()
            before = self._by_bin[at]
            for product, free in now.items():
                self._free[product] = self._free.get(product, 0) + free - before.get(product, 0)
            self._by_bin[at] = now
        self._known.clear()

    def costs(self, need: Need) -> Costs:
        """What one group of ``need`` costs on each product, in units of ``worth``; empty: no product is scarce."""
        if not self._sets or need.kind != "cuda":
            return {}
        shape = need.shape
        key = (shape.memory_bytes, shape.millis, shape.devices)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._costs(shape)
        return found

    def _costs(self, shape: Shape) -> Costs:
        free, left = self._free, sum(self._free.values())
        takes = {size: _volume(shape, size) for size in set(self._sizes.values())}
        most = max(takes.values())
        worst = dict.fromkeys(self._sizes, 0.0)
        for named, by_size in self._sets:
            slack, spread = -named.mean * left, math.sqrt(named.variance * left)
            for product in named.products:
                slack += free[product]
            if slack - most > PLENTY * spread:
                continue
            before = expected_shortage(slack, spread)
            for size, products in by_size.items():
                grown = expected_shortage(slack - takes[size], spread) - before
                for product in products:
                    worst[product] = max(worst[product], grown)
        return {product: _MISSED * cost for product, cost in worst.items()} if any(worst.values()) else {}

    def _divide(self) -> None:
        found: dict[tuple[str, ...], list[int]] = {}
        for at, products in enumerate(self._by_bin):
            found.setdefault(tuple(products), []).append(at)
        for names, bins in found.items():
            if len(names) > 1:
                self.mixed += bins
            else:
                self.groups.append(Group("".join(names), bins, _picker(bins)))
        self.mixed.sort()


def _picker(bins: Sequence[int]) -> Callable[[Sequence[float]], Sequence[float]]:
    if len(bins) > 1:
        return operator.itemgetter(*bins)
    return lambda values: (values[bins[0]],)


def _sizes(bins: Sequence[Bin]) -> tuple[dict[str, int], dict[str, int]]:
    """The memory of a GPU of each product (the largest), and how many there are."""
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for each in bins:
        for device, ok in zip(each.devices, each.usable, strict=True):
            if ok and device.kind == "cuda":
                sizes[device.product] = max(sizes.get(device.product, 0), device.memory_bytes)
                counts[device.product] = counts.get(device.product, 0) + 1
    return sizes, counts


def _by_size(products: Iterable[str], sizes: Mapping[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for product in sorted(products):
        found.setdefault(sizes[product], []).append(product)
    return found


def _volume(shape: Shape, memory_bytes: int) -> int:
    return min(part_of(shape, memory_bytes), WHOLE) * shape.devices


def _named(demand: Demand, sizes: Mapping[str, int], counts: Mapping[str, int]) -> list[_Named]:
    """By set of products that the fleet has and that leaves others out; the most asked for first."""

    def volume(shape: Shape, products: Collection[str]) -> float:
        """On the products that it may run on, as often as there are devices of them."""
        return sum(_volume(shape, sizes[each]) * counts[each] for each in products) / sum(counts[p] for p in products)

    if not sizes:
        return []
    asked = sum(share * volume(shape, sizes) for shape, share in demand.shares() if shape.kind == "cuda")
    found: dict[frozenset[str], _Named] = {}
    for shape, share in demand.named:
        products = frozenset(shape.products).intersection(sizes)
        if asked and shape.kind == "cuda" and 0 < len(products) < len(sizes):
            each, before = volume(shape, sorted(products)), found.get(products, _Named(products, 0.0, 0.0))
            mean, variance = before.mean + share * each / asked, before.variance + share * each * each / asked
            found[products] = _Named(products, mean, variance)
    return sorted(found.values(), key=lambda named: (-named.mean, sorted(named.products)))


def _sets(named: Sequence[_Named], sizes: Mapping[str, int]) -> list[_Named]:
    """With all that is inside of each: the sets that are named, and unions of those that overlap."""
    sets = [each.products for each in named[: MAX_SETS // 2]]
    for one in list(sets):
        for other in list(sets):
            both = one | other
            if len(sets) < MAX_SETS and one & other and len(both) < len(sizes) and both not in sets:
                sets.append(both)
    return [
        _Named(
            products,
            sum(each.mean for each in named if each.products <= products),
            sum(each.variance for each in named if each.products <= products),
        )
        for products in sets
    ]
