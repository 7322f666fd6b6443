"""Counters since the start, and latencies of the last minute. Bounded; written by the engine thread."""

import bisect
import dataclasses
from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 60.0
_MAX_SAMPLES: Final = 8192

# Upper bounds in seconds of the histograms of time to first token, inter-token latency and time in the queue.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latencies:
    """Observed durations: exact percentiles of the last minute, and a cumulative histogram."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_SAMPLES)
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, now: float, seconds: float) -> None:
        """Record ``seconds`` at monotonic time ``now``."""
        self._recent.append((now, seconds))
        self.total += seconds
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1

    def percentiles_ms(self, now: float, *fractions: float) -> tuple[float | None, ...]:
        """Percentiles in milliseconds over the last minute; ``None`` when nothing was observed."""
        while self._recent and self._recent[0][0] < now - WINDOW_SECONDS:
            self._recent.popleft()
        values = sorted(value for _, value in self._recent)
        if not values:
            return (None,) * len(fractions)
        return tuple(values[min(len(values) - 1, int(fraction * len(values)))] * 1000.0 for fraction in fractions)


@dataclasses.dataclass(slots=True)
class Counters:
    """What happened since the engine started."""

    requests: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    step_tokens: int = 0
    out_of_memory: int = 0
    queue_timeouts: int = 0
    displaced: int = 0
    failed_steps: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigures:
    """How busy an engine is. ``slots`` and ``places`` are what it has for running and waiting sequences.

    ``kv_free`` is the fraction of KV blocks that are free or only cached; ``tokens_total`` counts computed tokens.
    """

    slots: int
    places: int
    running: int
    waiting: int
    admission_open: bool
    kv_free: float
    tokens_total: int
    oldest_waiting_ms: float
    tenants_waiting: int
    kv_withdrawn: int


class EngineFigures:
    """All figures of one engine."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.counters = Counters()
        self.ttft = Latencies()
        self.itl = Latencies()
        self.queue = Latencies()
        self._tokens: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)

    def add_tokens(self, now: float, count: int) -> None:
        """Record ``count`` generated tokens of one step."""
        self.counters.completion_tokens += count
        if count:
            self._tokens.append((now, count))

    def tokens_per_second(self, now: float) -> float:
        """Generated tokens per second over the last ten seconds."""
        span = 10.0
        return sum(count for at, count in self._tokens if at >= now - span) / span
