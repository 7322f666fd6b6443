"""Background work of metering."""

from celery import shared_task

from metering import books, budgets, devicehours, holdings, prices

HOURS_PER_CALL = 4


@shared_task(name="metering.tasks.roll_up")
def roll_up() -> None:
    """Recount closed hours, a few per call, and forget what has had its time."""
    for _ in range(HOURS_PER_CALL):
        if books.recount_next() is None:
            break
    holdings.reconcile()
    for _ in range(HOURS_PER_CALL):
        if devicehours.count_next() is None:
            break
    books.prune()


@shared_task(name="metering.tasks.follow_budgets")
def follow_budgets() -> None:
    """Count what budgets have used; the route table moves when any of it has changed."""
    budgets.refresh()
    prices.announce()
