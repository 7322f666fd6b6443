"""Interval estimates for experiments (pure): no decision, only how far apart two sides are likely to be."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Final

from rollouts.judge import sequential
from rollouts.judge.evidence import DURATIONS, Evidence, Histogram
from rollouts.judge.sequential import Stream
from telemetry.histograms import GROWTH, SMALLEST_MS

CONFIDENCE: Final = 0.95
_Z: Final = 1.96


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A measure of one side with an interval; ``None`` without data. Shares are fractions, durations milliseconds."""

    measure: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    requests: int


def estimates(side: Evidence) -> list[Estimate]:
    """Error rate (anytime-valid), TTFT, ITL and E2E at p50 and p95, tokens per answer (p50), each with 95 %."""
    low, high = sequential.confidence_sequence(Stream(side.errors, side.requests), 1 - CONFIDENCE)
    rate = side.error_rate if side.requests else None
    found = [Estimate("error_rate", "share", rate, low, high, side.requests)]
    for measure in DURATIONS:
        for percent in (50, 95):
            found.append(_quantile(f"{measure}_p{percent}", "ms", side.durations(measure), percent / 100))
    found.append(_quantile("tokens_p50", "tokens", side.tokens, 0.5))
    return found


def _quantile(name: str, unit: str, histogram: Histogram, fraction: float) -> Estimate:
    """Order statistics: the ranks ``n q ± 1.96 sqrt(n q (1 - q))`` hold the quantile with about 95 %."""
    total = histogram.total
    if not total:
        return Estimate(name, unit, None, None, None, 0)
    spread = _Z * math.sqrt(fraction * (1 - fraction) / total)
    low, high = max(fraction - spread, 1 / total), min(fraction + spread, 1.0)
    return Estimate(name, unit, histogram.quantile(fraction), histogram.quantile(low), histogram.quantile(high), total)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Candidate against baseline with an interval of about 95 %, as fractions.

    ``relative``: of the baseline's value (durations, tokens); else the difference of two shares (error rates).
    """

    value: float
    low: float
    high: float
    relative: bool


def difference(baseline: Estimate, candidate: Estimate) -> Difference | None:
    """How far the candidate is from the baseline; ``None`` while one of them is not known.

    Both intervals are put together by squares (Newcombe, "Interval estimation for the difference between independent
    proportions", 1998; Zou and Donner, "Construction of confidence limits about effect measures", 2008): of shares as
    they are, of quantiles by their logarithms. A quantile is never known better than half a bucket of its histogram.
    """
    sides = [(side.value, side.low, side.high) for side in (baseline, candidate)]
    if any(value is None or low is None or high is None for value, low, high in sides):
        return None
    relative = baseline.unit != "share"
    if relative and min(value or 0.0 for value, _, _ in sides) <= 0:
        return None
    points = [_steps(value or 0.0, low or 0.0, high or 0.0, relative) for value, low, high in sides]
    (usual, usual_down, usual_up), (seen, down, up) = points
    middle = seen - usual
    low, high = middle - math.hypot(down, usual_up), middle + math.hypot(up, usual_down)
    if relative:
        return Difference(math.expm1(middle), math.expm1(low), math.expm1(high), True)
    return Difference(middle, max(low, -1.0), min(high, 1.0), False)


def _steps(value: float, low: float, high: float, relative: bool) -> tuple[float, float, float]:
    """A value with its distances to both ends, by logarithms when ``relative``."""
    if not relative:
        return value, value - low, high - value
    half = math.log(GROWTH) / 2
    return math.log(value), max(half, math.log(value / max(low, SMALLEST_MS))), max(half, math.log(high / value))


Pair = tuple[Estimate, Estimate]


def pairs_of(baseline: Evidence, candidate: Evidence) -> list[Pair]:
    """Every measure of both sides."""
    return list(zip(estimates(baseline), estimates(candidate), strict=True))


def shown(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Pairs as JSON, with whether they are apart."""
    return [
        {
            "measure": one.measure,
            "unit": one.unit,
            "baseline": dataclasses.asdict(one),
            "candidate": dataclasses.asdict(other),
            "apart": apart(one, other),
        }
        for one, other in pairs
    ]


def apart(one: Estimate, other: Estimate) -> bool:
    """True when the two intervals do not touch: a difference that is unlikely to be chance."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low
