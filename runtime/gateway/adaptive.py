"""How many requests to keep in flight to one deployment so that it keeps its SLO. Pure; time is passed in.

Additive increase, multiplicative decrease on how far the slowest twentieth is from what the endpoint promises. While
the limit is not reached it does not grow, because then nothing shows that more would be borne.
"""

from typing import Final

from runtime.wire.routes import Slo

FIRST_LIMIT: Final = 32
MOST: Final = 4096
_SECONDS: Final = 1.0  # shortest time between two decisions
_SAMPLES: Final = 20
_PATIENCE_SECONDS: Final = 10.0  # after that a decision is taken from fewer samples
_FEWEST: Final = 4
_MOST_SAMPLES: Final = 512
_BACK: Final = 0.85
_GOOD: Final = 0.9  # grows only while the slowest twentieth is below this share of the promise


class AdaptiveLimit:
    """Without a promise there is no limit but the engines' credits."""

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.limit = FIRST_LIMIT if self.active else MOST
        self._ratios: list[float] = []
        self._since: float | None = None
        self._reached = False
        self._doubling = True  # until it was too much for the first time

    @property
    def active(self) -> bool:
        """The endpoint promises a latency."""
        return any((self.slo.ttft_p95_ms, self.slo.itl_p95_ms, self.slo.e2e_p95_ms))

    def observe(
        self, now: float, *, ttft_ms: float | None, itl_ms: float | None, e2e_ms: float, in_flight: int
    ) -> bool:
        """One request was answered while ``in_flight`` were under way; return whether the limit grew."""
        if not self.active:
            return False
        if self._since is None:
            self._since = now
        self._reached = self._reached or in_flight >= self.limit
        pairs = ((ttft_ms, self.slo.ttft_p95_ms), (itl_ms, self.slo.itl_p95_ms), (e2e_ms, self.slo.e2e_p95_ms))
        ratios = [value / most for value, most in pairs if value is not None and most]
        if ratios and len(self._ratios) < _MOST_SAMPLES:
            self._ratios.append(max(ratios))
        waited = now - self._since
        enough = _SAMPLES if waited < _PATIENCE_SECONDS else _FEWEST
        if waited < _SECONDS or len(self._ratios) < enough:
            return False
        return self._decide(now)

    def _decide(self, now: float) -> bool:
        ratios, before = sorted(self._ratios), self.limit
        slowest = ratios[min(len(ratios) - 1, int(len(ratios) * 0.95))]
        if slowest > 1.0:
            self._doubling = False
            self.limit = max(1, int(self.limit * _BACK))
        elif slowest < _GOOD and self._reached:
            self.limit = min(MOST, self.limit * 2 if self._doubling else self.limit + max(1, self.limit // 20))
        self._ratios.clear()
        self._since, self._reached = now, False
        return self.limit > before
