"""What is asked for typically (pure): shapes of requests with weights, learned from past ones.

The planner keeps what stays free useful for this mix. It is a production input: ``demand_log`` keeps it in rows; it is
robust to a mix that is wrong, and without any it packs.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

#: Shapes kept of a mix, by weight.
MAX_SHAPES: Final = 128
#: How strongly requests for several devices count more than their number: they fail first when big holes are gone.
GANG_EXPONENT: Final = 0.25


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """One request: how many devices of a kind, bytes and thousandths of each, thousandths of a CPU on its node."""

    kind: str
    devices: int
    memory_bytes: int
    millis: int
    millicpus: int


@dataclasses.dataclass(frozen=True)
class Demand:
    """Shapes and their weights, which add up to one (or there are none)."""

    weights: tuple[tuple[Shape, float], ...] = ()

    @classmethod
    def of(cls, counts: Mapping[Shape, float]) -> "Demand":
        """From how often each shape was asked for; rare shapes beyond ``MAX_SHAPES`` are left out."""
        heavy = sorted(
            ((shape, count * _emphasis(shape)) for shape, count in counts.items() if count > 0),
            key=lambda each: (-each[1], each[0]),
        )[:MAX_SHAPES]
        total = sum(weight for _shape, weight in heavy)
        return cls(tuple((shape, weight / total) for shape, weight in heavy))

    @classmethod
    def seen(cls, shapes: Iterable[Shape]) -> "Demand":
        """From past requests, one by one."""
        counts: dict[Shape, float] = {}
        for shape in shapes:
            counts[shape] = counts.get(shape, 0.0) + 1
        return cls.of(counts)


def _emphasis(shape: Shape) -> float:
    return float(max(shape.devices, 1) ** GANG_EXPONENT)


NO_DEMAND: Final = Demand()
