"""What rooms may not know of each other is joined here: the outbox wakes a worker, rooms register their handlers."""

from ledger import outbox


def _wake_worker() -> None:
    from controlplane.tasks import drain_outbox

    drain_outbox.delay()


outbox.on_emit(_wake_worker)
