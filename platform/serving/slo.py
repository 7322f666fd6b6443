"""What an endpoint promises (pure): names, units and bounds of its service level objective."""

from collections.abc import Mapping
from typing import Any, Final

from kernel import errors

#: name: (smallest, largest); milliseconds, or a fraction of requests.
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "ttft_p95_ms": (1, 600_000),
    "itl_p95_ms": (1, 60_000),
    "e2e_p95_ms": (1, 3_600_000),
    "error_rate": (0, 1),
}


def normalise(slo: Mapping[str, Any]) -> dict[str, float]:
    """Return the known, bounded numbers of ``slo``; ``None`` values are dropped.

    Raises:
        errors.InvalidInput: an unknown name or a value that is no number within bounds.
    """
    checked: dict[str, float] = {}
    for name, value in slo.items():
        if value is None:
            continue
        if name not in BOUNDS:
            raise errors.InvalidInput(
                f"There is no objective {str(name)[:40]!r}. Known: {', '.join(BOUNDS)}.", data={"field": "slo"}
            )
        low, high = BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise errors.InvalidInput(f"{name} is a number from {low:g} to {high:g}.", data={"field": f"slo.{name}"})
        checked[name] = float(value)
    return checked
