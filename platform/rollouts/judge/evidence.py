"""What was seen of one side (pure): counts, and histograms of durations in buckets that grow by a fixed ratio."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from telemetry.histograms import Histogram

__all__ = ["DURATIONS", "Evidence", "Histogram", "empty"]

#: Durations that are judged, by name, with the word that people read.
DURATIONS: Final[Mapping[str, str]] = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Requests that ended on one side. ``errors`` are failures of the service: never a caller's mistake or leaving.

    Histograms hold milliseconds; ``tokens`` holds completion tokens per answer.
    """

    requests: int
    errors: int
    ttft: Histogram
    itl: Histogram
    e2e: Histogram
    tokens: Histogram

    def durations(self, measure: str) -> Histogram:
        """The histogram of ``ttft``, ``itl`` or ``e2e``."""
        found = {"ttft": self.ttft, "itl": self.itl, "e2e": self.e2e}.get(measure)
        if found is None:
            raise KeyError(measure)
        return found

    @property
    def error_rate(self) -> float:
        """Fraction of the requests that failed; 0.0 without any."""
        return self.errors / self.requests if self.requests else 0.0


def empty() -> Evidence:
    """Nothing seen."""
    return Evidence(0, 0, Histogram(), Histogram(), Histogram(), Histogram())
