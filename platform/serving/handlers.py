"""What this room does with outbox messages. The handler only wakes the loop, which looks for itself."""

from collections.abc import Mapping
from typing import Any

from ledger import outbox
from serving import tasks
from serving.reconcile import cycle


@outbox.handles(cycle.WAKE)
def wake(_payload: Mapping[str, Any]) -> None:
    """Something about replicas changed."""
    tasks.reconcile.delay()
