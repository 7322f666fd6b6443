"""Histograms of milliseconds whose buckets grow by 5 % (pure): a quantile is right to 2.5 %, and sums are exact."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

GROWTH: Final = 1.05
SMALLEST_MS: Final = 0.1
BUCKETS: Final = 330  # up to about 17 minutes
_LOG_GROWTH: Final = math.log(GROWTH)


def bucket_of(milliseconds: float) -> int:
    """The bucket of a duration; what is shorter or longer than the range counts in the first or last one."""
    if milliseconds <= SMALLEST_MS:
        return 0
    return min(BUCKETS - 1, 1 + int(math.log(milliseconds / SMALLEST_MS) / _LOG_GROWTH))


def upper_edge(bucket: int) -> float:
    """The largest duration of ``bucket``, in milliseconds."""
    return SMALLEST_MS * GROWTH**bucket


class Histogram:
    """Counts by bucket. ``counts`` may come from JSON: ``{"12": 3}``."""

    __slots__ = ("_counts", "total")

    def __init__(self, counts: Mapping[str, int] | Mapping[int, int] | None = None) -> None:
        self._counts: dict[int, int] = {int(key): int(value) for key, value in (counts or {}).items()}
        self.total = sum(self._counts.values())

    def add(self, milliseconds: float) -> None:
        """Count one duration."""
        bucket = bucket_of(milliseconds)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.total += 1

    def merge(self, counts: Mapping[str, int] | Mapping[int, int]) -> None:
        """Count everything that ``counts`` holds."""
        for key, value in counts.items():
            self._counts[int(key)] = self._counts.get(int(key), 0) + int(value)
            self.total += int(value)

    def quantile(self, fraction: float) -> float | None:
        """The duration that ``fraction`` of all do not exceed (upper edge of its bucket); ``None`` when empty."""
        if not self.total:
            return None
        seen, wanted = 0, math.ceil(fraction * self.total)
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return upper_edge(bucket)
        raise AssertionError("the counts do not add up to the total")

    def above(self, milliseconds: float) -> int:
        """How many lie in buckets above the one of ``milliseconds``."""
        edge = bucket_of(milliseconds)
        return sum(count for bucket, count in self._counts.items() if bucket > edge)

    def as_json(self) -> dict[str, int]:
        """Counts with text keys, as stored."""
        return {str(bucket): count for bucket, count in sorted(self._counts.items())}


def of(durations: Iterable[float]) -> Histogram:
    """A histogram of ``durations``."""
    histogram = Histogram()
    for value in durations:
        histogram.add(value)
    return histogram
