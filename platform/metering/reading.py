"""From a wire record to a row, or to the reason why it cannot be one (pure)."""

import datetime
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from metering.models import NOBODY, Outcome
from metering.prices import PriceBook
from runtime.wire import usage as wire
from telemetry.outcomes import Ended

MAX_TOKENS: Final = 2**53
MAX_CLOCK_AHEAD: Final = datetime.timedelta(days=1)
EARLIEST: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

_REFERENCES: Final = (
    "owner_tenant_id",
    "key_id",
    "endpoint_id",
    "deployment_id",
    "revision_id",
    "replica_id",
)


class Unbookable(ValueError):
    """The record makes no sense; the text says why."""


def row_of(record: wire.UsageRecord, *, now: datetime.datetime, prices: PriceBook) -> dict[str, Any]:
    """The columns of ``record`` as JSON scalars (UUIDs, times and cost as text).

    Raises:
        Unbookable: an id, a time, a duration or a count that cannot be true.
    """
    row: dict[str, Any] = {
        "id": _text(record.id, "id", 64),
        "request_id": _text(record.request_id, "request_id", 128),
        "operation": _text(record.operation, "operation", 32),
        "status": record.status,
        "outcome": record.outcome,
        "started_at": _moment(record.started_at, now).isoformat(),
        "duration_ms": _duration(record.duration_ms, "duration_ms"),
        "ttft_ms": None if record.ttft_ms is None else _duration(record.ttft_ms, "ttft_ms"),
        "prompt_tokens": _tokens(record.prompt_tokens, "prompt_tokens"),
        "cached_tokens": _tokens(record.cached_tokens, "cached_tokens"),
        "completion_tokens": _tokens(record.completion_tokens, "completion_tokens"),
        "billable": record.billable,
        "picked": record.picked,  # not kept: it is for :func:`ended_of`
    }
    if not 100 <= record.status <= 599:
        raise Unbookable(f"status {record.status} is no HTTP status")
    if record.outcome not in Outcome.values:
        raise Unbookable(f"outcome {record.outcome!r} is none of {', '.join(Outcome.values)}")
    row["tenant_id"] = str(_uuid(record.tenant_id, "tenant_id"))
    for name in _REFERENCES:
        text = getattr(record, name)
        row[name] = str(_uuid(text, name) if text else NOBODY)
    row["cost"] = str(_cost(row, prices) if record.billable else 0)
    return row


def ended_of(row: Mapping[str, Any]) -> Ended | None:
    """What a row tells about the deployment that answered; ``None`` where it tells nothing.

    A request that no deployment took, one that its caller left, and one that was refused (4xx) say nothing about how
    well a revision serves. A server's own failure does, whatever is billed. Nor is a request a sample whose caller has
    named the revision: whoever compares two sides by hand would tip the scales.
    """
    status, outcome = int(row["status"]), row["outcome"]
    if row["picked"]:
        return None
    if row["deployment_id"] == str(NOBODY) or outcome == Outcome.ABORTED or 400 <= status < 500:
        return None
    return Ended(
        deployment_id=uuid.UUID(row["deployment_id"]),
        started_at=datetime.datetime.fromisoformat(row["started_at"]),
        failed=outcome == Outcome.ERROR or status >= 500,
        duration_ms=float(row["duration_ms"]),
        ttft_ms=row["ttft_ms"],
        completion_tokens=int(row["completion_tokens"]),
    )


def span_of(row: Mapping[str, Any]) -> tuple[datetime.datetime, datetime.datetime]:
    """When the request of a row began and ended."""
    began = datetime.datetime.fromisoformat(row["started_at"])
    return began, began + datetime.timedelta(milliseconds=min(float(row["duration_ms"]), 86_400_000.0))


def _cost(row: dict[str, Any], prices: PriceBook) -> Decimal:
    began = datetime.datetime.fromisoformat(row["started_at"])
    return (
        prices.at(began)
        .of(uuid.UUID(row["endpoint_id"]))
        .cost(
            prompt_tokens=row["prompt_tokens"],
            cached_tokens=row["cached_tokens"],
            completion_tokens=row["completion_tokens"],
        )
    )


def _text(value: str, name: str, longest: int) -> str:
    if not value or len(value) > longest or not value.isprintable():
        raise Unbookable(f"{name} is not 1 to {longest} printable characters")
    return value


def _uuid(value: str, name: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except ValueError:
        raise Unbookable(f"{name} is not a UUID") from None


def _moment(seconds: float, now: datetime.datetime) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        raise Unbookable(f"started_at {seconds!r} is no time") from None
    if not EARLIEST <= moment <= now + MAX_CLOCK_AHEAD:
        raise Unbookable(f"started_at {moment.isoformat()} is not between {EARLIEST.date()} and tomorrow")
    return moment


def _duration(value: float, name: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise Unbookable(f"{name} {value!r} is no duration")
    return value


def _tokens(value: int, name: str) -> int:
    if not 0 <= value <= MAX_TOKENS:
        raise Unbookable(f"{name} {value} is not between 0 and 2^53")
    return value
