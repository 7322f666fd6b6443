"""How requests ended, per deployment and five seconds: what judges and experiments compare.

Rows are only added, one per delivery of usage, so that two gateways never wait for each other. Like every series here
they can be dropped: losing them costs evidence, never money.
"""

import dataclasses
import datetime
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kernel import clock
from telemetry.histograms import Histogram
from telemetry.models import OutcomeCount

INTERVAL: Final = datetime.timedelta(seconds=5)
KEEP: Final = datetime.timedelta(hours=26)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """One request that ended. ``failed``: the service's fault. Milliseconds; ``None`` where nothing was streamed."""

    deployment_id: uuid.UUID
    started_at: datetime.datetime
    failed: bool
    duration_ms: float
    ttft_ms: float | None
    completion_tokens: int


@dataclasses.dataclass
class Outcomes:
    """What was seen of one deployment since some moment."""

    requests: int = 0
    errors: int = 0
    ttft: Histogram = dataclasses.field(default_factory=Histogram)
    itl: Histogram = dataclasses.field(default_factory=Histogram)
    e2e: Histogram = dataclasses.field(default_factory=Histogram)
    tokens: Histogram = dataclasses.field(default_factory=Histogram)

    def add(self, ended: Ended) -> None:
        """Count one request. A failed one has no durations: failing fast is not being fast."""
        self.requests += 1
        if ended.failed:
            self.errors += 1
            return
        self.e2e.add(ended.duration_ms)
        self.tokens.add(ended.completion_tokens)
        if ended.ttft_ms is not None:
            self.ttft.add(ended.ttft_ms)
            if ended.completion_tokens > 1:
                self.itl.add(max(0.0, ended.duration_ms - ended.ttft_ms) / (ended.completion_tokens - 1))


def interval_of(moment: datetime.datetime) -> datetime.datetime:
    """The beginning of the interval that ``moment`` lies in."""
    seconds = int(INTERVAL.total_seconds())
    return datetime.datetime.fromtimestamp(moment.timestamp() // seconds * seconds, datetime.UTC)


def write(ended: Iterable[Ended]) -> None:
    """Keep what one delivery brought."""
    found: dict[tuple[uuid.UUID, datetime.datetime], Outcomes] = {}
    for item in ended:
        key = (item.deployment_id, interval_of(item.started_at))
        found.setdefault(key, Outcomes()).add(item)
    rows = [
        OutcomeCount(
            deployment_id=deployment_id,
            at=at,
            requests=seen.requests,
            errors=seen.errors,
            ttft=seen.ttft.as_json(),
            itl=seen.itl.as_json(),
            e2e=seen.e2e.as_json(),
            tokens=seen.tokens.as_json(),
        )
        for (deployment_id, at), seen in found.items()
    ]
    OutcomeCount.objects.bulk_create(rows)


def since(
    deployment_ids: Collection[uuid.UUID], moment: datetime.datetime, until: datetime.datetime | None = None
) -> Mapping[uuid.UUID, Outcomes]:
    """What ended per deployment, of requests that began at ``moment`` or later; one query.

    The interval that ``moment`` lies in is left out: part of it is older.
    """
    found = {key: Outcomes() for key in deployment_ids}
    rows = OutcomeCount.objects.filter(deployment_id__in=list(deployment_ids), at__gte=moment)
    if until is not None:
        rows = rows.filter(at__lt=until)
    fields = ("deployment_id", "requests", "errors", "ttft", "itl", "e2e", "tokens")
    for key, requests, errors, *histograms in rows.values_list(*fields).iterator():
        seen = found[key]
        seen.requests += requests
        seen.errors += errors
        for histogram, counts in zip((seen.ttft, seen.itl, seen.e2e, seen.tokens), histograms, strict=True):
            histogram.merge(counts)
    return found


def over_time(
    deployment_ids: Collection[uuid.UUID],
    start: datetime.datetime,
    until: datetime.datetime,
    step: datetime.timedelta,
) -> list[tuple[datetime.datetime, Mapping[uuid.UUID, Outcomes]]]:
    """What ended per deployment and ``step`` (a multiple of five seconds) from ``start`` to ``until``; one query.

    Every step is there, oldest first, also where nothing ended. Only requests, errors and TTFT are read.
    """
    first, width = interval_of(start), max(step, INTERVAL)
    count = max(1, -(-(until - first) // width))
    found = [(first + width * number, {key: Outcomes() for key in deployment_ids}) for number in range(count)]
    rows = OutcomeCount.objects.filter(deployment_id__in=list(deployment_ids), at__gte=first, at__lt=until)
    for key, at, requests, errors, ttft in rows.values_list(
        "deployment_id", "at", "requests", "errors", "ttft"
    ).iterator():
        seen = found[(at - first) // width][1][key]
        seen.requests += requests
        seen.errors += errors
        seen.ttft.merge(ttft)
    return [(at, seen) for at, seen in found]


def prune() -> int:
    """Delete rows that are too old; return how many."""
    return OutcomeCount.objects.filter(at__lt=clock.now() - KEEP).delete()[0]
