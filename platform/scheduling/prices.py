"""What a free part of a device is worth when many demanded sizes compete for it (pure).

Packing sizes on devices is a cutting-stock problem: its linear relaxation has one price per size, the part of a device
that one more piece of that size costs when everything is packed well (Gilmore and Gomory, 1961: columns are generated
by a knapsack over the prices, until no pattern is worth more than one device). A free part is then worth the best
pattern that still fits in it. Pieces whose price is zero fit into what others leave over anyway.
"""

from collections.abc import Mapping, Sequence
from typing import Final

#: A device is cut into this many units; sizes are rounded up to whole units.
UNITS: Final = 100
MAX_SIZES: Final = 48
_ROUNDS: Final = 400
_EPSILON: Final = 1e-9

Matrix = list[list[float]]


def worth(demand: Mapping[int, float]) -> tuple[float, ...]:
    """The worth of 0 … ``UNITS`` free units, as a fraction of a device, for weights by size in units.

    Sizes of a whole device or more are left out: they need no partner. Without any size every unit is worth its share.
    """
    parts = {size: weight for size, weight in demand.items() if 0 < size < UNITS and weight > 0}
    if not parts:
        return tuple(unit / UNITS for unit in range(UNITS + 1))
    heaviest = sorted(parts, key=lambda size: (-parts[size] * size, size))[:MAX_SIZES]
    sizes = sorted(heaviest)
    prices = _prices(sizes, [parts[size] for size in sizes])
    best, _last = _knapsack(sizes, prices)
    return (*(min(value, 1.0) for value in best[:UNITS]), 1.0)


def _prices(sizes: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Prices of the sizes in a best fractional packing; the simplex method with generated columns."""
    count = len(sizes)
    inverse = [
        [1.0 / (UNITS // sizes[row]) if row == column else 0.0 for column in range(count)] for row in range(count)
    ]
    used = [weights[row] * inverse[row][row] for row in range(count)]
    prices = [sum(inverse[row][column] for row in range(count)) for column in range(count)]
    for _round in range(_ROUNDS):
        best, last = _knapsack(sizes, prices)
        if best[UNITS] <= 1 + _EPSILON:
            break
        pattern = _pattern(sizes, last)
        entering = [sum(line[at] * times for at, times in pattern.items()) for line in inverse]
        leaving = _leaving(used, entering)
        if leaving is None:
            break
        _pivot(inverse, used, entering, leaving)
        prices = [sum(inverse[row][column] for row in range(count)) for column in range(count)]
    return [max(price, 0.0) for price in prices]


def _knapsack(sizes: Sequence[int], prices: Sequence[float]) -> tuple[list[float], list[int]]:
    """The most valuable content of every number of units, and its last piece (-1: a unit left empty)."""
    best, last = [0.0] * (UNITS + 1), [-1] * (UNITS + 1)
    for unit in range(1, UNITS + 1):
        value, piece = best[unit - 1], -1
        for at, size in enumerate(sizes):
            if size > unit:
                break
            if best[unit - size] + prices[at] > value + _EPSILON:
                value, piece = best[unit - size] + prices[at], at
        best[unit], last[unit] = value, piece
    return best, last


def _pattern(sizes: Sequence[int], last: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    unit = UNITS
    while unit > 0:
        piece = last[unit]
        if piece < 0:
            unit -= 1
        else:
            found[piece] = found.get(piece, 0) + 1
            unit -= sizes[piece]
    return found


def _leaving(used: Sequence[float], entering: Sequence[float]) -> int | None:
    """The row that runs out first; the lowest of equals, so that the result repeats."""
    rows = [(max(used[row], 0.0) / amount, row) for row, amount in enumerate(entering) if amount > _EPSILON]
    return min(rows)[1] if rows else None


def _pivot(inverse: Matrix, used: list[float], entering: Sequence[float], leaving: int) -> None:
    scale = 1.0 / entering[leaving]
    inverse[leaving] = [value * scale for value in inverse[leaving]]
    used[leaving] *= scale
    for row, amount in enumerate(entering):
        if row != leaving and amount:
            inverse[row] = [a - amount * b for a, b in zip(inverse[row], inverse[leaving], strict=True)]
            used[row] -= amount * used[leaving]
