"""Background work of the composition root."""

from celery import shared_task

from ledger import idempotency, outbox
from tenants import expiry


@shared_task(name="controlplane.tasks.drain_outbox")
def drain_outbox() -> None:
    """Handle what the outbox holds."""
    outbox.drain()


@shared_task(name="controlplane.tasks.housekeeping")
def housekeeping() -> None:
    """Forget what has had its time."""
    idempotency.forget_old()
    outbox.forget_done()
    expiry.forget_old()
