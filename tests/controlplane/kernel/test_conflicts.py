"""A transaction that the database gives up is done again, whole, a few times, and never inside another one."""

import threading

import pytest
from django.db import OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected, QueryCanceled

from kernel import errors
from kernel.conflicts import ATTEMPTS, retry_on_conflict
from ledger.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_that_wait_for_each_other_both_get_through():
    for name in ("a", "b"):
        Generation.objects.create(name=name)
    both_hold_one, tries, escaped = threading.Barrier(2), [], []

    @retry_on_conflict
    def raise_both(first, second):
        tries.append(first)
        with transaction.atomic():
            Generation.objects.select_for_update().get(name=first)
            if len(tries) <= 2:
                both_hold_one.wait(10)
            Generation.objects.filter(name=second).update(value=1)
            Generation.objects.filter(name=first).update(value=1)

    def one(*names):
        try:
            raise_both(*names)
        except BaseException as exc:
            escaped.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert escaped == []
    assert len(tries) >= 3  # a deadlock, and the loser again; on a busy machine it may lose once more
    assert set(Generation.objects.values_list("value", flat=True)) == {1}


def failing(cause, calls):
    @retry_on_conflict
    def work():
        calls.append(1)
        raise OperationalError from cause

    return work


def test_it_ends_after_a_few_times_with_a_plain_error():
    calls = []
    with pytest.raises(errors.Unavailable) as caught:
        failing(DeadlockDetected(), calls)()
    assert (len(calls), caught.value.code) == (ATTEMPTS, "busy")


def test_other_failures_and_inner_transactions_are_not_done_again():
    calls = []
    with pytest.raises(OperationalError):
        failing(QueryCanceled(), calls)()
    with transaction.atomic(), pytest.raises(OperationalError):
        failing(DeadlockDetected(), calls)()
    assert len(calls) == 2
