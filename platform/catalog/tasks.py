"""Loops of this room. Each is level-triggered: it looks at what is there and does what is due."""

from celery import shared_task

from catalog import completion, expiry, releases, validation


@shared_task(name="catalog.tasks.validate_waiting")
def validate_waiting() -> None:
    """Verify and check what waits for it, should its message have been lost."""
    completion.verify_waiting()
    validation.validate_waiting()


@shared_task(name="catalog.tasks.expire_uploads")
def expire_uploads() -> None:
    """Let go of what nobody finishes, and of bytes that nobody refers to."""
    expiry.expire_uploads()
    expiry.expire_versions()
    expiry.sweep_stray_files()
    releases.collect()
