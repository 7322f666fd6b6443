"""Writing and reading points: ten seconds apart, kept for two hours, at most one row per replica and interval."""

import dataclasses
import datetime
import uuid
from collections.abc import Collection, Sequence
from typing import Final

from kernel import clock
from telemetry.models import Sample

INTERVAL: Final = datetime.timedelta(seconds=10)
KEEP: Final = datetime.timedelta(hours=2)
MAX_MINUTES: Final = 120
MAX_REPLICAS: Final = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One interval of one replica; the fields of :class:`telemetry.models.Sample`."""

    replica_id: uuid.UUID
    at: datetime.datetime
    requests_running: int = 0
    requests_waiting: int = 0
    requests_total: int = 0
    requests_failed_total: int = 0
    prompt_tokens_total: int = 0
    completion_tokens_total: int = 0
    tokens_per_second: float = 0.0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    queue_p95_ms: float | None = None
    level: float | None = None
    kv_used_bytes: int = 0
    kv_total_bytes: int = 0


FIELDS: Final = tuple(field.name for field in dataclasses.fields(Point))
#: What a chart can show; the rest are keys.
METRICS: Final = tuple(name for name in FIELDS if name not in ("replica_id", "at"))


def interval_of(moment: datetime.datetime) -> datetime.datetime:
    """The beginning of the interval that ``moment`` lies in."""
    seconds = int(INTERVAL.total_seconds())
    return datetime.datetime.fromtimestamp(moment.timestamp() // seconds * seconds, datetime.UTC)


def write(points: Sequence[Point]) -> None:
    """Keep ``points``; a second point of the same interval is dropped."""
    rows = [Sample(**{**dataclasses.asdict(point), "at": interval_of(point.at)}) for point in points]
    Sample.objects.bulk_create(rows, ignore_conflicts=True)


def series(replica_ids: Collection[uuid.UUID], minutes: int = 60) -> dict[uuid.UUID, list[Point]]:
    """Points of the last ``minutes`` (1 to 120) per replica, oldest first; replicas without points are left out.

    At most 64 replicas are read.
    """
    chosen = sorted(replica_ids)[:MAX_REPLICAS]
    since = clock.now() - datetime.timedelta(minutes=min(max(minutes, 1), MAX_MINUTES))
    found: dict[uuid.UUID, list[Point]] = {}
    rows = Sample.objects.filter(replica_id__in=chosen, at__gte=since).order_by("at").values_list(*FIELDS)
    for row in rows:
        point = Point(**dict(zip(FIELDS, row, strict=True)))
        found.setdefault(point.replica_id, []).append(point)
    return found


def prune() -> int:
    """Delete points that are too old; return how many."""
    return Sample.objects.filter(at__lt=clock.now() - KEEP).delete()[0]
