"""The outbox: ``emit`` in a service's transaction, ``drain`` from a worker.

Handlers register with :func:`handles` and must be idempotent: delivery is at least once. A failing message backs off
(2, 4, 8 … seconds, at most 10 minutes) and is never dropped; ``error`` keeps the last failure for people.
"""

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any

from django.db import transaction

from kernel import clock
from ledger.models import OutboxMessage

logger = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], None]
_handlers: dict[str, Handler] = {}
_wakers: list[Callable[[], None]] = []

MAX_BACKOFF_SECONDS = 600
KEEP_DONE = datetime.timedelta(days=1)


def handles(topic: str) -> Callable[[Handler], Handler]:
    """Register the one handler of ``topic``."""

    def register(handler: Handler) -> Handler:
        if topic in _handlers:
            raise RuntimeError(f"two handlers for {topic}")
        _handlers[topic] = handler
        return handler

    return register


def on_emit(waker: Callable[[], None]) -> None:
    """Call ``waker`` after each commit that emitted something (the composition root wakes a worker with it)."""
    _wakers.append(waker)


def emit(topic: str, payload: Mapping[str, Any]) -> OutboxMessage:
    """Write a message in the current transaction."""
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an outbox message belongs to the transaction of its change")
    now = clock.now()
    message = OutboxMessage.objects.create(topic=topic, payload=dict(payload), created_at=now, next_attempt_at=now)
    for waker in _wakers:
        transaction.on_commit(waker)
    return message


def drain(limit: int = 100) -> int:
    """Handle up to ``limit`` due messages, each in its own transaction; return how many succeeded."""
    done = 0
    for _ in range(limit):
        with transaction.atomic():
            message = (
                OutboxMessage.objects.select_for_update(skip_locked=True, no_key=True)
                .filter(done_at=None, next_attempt_at__lte=clock.now())
                .order_by("next_attempt_at", "id")
                .first()
            )
            if message is None:
                return done
            done += _handle(message)
    return done


def _handle(message: OutboxMessage) -> int:
    try:
        with transaction.atomic():
            _handlers[message.topic](message.payload)
    except Exception as exc:  # boundary: recorded on the row, retried with back-off
        message.attempts = min(message.attempts + 1, 30)
        delay = min(2**message.attempts, MAX_BACKOFF_SECONDS)
        message.next_attempt_at = clock.now() + datetime.timedelta(seconds=delay)
        message.error = f"{type(exc).__name__}: {exc}"[:2000]
        message.save(update_fields=["attempts", "next_attempt_at", "error"])
        logger.exception("outbox handler failed", extra={"topic": message.topic, "attempts": message.attempts})
        return 0
    message.done_at = clock.now()
    message.save(update_fields=["done_at"])
    return 1


def forget_done() -> int:
    """Delete messages that were handled more than a day ago; return how many."""
    return OutboxMessage.objects.filter(done_at__lt=clock.now() - KEEP_DONE).delete()[0]
