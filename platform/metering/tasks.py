"""Background work of metering."""

from celery import shared_task

from metering import books

HOURS_PER_CALL = 4


@shared_task(name="metering.tasks.roll_up")
def roll_up() -> None:
    """Recount closed hours, a few per call, and forget what has had its time."""
    for _ in range(HOURS_PER_CALL):
        if books.recount_next() is None:
            break
    books.prune()
