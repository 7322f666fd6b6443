"""Loops of this room."""

from celery import shared_task

from rollouts import advance


@shared_task(name="rollouts.tasks.advance_all")
def advance_all() -> None:
    """Move every rollout on that is due."""
    advance.run()
