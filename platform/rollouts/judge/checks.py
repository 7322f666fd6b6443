"""What the judge compares, one check per measure and rule (pure).

A duration is judged by how often it is exceeded: "TTFT p95 stays within 400 ms" says that at most 5 % of the requests
take longer, and a share of requests is what the sequential tests are made for.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Final

from rollouts.judge import sequential
from rollouts.judge.evidence import DURATIONS, Evidence
from rollouts.judge.sequential import Stream

TAIL: Final = 0.05  # the share of requests beyond a 95th percentile
SHORT: Final = 0.10  # answers below the baseline's 10th percentile of tokens are short


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How much worse than the baseline a candidate may be.

    ``error_points``: error rate above the baseline's, as a fraction (0.01 = one point). ``slower``: durations above the
    baseline's 95th percentile, as a fraction of it. ``tail_points``: share of requests beyond that, above the
    baseline's share. ``length_points``: share of unusually short or long answers above the baseline's.
    """

    error_points: float = 0.01
    slower: float = 0.20
    tail_points: float = 0.05
    length_points: float = 0.15


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison. ``value`` and ``limit`` are in ``unit``; ``log_e`` is the evidence that the limit is broken.

    ``against`` says where the limit comes from: ``slo`` or ``baseline``. ``baseline`` is the baseline's own value.
    """

    measure: str
    against: str
    value: float
    limit: float
    baseline: float | None
    unit: str
    requests: int
    log_e: float

    @property
    def kept(self) -> bool:
        """True when the observed value is within the limit."""
        return self.value <= self.limit


def checks_of(
    baseline: Evidence, candidate: Evidence, slo: Mapping[str, float], tolerance: Tolerance
) -> Iterator[Check]:
    """Every check that the evidence allows. ``slo`` is an endpoint's objective (``serving.slo``)."""
    yield from _errors(baseline, candidate, slo.get("error_rate"), tolerance)
    for measure in DURATIONS:
        yield from _duration(measure, baseline, candidate, slo.get(f"{measure}_p95_ms"), tolerance)
    yield from _lengths(baseline, candidate, tolerance)


def _errors(baseline: Evidence, candidate: Evidence, limit: float | None, tolerance: Tolerance) -> Iterator[Check]:
    ours, theirs = Stream(candidate.errors, candidate.requests), Stream(baseline.errors, baseline.requests)
    if limit is not None and theirs.rate <= limit:
        evidence = sequential.log_e_below(ours, limit)
        yield Check("error_rate", "slo", ours.rate, limit, theirs.rate, "share", ours.trials, evidence)
    if theirs.trials:
        evidence = sequential.log_e_not_worse(theirs, ours, tolerance.error_points)
        most = theirs.rate + tolerance.error_points
        yield Check("error_rate", "baseline", ours.rate, most, theirs.rate, "share", ours.trials, evidence)


def _duration(
    measure: str, baseline: Evidence, candidate: Evidence, promised: float | None, tolerance: Tolerance
) -> Iterator[Check]:
    ours, theirs = candidate.durations(measure), baseline.durations(measure)
    value, usual = ours.quantile(1 - TAIL), theirs.quantile(1 - TAIL)
    if value is None:
        return
    # An objective that the baseline breaks as well says nothing about the candidate.
    if promised is not None and (usual is None or usual <= promised):
        evidence = sequential.log_e_below(Stream(ours.above(promised), ours.total), TAIL)
        yield Check(measure, "slo", value, promised, usual, "ms", ours.total, evidence)
    if usual is not None:
        most = usual * (1 + tolerance.slower)
        pair = Stream(theirs.above(most), theirs.total), Stream(ours.above(most), ours.total)
        evidence = sequential.log_e_not_worse(*pair, tolerance.tail_points)
        yield Check(measure, "baseline", value, most, usual, "ms", ours.total, evidence)


def _lengths(baseline: Evidence, candidate: Evidence, tolerance: Tolerance) -> Iterator[Check]:
    """Answers that are suddenly empty, or never end, are a broken model even when nothing fails."""
    ours, theirs = candidate.tokens, baseline.tokens
    low, high = theirs.quantile(SHORT), theirs.quantile(1 - TAIL)
    if low is None or high is None or not ours.total:
        return
    below = low / 1.1  # a full bucket below, so that the boundary itself is usual
    for name, theirs_out, ours_out in (
        ("short_answers", theirs.total - theirs.above(below), ours.total - ours.above(below)),
        ("long_answers", theirs.above(high), ours.above(high)),
    ):
        usual = Stream(theirs_out, theirs.total)
        seen = Stream(ours_out, ours.total)
        evidence = sequential.log_e_not_worse(usual, seen, tolerance.length_points)
        limit = usual.rate + tolerance.length_points
        yield Check(name, "baseline", seen.rate, limit, usual.rate, "share", seen.trials, evidence)


def threshold(alpha: float, checks: int) -> float:
    """The log evidence that one of ``checks`` checks must reach, so that all together err with at most ``alpha``."""
    return math.log(max(checks, 1) / alpha)
