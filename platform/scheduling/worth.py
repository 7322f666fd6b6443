"""What the free part of a node is worth for the demand (pure): the score of a placement is the worth that it destroys.

The worth of a node with free CPU C and free fractions f of its devices, in thousandths of a device:

- each free part counts as often as a demanded shape could use it where it is: ``f x P(shape fits f and C)``, and whole
  devices also for the shapes that want several. Its loss is the expected fragment of FGD (Weng et al., ATC 2023);
- each free part counts at its price (``prices.worth``), ten times as much: a part that completes a good pattern is
  worth keeping for it, one that nothing pays for is given away first;
- minus what will be stranded for want of CPU: the free parts need so much CPU when they are filled by the typical
  mix, with a spread; the expected shortage (normal loss), turned into devices.
"""

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from scheduling.demand import NO_DEMAND, Demand, Shape
from scheduling.prices import UNITS, worth

PRICE_WEIGHT: Final = 10.0
CPU_WEIGHT: Final = 0.6
#: How strongly a random completion prefers the one that wastes less (per thousandth of a device).
_CARE: Final = 0.01
WHOLE: Final = 1000
#: So many standard deviations more than is expected are enough.
PLENTY: Final = 6
MAX_GANG: Final = 16
_STEP: Final = WHOLE // UNITS


