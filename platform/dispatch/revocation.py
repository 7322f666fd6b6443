"""Revoking a key, and which gateways know of it.

The key leaves the route table in the transaction that revokes it; a gateway that has applied that generation, or a
newer one, refuses it. Waiting for the gateways happens after the commit and holds no transaction.
"""

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from fleet import gateways
from kernel.actors import Actor
from ledger import generations
from tenants import services
from tenants.models import ApiKey, Tenant

WAIT_SECONDS: Final = 1.6  # from the call on; with the work around it, the answer comes within two seconds
LOOK_EVERY_SECONDS: Final = 0.025


@dataclasses.dataclass(frozen=True)
class Acknowledgement:
    """Names of the live gateways that have applied the ``generation``, and of those that have not yet.

    ``silent`` ones have not reported lately and had not applied it: if they run, they serve from their last table.
    """

    generation: int
    by: tuple[str, ...]
    waiting: tuple[str, ...]
    silent: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.waiting

    @property
    def total(self) -> int:
        return len(self.by) + len(self.waiting)


def of_key(key: ApiKey) -> Acknowledgement | None:
    """Who knows that ``key`` is revoked; ``None`` while it is not."""
    if key.revoked_at is None:
        return None
    return look(key.revoked_generation or 0)


def of_keys(keys: Iterable[ApiKey]) -> dict[uuid.UUID, Acknowledgement]:
    """As :func:`of_key` for those of ``keys`` that are revoked, in one query."""
    applied = gateways.applied()
    return {key.id: _compared(key.revoked_generation or 0, applied) for key in keys if key.revoked_at is not None}


def look(generation: int) -> Acknowledgement:
    """Who has applied ``generation``."""
    return _compared(generation, gateways.applied())


def _compared(generation: int, applied: Iterable[gateways.Applied]) -> Acknowledgement:
    rows = sorted(applied, key=lambda row: row.name)
    behind = [row for row in rows if row.generation < generation]
    return Acknowledgement(
        generation,
        tuple(row.name for row in rows if row.live and row.generation >= generation),
        tuple(row.name for row in behind if row.live),
        tuple(row.name for row in behind if not row.live),
    )


def wait(
    generation: int,
    *,
    seconds: float = WAIT_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Acknowledgement:
    """Look until every live gateway has applied ``generation``, for at most ``seconds``; once in any case."""
    until = monotonic() + seconds
    while True:
        found = look(generation)
        left = until - monotonic()
        if found.complete or left <= 0:
            return found
        sleep(min(LOOK_EVERY_SECONDS, left))


def revoke(
    *,
    actor: Actor,
    tenant: Tenant,
    key: ApiKey,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[ApiKey, Acknowledgement]:
    """Refuse ``key`` from now on; the answer says which gateways refuse it already.

    What the transaction took comes off the wait: whoever revokes a key is told within two seconds.
    """
    until = monotonic() + WAIT_SECONDS
    done = services.revoke_api_key(actor=actor, tenant=tenant, key=key)
    generation = done.revoked_generation or generations.current(generations.ROUTES)
    return done, wait(generation, seconds=until - monotonic(), monotonic=monotonic, sleep=sleep)
