"""Gateways: heartbeats and what they have acknowledged."""

import dataclasses
import datetime
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import models

from fleet.models import Gateway
from kernel import clock

LEASE: Final = datetime.timedelta(seconds=10)
TABLE_MAX_AGE: Final = datetime.timedelta(hours=24)  # how long a gateway serves from a table without the control plane
MAX_FACTS: Final = 200  # replicas and deployments that one report may speak of


def observe_gateway(
    gateway: Gateway,
    *,
    version: str,
    url: str,
    applied_generation: int,
    table_age_seconds: float,
    in_flight: int,
    journal_pending: int,
    limits_shared: bool = True,
    ejected: Sequence[Mapping[str, Any]] = (),
    adaptive: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a gateway's heartbeat; one update, no audit: nothing was decided."""
    now = clock.now()
    Gateway.objects.filter(id=gateway.id).update(
        version=version[:40],
        url=url[:255],
        applied_generation=applied_generation,
        table_age_seconds=max(0.0, table_age_seconds),
        in_flight=max(0, in_flight),
        journal_pending=max(0, journal_pending),
        limits_shared=limits_shared,
        ejected=list(ejected)[:MAX_FACTS],
        adaptive=list(adaptive)[:MAX_FACTS],
        last_seen_at=now,
        lease_expires_at=now + LEASE,
    )


def acknowledge(gateway_id: uuid.UUID, generation: int) -> None:
    """Note that a gateway serves from ``generation``, ahead of its next report; an older one changes nothing."""
    Gateway.objects.filter(id=gateway_id, applied_generation__lt=generation).update(applied_generation=generation)


def live() -> "models.QuerySet[Gateway]":
    """Gateways that report."""
    return Gateway.objects.filter(removed_at=None, lease_expires_at__gt=clock.now())


@dataclasses.dataclass(frozen=True)
class Applied:
    """The route table that a gateway serves from; one that is not ``live`` has not reported lately."""

    name: str
    generation: int
    live: bool


def applied() -> list[Applied]:
    """What each gateway serves from: live ones, and silent ones that may still serve from their last table."""
    now = clock.now()
    rows = Gateway.objects.filter(removed_at=None, lease_expires_at__gt=now - TABLE_MAX_AGE)
    return [
        Applied(row.name, row.applied_generation, row.lease_expires_at is not None and row.lease_expires_at > now)
        for row in rows.only("name", "applied_generation", "lease_expires_at")
    ]


@dataclasses.dataclass(frozen=True)
class Avoided:
    """A replica that a live gateway sends nothing to for now."""

    gateway: str
    replica_id: str
    generation: int
    reason: str
    message: str
    since: datetime.datetime


@dataclasses.dataclass(frozen=True)
class WorkingPoint:
    """What the live gateways together keep in flight to one deployment, and what waits at them."""

    limit: int
    in_flight: int
    queued: int


def avoided() -> list[Avoided]:
    """What live gateways avoid, by gateway."""
    return [
        Avoided(
            gateway=row.name,
            replica_id=str(fact["replica_id"]),
            generation=int(fact["generation"]),
            reason=str(fact["reason"]),
            message=str(fact["message"]),
            since=datetime.datetime.fromtimestamp(float(fact["since"]), datetime.UTC),
        )
        for row in live().only("name", "ejected")
        for fact in row.ejected
    ]


def working_point(deployment_id: uuid.UUID) -> WorkingPoint | None:
    """The working point of a deployment; ``None`` when no gateway speaks of one."""
    facts = [
        fact
        for row in live().only("name", "adaptive")
        for fact in row.adaptive
        if fact["deployment_id"] == str(deployment_id)
    ]
    if not facts:
        return None
    return WorkingPoint(*(sum(int(fact[name]) for fact in facts) for name in ("limit", "in_flight", "queued")))


def name_of(gateway_id: uuid.UUID) -> str:
    """The gateway's name, "" when it is unknown."""
    return Gateway.objects.filter(id=gateway_id).values_list("name", flat=True).first() or ""
