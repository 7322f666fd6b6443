"""What is asked for typically (pure): shapes of requests with weights, learned from past ones.

The planner keeps what stays free useful for this mix. It is a production input: ``demand_log`` keeps it in rows; it is
robust to a mix that is wrong, and without any it packs.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

#: Shapes kept of a mix, by weight; and as many of those that are limited to products.
MAX_SHAPES: Final = 128
#: What may run on more products than this counts as not limited to any.
MAX_PRODUCTS: Final = 16
#: How strongly requests for several devices count more than their number: they fail first when big holes are gone.
GANG_EXPONENT: Final = 0.25


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """One request: how many devices of a kind, bytes and thousandths of each, thousandths of a CPU on its node.

    ``products`` are those that it is limited to, in order; none: it may run on any.
    """

    kind: str
    devices: int
    memory_bytes: int
    millis: int
    millicpus: int
    products: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Demand:
    """Shapes and their weights, which add up to one (or there are none).

    ``weights`` are of shapes on whatever product. ``named`` says which part of all requests was limited to products, by
    shape (without its CPU): that is what keeps these products free (``scarcity``).
    """

    weights: tuple[tuple[Shape, float], ...] = ()
    named: tuple[tuple[Shape, float], ...] = ()

    @classmethod
    def of(cls, counts: Mapping[Shape, float]) -> "Demand":
        """From how often each shape was asked for; rare shapes beyond ``MAX_SHAPES`` are left out."""
        anywhere: dict[Shape, float] = {}
        named: dict[Shape, float] = {}
        for shape, count in counts.items():
            if count > 0:
                _add(anywhere, dataclasses.replace(shape, products=()), count)
                if 0 < len(shape.products) <= MAX_PRODUCTS:
                    _add(named, dataclasses.replace(shape, millicpus=0), count)
        heavy = _heaviest({shape: count * _emphasis(shape) for shape, count in anywhere.items()})
        total, asked = sum(weight for _shape, weight in heavy), sum(anywhere.values())
        return cls(
            tuple((shape, weight / total) for shape, weight in heavy),
            tuple((shape, count / asked) for shape, count in _heaviest(named)),
        )

    def shares(self) -> list[tuple[Shape, float]]:
        """How often each shape of ``weights`` is asked for, as a part of all requests."""
        counts = [(shape, weight / _emphasis(shape)) for shape, weight in self.weights]
        total = sum(count for _shape, count in counts)
        return [(shape, count / total) for shape, count in counts]

    @classmethod
    def seen(cls, shapes: Iterable[Shape]) -> "Demand":
        """From past requests, one by one."""
        counts: dict[Shape, float] = {}
        for shape in shapes:
            counts[shape] = counts.get(shape, 0.0) + 1
        return cls.of(counts)


def _add(counts: dict[Shape, float], shape: Shape, count: float) -> None:
    counts[shape] = counts.get(shape, 0.0) + count


def _heaviest(weights: Mapping[Shape, float]) -> list[tuple[Shape, float]]:
    return sorted(weights.items(), key=lambda each: (-each[1], each[0]))[:MAX_SHAPES]


def _emphasis(shape: Shape) -> float:
    return float(max(shape.devices, 1) ** GANG_EXPONENT)


NO_DEMAND: Final = Demand()
