"""Gateways: heartbeats and what they have acknowledged."""

import datetime
import uuid
from typing import Final

from django.db import models

from fleet.models import Gateway
from kernel import clock

LEASE: Final = datetime.timedelta(seconds=10)


def observe_gateway(
    gateway: Gateway,
    *,
    version: str,
    url: str,
    applied_generation: int,
    table_age_seconds: float,
    in_flight: int,
    journal_pending: int,
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
        last_seen_at=now,
        lease_expires_at=now + LEASE,
    )


def live() -> "models.QuerySet[Gateway]":
    """Gateways that report."""
    return Gateway.objects.filter(removed_at=None, lease_expires_at__gt=clock.now())


def acknowledged(generation: int) -> tuple[list[str], list[str]]:
    """Names of the live gateways that serve from ``generation`` or newer, and of those that do not yet."""
    done: list[str] = []
    waiting: list[str] = []
    for name, applied in live().values_list("name", "applied_generation"):
        (done if applied >= generation else waiting).append(name)
    return done, waiting


def name_of(gateway_id: uuid.UUID) -> str:
    """The gateway's name, "" when it is unknown."""
    return Gateway.objects.filter(id=gateway_id).values_list("name", flat=True).first() or ""
