"""Loops of this room."""

from celery import shared_task

from serving.reconcile import cycle


@shared_task(name="serving.tasks.reconcile")
def reconcile() -> None:
    """Bring every deployment's replicas in line with what is wanted."""
    cycle.run()
