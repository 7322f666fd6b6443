"""Loops of this room."""

from celery import shared_task

from scheduling import cycle


@shared_task(name="scheduling.tasks.reconcile")
def reconcile() -> None:
    """Place replicas that wait."""
    cycle.run()
