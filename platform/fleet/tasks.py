"""Loops of this room."""

import datetime

from celery import shared_task

from fleet import health, joining, leases, loops
from fleet.models import HealthEvent
from kernel import clock

KEEP_HEALTH_EVENTS = datetime.timedelta(days=30)
HOUSEKEEPING_EVERY = datetime.timedelta(minutes=10)


@shared_task(name="fleet.tasks.expire_leases")
def expire_leases() -> None:
    """Declare silent nodes lost; trust quiet devices again; forget what has had its time."""
    leases.expire()
    health.heal()
    if loops.due("fleet.housekeeping", every=HOUSEKEEPING_EVERY):
        joining.forget_old_tokens()
        HealthEvent.objects.filter(at__lt=clock.now() - KEEP_HEALTH_EVENTS).delete()