class Worth:
    """Tables for devices of one size. Fractions are in thousandths of the device, CPU in thousandths of a CPU."""

    def __init__(self, demand: Demand, kind: str, memory_bytes: int) -> None:
        pieces = list(_pieces(demand, kind, memory_bytes))
        self.known = bool(pieces)
        self._cpus = sorted({cpu for _devices, _part, cpu, _weight in pieces})
        self._parts = sorted({part for devices, part, _cpu, _weight in pieces if devices == 1})
        sizes: dict[int, float] = {}
        for devices, part, _cpu, weight in pieces:
            if devices == 1:
                sizes[-(-part // _STEP)] = sizes.get(-(-part // _STEP), 0.0) + weight
        prices = [PRICE_WEIGHT * WHOLE * value for value in worth(sizes)]
        self._levels = [
            Parts(self._parts, self._row(pieces, limit), prices, _gang_row(pieces, limit))
            for limit in [-1, *self._cpus]
        ]
        self.appetite = _appetite(pieces)
        filled = sum(weight * devices * part for devices, part, _cpu, weight in pieces) / WHOLE
        asked = sum(weight * cpu for _devices, _part, cpu, weight in pieces)
        self.cpu_per_device = asked / filled if filled else 0.0
        self.variance = (
            sum(w * (cpu - self.cpu_per_device * d * part / WHOLE) ** 2 for d, part, cpu, w in pieces) / filled
            if filled
            else 0.0
        )

    def _row(self, pieces: Sequence[tuple[int, int, int, float]], limit: int) -> list[float]:
        """Per rank of a free part: the share of the demand that fits it with ``limit`` of CPU."""
        row = [0.0]
        for size in self._parts:
            row.append(row[-1] + sum(w for d, part, cpu, w in pieces if d == 1 and part == size and cpu <= limit))
        return row

    def parts(self, millicpus: int) -> "Parts":
        """The tables for a node that has so much CPU left."""
        return self._levels[bisect.bisect_right(self._cpus, millicpus)]

    def stranded(self, millicpus: int, appetite: float, free: int) -> float:
        """Thousandths of devices that ``free`` of them will leave empty for want of CPU, as expected."""
        if free <= 0 or not self.cpu_per_device:
            return 0.0
        spread = math.sqrt(self.variance * free / WHOLE)
        return CPU_WEIGHT * WHOLE * expected_shortage(millicpus - appetite, spread) / self.cpu_per_device


@functools.lru_cache(maxsize=64)
def table_of(demand: Demand, kind: str, memory_bytes: int) -> Worth:
    """The tables for one kind and size of device; kept, since most plans are made for the demand of the last one."""
    return Worth(demand if kind == "cuda" else NO_DEMAND, kind, memory_bytes)


class Parts:
    """Worth of single free parts at one level of free CPU."""

    __slots__ = ("_gangs", "_known", "_prices", "_row", "_sizes")

    def __init__(
        self, sizes: Sequence[int], row: Sequence[float], prices: Sequence[float], gangs: Sequence[float]
    ) -> None:
        self._sizes, self._row, self._prices, self._gangs = sizes, row, prices, gangs
        self._known: dict[int, float] = {}

    def of(self, free: int) -> float:
        """The worth of one device with ``free`` thousandths left."""
        value = self._known.get(free)
        if value is None:
            fits = self._row[bisect.bisect_right(self._sizes, free)]
            value = self._known[free] = free * fits + self._prices[free // _STEP]
        return value

    def gangs(self, whole: int) -> float:
        """What ``whole`` empty devices are worth for those who want several at once."""
        return WHOLE * whole * self._gangs[min(whole, MAX_GANG)]


def expected_shortage(slack: float, spread: float) -> float:
    """E[max(0, Z - slack)] for a normal Z around zero with the standard deviation ``spread``."""
    if spread < 1e-9:
        return max(0.0, -slack)
    at = slack / spread
    if at > PLENTY:
        return 0.0
    density = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    return spread * (density - at * 0.5 * math.erfc(at / math.sqrt(2)))


def _pieces(demand: Demand, kind: str, memory_bytes: int) -> "list[tuple[int, int, int, float]]":
    """(devices, thousandths of each, CPU, weight) of the shapes that devices of this size can hold."""
    found = []
    for shape, weight in demand.weights:
        part = part_of(shape, memory_bytes)
        if shape.kind == kind and shape.devices >= 1 and part <= WHOLE:
            found.append((min(shape.devices, MAX_GANG), part, shape.millicpus, weight))
    return found


def part_of(shape: Shape, memory_bytes: int) -> int:
    """Thousandths of a device of ``memory_bytes`` that ``shape`` takes of each; above 1000 when it does not fit."""
    return max(shape.millis, -(-WHOLE * shape.memory_bytes // max(memory_bytes, 1)), 1)


def _gang_row(pieces: Sequence[tuple[int, int, int, float]], limit: int) -> list[float]:
    row = [0.0] * (MAX_GANG + 1)
    for devices, _part, cpu, weight in pieces:
        if devices > 1 and cpu <= limit:
            for whole in range(devices, MAX_GANG + 1):
                row[whole] += weight
    return row


def _appetite(pieces: Sequence[tuple[int, int, int, float]]) -> list[float]:
    """CPU that a free part takes until nothing fits in it any more, by free units; completions waste little."""
    by_size: dict[int, tuple[float, float]] = {}
    for devices, part, cpu, weight in pieces:
        size = UNITS if devices > 1 else -(-part // _STEP)
        many, cost = by_size.get(size, (0.0, 0.0))
        by_size[size] = (many + weight * devices, cost + weight * cpu)
    waste, cpus = [0.0] * (UNITS + 1), [0.0] * (UNITS + 1)
    for free in range(1, UNITS + 1):
        waste[free], cpus[free] = _complete(free, by_size, waste, cpus)
    return cpus


def _complete(
    free: int, by_size: Mapping[int, tuple[float, float]], waste: Sequence[float], cpus: Sequence[float]
) -> tuple[float, float]:
    fitting = [(size, many, cost) for size, (many, cost) in by_size.items() if size <= free]
    if not fitting:
        return float(free * _STEP), 0.0
    least = min(waste[free - size] for size, _many, _cost in fitting)
    total = wasted = eaten = 0.0
    for size, many, cost in fitting:
        chance = many * math.exp(-_CARE * (waste[free - size] - least))
        total += chance
        wasted += chance * waste[free - size]
        eaten += chance * (cost / many + cpus[free - size])
    return wasted / total, eaten / total
