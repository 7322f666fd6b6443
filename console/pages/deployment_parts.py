"""Parts of the deployment page, from rows and points to what templates draw."""

import datetime
import itertools
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from console.presenters import hbm, reasons
from console.presenters.charts import Chart, Point, line_chart

MAX_LINES: Final = 200
_LEVEL = re.compile(r"\b(WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|\"level\": ?\"(warning|error|critical)\"", re.IGNORECASE)


def replica_line(placed: Any) -> dict[str, Any]:
    """A replica as a table row."""
    replica = placed.replica
    memory = hbm.of_ledger(replica.ledger)
    device = placed.device.device if placed.device is not None else None
    return {
        "replica": replica,
        "memory": memory,
        "stats": replica.stats or {},
        "device": device,
        "isolation": placed.device.isolation if placed.device is not None else "",
        "spread": _spread(placed),
        "why": reasons.why(replica.explanation),
        "has_numbers": bool(replica.stats) and replica.state in ("ready", "degraded", "asleep", "draining"),
    }


def _spread(placed: Any) -> dict[str, Any] | None:
    """How a replica is spread over devices, with its numbers; ``None`` for one device."""
    ranks = [{"rank": part.rank, "node": part.device.node.name, "device": part.device} for part in placed.partitions]
    if len(ranks) < 2:
        return None
    need = (placed.replica.explanation or {}).get("need") or {}
    return {"ranks": ranks, "plan": need.get("parallel"), "nodes": sorted({rank["node"] for rank in ranks})}


def sums(replicas: Iterable[Any]) -> dict[str, Any]:
    """Load and speed of several replicas together; the slowest TTFT counts."""
    known = [row.stats for row in replicas if row.stats and row.state in ("ready", "degraded", "asleep")]
    ttft = [stats.get("ttft_p95_ms") for stats in known if stats.get("ttft_p95_ms") is not None]
    return {
        "running": sum(int(stats.get("num_requests_running", 0)) for stats in known),
        "waiting": sum(int(stats.get("num_requests_waiting", 0)) for stats in known),
        "tokens_per_second": sum(float(stats.get("tokens_per_second", 0)) for stats in known) if known else None,
        "ttft_p95_ms": max(ttft) if ttft else None,
        "has_numbers": bool(known),
    }


def bottleneck(replicas: Sequence[Any]) -> dict[str, Any] | None:
    """What limits the busiest replica, named before any chart; ``None`` while nothing serves."""
    serving = [row for row in replicas if row.state in ("ready", "degraded", "asleep") and row.stats]
    if not serving:
        return None
    worst = max(serving, key=lambda row: (row.stats.get("num_requests_waiting", 0), _kv_share(row), _batch_share(row)))
    stats, kv, batch = worst.stats, _kv_share(worst), _batch_share(worst)
    waiting = int(stats.get("num_requests_waiting", 0))
    measures = [
        {
            "name": _("Queue"),
            "text": str(waiting),
            "share": min(1.0, waiting / 32),
            "fact": _("sequences wait"),
            "is_limit": False,
        },
        {"name": _("KV cache"), "share": kv, "percent": kv, "fact": _kv_fact(worst), "is_limit": False},
        {"name": _("Batch"), "share": batch, "percent": batch, "fact": _batch_fact(stats), "is_limit": False},
    ]
    if not waiting:
        return {
            "replica": worst,
            "title": _("Nothing waits"),
            "text": _("Every sequence is in a batch."),
            "measures": measures,
        }
    if not stats.get("admission_open", True) or kv >= 0.95:
        measures[1]["is_limit"] = True
        return {
            "replica": worst, "title": _("KV cache limits %(name)s") % {"name": worst.short_id}, "measures": measures,
            "text": _("Sequences wait for blocks."),
        }  # fmt: skip
    if batch >= 1.0:
        measures[2]["is_limit"] = True
        return {
            "replica": worst, "title": _("Batch size limits %(name)s") % {"name": worst.short_id}, "measures": measures,
            "text": _("All places in the batch are taken."),
        }  # fmt: skip
    measures[0]["is_limit"] = True
    return {
        "replica": worst, "title": _("Compute limits %(name)s") % {"name": worst.short_id}, "measures": measures,
        "text": _("Sequences arrive faster than steps are done."),
    }  # fmt: skip


