"""What this room does with outbox messages; idempotent, since delivery is at least once."""

from collections.abc import Mapping
from typing import Any

from fleet.changes import DEVICES_SICK
from ledger import outbox
from serving import services, tasks
from serving.reconcile import cycle
from tenants.services import TENANT_CREATED


@outbox.handles(cycle.WAKE)
def wake(_payload: Mapping[str, Any]) -> None:
    """Something about replicas changed."""
    tasks.reconcile.delay()


@outbox.handles(DEVICES_SICK)
def leave_sick_devices(_payload: Mapping[str, Any]) -> None:
    """Devices went bad: what runs there is replaced."""
    tasks.reconcile.delay()


@outbox.handles(TENANT_CREATED)
def fill_in_grants(payload: Mapping[str, Any]) -> None:
    """Somebody may have granted to this name already."""
    services.fill_in_grants(str(payload["slug"]))
