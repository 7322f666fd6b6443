"""Sequential tests on two streams of yes/no outcomes: they may be looked at after every request without losing level.

A fixed-sample test that is repeated ten times at 5 % rejects a true null far more often than 5 %. An e-process does
not: under the null its expectation is at most 1 at every stopping time, so by Ville's inequality the chance that it
EVER reaches 1/alpha is at most alpha (Ville 1939; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric,
nonasymptotic confidence sequences", 2021).

Ours is a mixture likelihood ratio against the best null (sequential universal inference; Wasserman, Ramdas,
Balakrishnan, "Universal inference", 2020): the numerator is the Beta-mixture likelihood of both streams, which is a
martingale relative to the truth; the denominator is the largest likelihood that the null allows, which is at least that
of the truth.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple


class Stream(NamedTuple):
    """``events`` of ``trials``, of one side."""

    events: int
    trials: int

    @property
    def rate(self) -> float:
        """Observed fraction; 0.0 without trials."""
        return self.events / self.trials if self.trials else 0.0


#: Beta prior of a rate in the numerator: mass near small rates, as error and tail rates are.
PRIOR: Final = (0.5, 4.5)
_TINY: Final = 1e-12
_SEARCH_STEPS: Final = 60


def log_e_not_worse(baseline: Stream, candidate: Stream, margin: float) -> float:
    """Natural log of the evidence against "candidate rate <= baseline rate + ``margin``" (a fraction, 0..1).

    Reject when it reaches ``log(1 / alpha)``. 0.0 or less while the data agree with the null.
    """
    if not candidate.trials or candidate.rate <= baseline.rate + margin:
        return 0.0
    best = _log_best_on_edge(baseline, candidate, margin)
    return _log_mixture(baseline) + _log_mixture(candidate) - best


def log_e_below(candidate: Stream, limit: float) -> float:
    """Natural log of the evidence against "candidate rate <= ``limit``"."""
    if not candidate.trials or candidate.rate <= limit:
        return 0.0
    return _log_mixture(candidate) - _log_likelihood(candidate, limit)


def confidence_sequence(stream: Stream, alpha: float) -> tuple[float, float]:
    """Lower and upper bound of a rate that hold at all times together with probability ``1 - alpha``."""
    if not stream.trials:
        return 0.0, 1.0
    threshold = _log_mixture(stream) - math.log(1 / alpha)
    rate = stream.rate

    def inside(value: float) -> bool:
        return _log_likelihood(stream, value) >= threshold

    low = _edge(inside, rate, 0.0)
    high = _edge(inside, rate, 1.0)
    return low, high


def _edge(inside: Callable[[float], bool], start: float, end: float) -> float:
    """The last point from ``start`` towards ``end`` that is inside (the likelihood has one peak, at ``start``)."""
    if inside(end):
        return end
    for _ in range(_SEARCH_STEPS):
        middle = (start + end) / 2
        if inside(middle):
            start = middle
        else:
            end = middle
    return end


def _log_mixture(stream: Stream) -> float:
    """Log marginal likelihood of one sequence with these counts under the Beta prior."""
    a, b = PRIOR
    misses = stream.trials - stream.events
    return _log_beta(a + stream.events, b + misses) - _log_beta(a, b)


def _log_likelihood(stream: Stream, rate: float) -> float:
    rate = min(max(rate, _TINY), 1 - _TINY)
    misses = stream.trials - stream.events
    return stream.events * math.log(rate) + misses * math.log1p(-rate)


def _log_best_on_edge(baseline: Stream, candidate: Stream, margin: float) -> float:
    """Largest log likelihood with ``candidate = baseline + margin``.

    Where the data violate the null the best null lies on this edge, and along it the log likelihood is concave: the
    slope is followed to its zero by bisection.
    """

    def slope(rate: float) -> float:
        other = min(rate + margin, 1 - _TINY)
        rate = min(max(rate, _TINY), 1 - _TINY)
        return (
            baseline.events / rate
            - (baseline.trials - baseline.events) / (1 - rate)
            + candidate.events / max(other, _TINY)
            - (candidate.trials - candidate.events) / (1 - other)
        )

    low, high = _TINY, 1 - margin - _TINY
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        if slope(middle) > 0:
            low = middle
        else:
            high = middle
    rate = (low + high) / 2
    return _log_likelihood(baseline, rate) + _log_likelihood(candidate, rate + margin)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