def _kv_share(row: Any) -> float:
    ledger = row.ledger or {}
    total = ledger.get("kv_total_bytes") or 0
    return min(1.0, (ledger.get("kv_used_bytes") or 0) / total) if total else 0.0


def _batch_share(row: Any) -> float:
    places = row.stats.get("max_num_seqs") or 0
    return min(1.0, row.stats.get("num_requests_running", 0) / places) if places else 0.0


def _kv_fact(row: Any) -> str:
    ledger = row.ledger or {}
    if not ledger.get("kv_blocks_total"):
        return ""
    return _("%(used)s of %(total)s blocks") % {
        "used": f"{ledger.get('kv_blocks_used', 0):,}",
        "total": f"{ledger['kv_blocks_total']:,}",
    }


def _batch_fact(stats: Mapping[str, Any]) -> str:
    return _("%(running)s of %(places)s sequences") % {
        "running": stats.get("num_requests_running", 0),
        "places": stats.get("max_num_seqs", 0),
    }


def logs(replicas: Sequence[Any], only: str = "") -> list[dict[str, str]]:
    """The last log lines of the replicas, each with its level; newest replica last."""
    found = []
    for row in replicas:
        if only and row.short_id != only:
            continue
        for text in row.log_tail or []:
            found.append({"source": row.short_id, "text": text, "level": _level(text)})
    return found[-MAX_LINES:]


def _level(text: str) -> str:
    match = _LEVEL.search(text[:300])
    if match is None:
        return ""
    return "warn" if (match.group(1) or match.group(2)).lower().startswith("warn") else "error"


def charts_of(points: Mapping[uuid.UUID, Sequence[Any]]) -> list[tuple[datetime.datetime, list[Any]]]:
    """Points of all replicas by time."""
    by_time: dict[datetime.datetime, list[Any]] = {}
    for series in points.values():
        for point in series:
            by_time.setdefault(point.at, []).append(point)
    return sorted(by_time.items())


def request_rate(points: Mapping[uuid.UUID, Sequence[Any]]) -> list[Point]:
    """Requests per second over time, of all replicas together; an engine that began anew counts from zero."""
    rates: dict[datetime.datetime, float] = {}
    for series in points.values():
        for before, after in itertools.pairwise(series):
            seconds = (after.at - before.at).total_seconds()
            done = after.requests_total - before.requests_total
            if seconds > 0:
                done = after.requests_total if done < 0 else done
                rates[after.at] = rates.get(after.at, 0.0) + done / seconds
    return [(at, rate) for at, rate in sorted(rates.items())]


def level_chart(points: Mapping[uuid.UUID, Sequence[Any]]) -> Chart:
    """The HBM level over time: the mean of the replicas and the highest, beside the high watermark."""
    moments = charts_of(points)
    mean: list[Point] = []
    highest: list[Point] = []
    for at, found in moments:
        known = [point.level * 100 for point in found if point.level is not None]
        mean.append((at, sum(known) / len(known) if known else None))
        highest.append((at, max(known) if known else None))
    lines = [("soft", _("mean"), mean), ("main", _("highest"), highest)]
    return line_chart(_("HBM level"), "%", lines, limit=hbm.HIGH * 100)


def charts(points: Mapping[uuid.UUID, Sequence[Any]], slo: Mapping[str, Any]) -> list[Chart]:
    """Tokens, TTFT, ITL and level over time: sums of load, the worst of latencies."""
    moments = charts_of(points)

    def total(name: str) -> list[Point]:
        return [(at, float(sum(getattr(point, name) for point in found))) for at, found in moments]

    def worst(name: str) -> list[Point]:
        line: list[Point] = []
        for at, found in moments:
            known = [value for point in found if (value := getattr(point, name)) is not None]
            line.append((at, max(known) if known else None))
        return line

    ttft = [("soft", "p50", worst("ttft_p50_ms")), ("main", "p95", worst("ttft_p95_ms"))]
    itl = [("soft", "p50", worst("itl_p50_ms")), ("main", "p95", worst("itl_p95_ms"))]
    return [
        line_chart(_("Output tokens"), "/s", [("main", _("tokens"), total("tokens_per_second"))], filled=True),
        line_chart("TTFT", "ms", ttft, limit=slo.get("ttft_p95_ms")),
        line_chart("ITL", "ms", itl, limit=slo.get("itl_p95_ms")),
        level_chart(points),
    ]
