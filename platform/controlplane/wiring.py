"""What rooms may not know of each other is joined here: the outbox wakes a worker."""

import logging

from kombu.exceptions import KombuError

from controlplane import celery  # noqa: F401  (every process sends tasks through this app, not through Celery's default)
from controlplane.tasks import drain_outbox
from ledger import outbox

logger = logging.getLogger(__name__)


def _wake_worker() -> None:
    """Ask a worker to drain the outbox now. Without a broker the message waits for the next beat; nothing is lost."""
    try:
        drain_outbox.apply_async(retry=False, expires=30)
    except (KombuError, OSError) as exc:
        logger.warning("no worker was woken", extra={"error": type(exc).__name__})


outbox.on_emit(_wake_worker)
