"""What this room does with outbox messages: look now instead of at the next beat."""

from collections.abc import Mapping
from typing import Any

from fleet.changes import CAPACITY_CHANGED
from ledger import outbox
from quotas.services import CHANGED as QUOTAS_CHANGED
from scheduling import tasks
from serving.reconcile.cycle import UNPLACED


@outbox.handles(UNPLACED)
def place(_payload: Mapping[str, Any]) -> None:
    """Replicas wait for a place."""
    tasks.reconcile.delay()


@outbox.handles(QUOTAS_CHANGED)
def claim(_payload: Mapping[str, Any]) -> None:
    """Limits changed: what waits may have a place now, or a claim to one."""
    tasks.reconcile.delay()


@outbox.handles(CAPACITY_CHANGED)
def look_again(_payload: Mapping[str, Any]) -> None:
    """There may be room now."""
    tasks.reconcile.delay()
