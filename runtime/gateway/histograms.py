"""Histograms that cost little to feed: plain lists of counts, shown to Prometheus when it asks."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
GAP: Final = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)


class Gaps:
    """Times between the pieces of one stream, counted as they pass. Seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] | None = None
        self.total = 0.0

    def see(self, seconds: float) -> None:
        """One more gap."""
        if self.counts is None:
            self.counts = [0] * (len(GAP) + 1)
        self.counts[bisect_left(GAP, seconds)] += 1
        self.total += seconds


class Histograms(Collector):
    """One histogram with bounded labels. ``buckets`` are upper bounds, rising; more is counted above them."""

    def __init__(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float] = LATENCY) -> None:
        self._name = name
        self._text = text
        self._labels = list(labels)
        self._buckets = list(buckets)
        self._bounds = [*(f"{bound:g}" for bound in buckets), "+Inf"]
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """Count one value; a negative one (a clock's defect) counts as 0."""
        counts, total = self._of(labels)
        value = max(0.0, value)
        counts[bisect_left(self._buckets, value)] += 1
        total[0] += value

    def merge(self, labels: tuple[str, ...], counts: Sequence[int], sum_value: float) -> None:
        """Add counts that were gathered by the same buckets."""
        have, total = self._of(labels)
        for at, count in enumerate(counts):
            have[at] += count
        total[0] += sum_value

    def forget(self, at: int, values: set[str]) -> None:
        """Drop the series whose label number ``at`` is one of ``values``."""
        self._series = {labels: series for labels, series in self._series.items() if labels[at] not in values}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, (counts, total) in self._series.items():
            running, rows = 0, []
            for bound, count in zip(self._bounds, counts, strict=True):
                running += count
                rows.append((bound, running))
            family.add_metric(list(labels), rows, total[0])
        yield family

    def _of(self, labels: tuple[str, ...]) -> tuple[list[int], list[float]]:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = ([0] * (len(self._buckets) + 1), [0.0])
        return series
