"""Health of the control plane's own parts, asked now; each question has a short limit."""

import dataclasses
import datetime
from typing import Final

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils.translation import gettext as _

from fleet import selectors as fleet
from fleet.models import LoopRun
from kernel import clock
from ledger.models import OutboxMessage

STALE_AFTER: Final = datetime.timedelta(seconds=60)
LIMIT_SECONDS: Final = 1.0


@dataclasses.dataclass(frozen=True)
class Service:
    """``state`` is a state of the kind "service"; ``fact`` is a version or an error's name."""

    name: str
    state: str
    fact: str


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of the background workers and when it last ran."""

    name: str
    at: datetime.datetime
    is_stale: bool


@dataclasses.dataclass(frozen=True)
class Outbox:
    """Work that follows changes: ``waiting`` messages, ``failing`` of them tried and failed."""

    waiting: int
    failing: int
    oldest: datetime.datetime | None


def services() -> list[Service]:
    """Database, Valkey, gateways."""
    return [_database(), _valkey(), *_gateways()]


def _database() -> Service:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            return Service("Postgres", "up", str(cursor.fetchone()[0]))
    except DatabaseError as exc:
        return Service("Postgres", "down", type(exc).__name__)


def _valkey() -> Service:
    if not settings.VALKEY_URL:
        return Service("Valkey", "down", "VALKEY_URL")
    try:
        with redis.Redis.from_url(
            settings.VALKEY_URL, socket_timeout=LIMIT_SECONDS, socket_connect_timeout=LIMIT_SECONDS
        ) as client:
            info = client.info("server")
    except redis.RedisError as exc:
        return Service("Valkey", "down", type(exc).__name__)
    return Service("Valkey", "up", str(info.get("valkey_version") or info.get("redis_version", "")))


def _gateways() -> list[Service]:
    now = clock.now()
    return [
        Service(
            gateway.name,
            "up" if gateway.lease_expires_at and gateway.lease_expires_at > now else "stale",
            f"{gateway.version} {gateway.url}".strip(),
        )
        for gateway in fleet.gateways()
    ]


def loops() -> list[Loop]:
    """Loops that have run, by name."""
    now = clock.now()
    return [Loop(run.name, run.at, now - run.at > STALE_AFTER) for run in LoopRun.objects.order_by("name")]


@dataclasses.dataclass(frozen=True)
class Said:
    """A condition of the fleet: ``glyph`` is a state of the kind "condition"; ``message`` is in the fleet's words."""

    glyph: str
    word: str
    reason: str
    message: str


def conditions() -> list[Said]:
    """What is to be said about the fleet: icon, word, sentence. A reason means that somebody has to look."""
    words = {
        ("MassSilence", True): _("Many nodes are silent at once"),
        ("MassSilence", False): _("No mass silence"),
        ("NodesAnswering", True): _("Nodes answer"),
        ("NodesAnswering", False): _("Not all nodes answer"),
    }
    return [
        Said("false" if one.reason else "true", words.get((one.type, one.status), one.type), one.reason, one.message)
        for one in fleet.conditions()
    ]


def outbox() -> Outbox:
    """What waits in the outbox."""
    waiting = OutboxMessage.objects.filter(done_at=None)
    oldest = waiting.order_by("created_at").values_list("created_at", flat=True).first()
    return Outbox(waiting.count(), waiting.filter(attempts__gt=0).count(), oldest)
