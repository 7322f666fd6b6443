"""Loops of this room."""

from celery import shared_task

from telemetry import outcomes, series


@shared_task(name="telemetry.tasks.prune")
def prune() -> None:
    """Forget points that are too old."""
    series.prune()
    outcomes.prune()
