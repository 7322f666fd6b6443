"""Exactly once in the books, whatever is delivered how often."""

import datetime
import threading
import uuid

import pytest
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kernel import clock, scope
from metering import booking, books, tasks
from metering.models import NOBODY, Recount, UnbookedRecord, UsageHour, UsageRecord
from telemetry import outcomes
from tenants import services as tenant_services
from tests.build import controlplane as build
from tests.controlplane.metering.usage_records import GATEWAY, NOON, record

pytestmark = pytest.mark.django_db
TENANT = uuid.UUID(int=1)
OTHER = uuid.UUID(int=2)
SUMS = ("requests", "errors", "aborted", "unbilled", "prompt_tokens", "cached_tokens", "completion_tokens")


def book(*records):
    return booking.book(gateway_id=GATEWAY, records=records)


def hours(tenant_id=TENANT):
    with scope.tenant(tenant_id):
        return list(UsageHour.objects.order_by("hour"))


def test_a_record_is_booked_with_its_hour():
    assert book(record(TENANT)) == booking.Booked(accepted=1, duplicates=0, refused=0)
    (hour,) = hours()
    assert hour.hour == NOON
    assert {name: getattr(hour, name) for name in SUMS} == {
        "requests": 1, "errors": 0, "aborted": 0, "unbilled": 0,
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5,
    }  # fmt: skip
    with scope.tenant(TENANT):
        row = UsageRecord.objects.get()
    assert (row.started_at, row.ttft_ms, row.gateway_id) == (NOON, 10.0, GATEWAY)


def test_the_same_record_again_and_twice_in_a_batch_changes_nothing():
    one, two = record(TENANT), record(TENANT)
    assert book(one, one, two) == booking.Booked(accepted=2, duplicates=1, refused=0)
    assert book(one, two) == booking.Booked(accepted=0, duplicates=2, refused=0)
    assert [hour.requests for hour in hours()] == [2]


def test_how_requests_ended_is_told_to_the_judge_once():
    mine, other = uuid.UUID(int=7), uuid.UUID(int=8)
    one = record(TENANT, deployment_id=str(mine), duration_ms=1010.0, ttft_ms=10.0, completion_tokens=11)
    lost = record(TENANT, deployment_id=str(mine), status=502, outcome="error", billable=False)
    left = record(TENANT, deployment_id=str(mine), status=499, outcome="aborted")
    limited = record(TENANT, deployment_id=str(mine), status=429, outcome="error")
    nobodys = record(TENANT, deployment_id="")
    picked = record(TENANT, deployment_id=str(mine), picked=True)  # its caller chose the side: no sample, and paid for
    book(one, one, lost, left, limited, nobodys, picked)
    assert [(hour.requests, hour.completion_tokens) for hour in hours()] == [(6, 31)]
    book(one, lost)
    seen = outcomes.since([mine, other], NOON - datetime.timedelta(minutes=1))
    assert (seen[mine].requests, seen[mine].errors, seen[other].requests) == (2, 1, 0)
    itl, ttft = seen[mine].itl.quantile(0.5), seen[mine].ttft.quantile(0.5)
    assert itl is not None
    assert ttft is not None
    assert 95 < itl < 106  # 1000 ms over the ten tokens after the first
    assert 9.5 < ttft < 10.6


def test_the_first_delivery_wins_over_a_later_one_that_says_otherwise():
    one = record(TENANT)
    book(one)
    book(record(TENANT, id=one.id, completion_tokens=9_999))
    assert hours()[0].completion_tokens == 5


def test_a_key_shows_when_it_was_last_used_for_inference():
    tenant = build.make_tenant("acme")
    actor = build.actor_for(build.owner_of(tenant))
    key, _ = tenant_services.create_api_key(actor=actor, tenant=tenant, name="app", scopes=["inference"])
    at = clock.now().replace(microsecond=0) - datetime.timedelta(hours=2)
    later = at + datetime.timedelta(hours=1)
    for moments in ([at, later], [at], []):
        book(*(record(tenant.id, key_id=str(key.id), at=moment) for moment in moments))
        with scope.tenant(tenant.id):
            key.refresh_from_db()
        assert key.last_used_at == later
    book(record(tenant.id, key_id=str(key.id), at=later + datetime.timedelta(hours=5)))  # a clock that goes ahead
    with scope.tenant(tenant.id):
        key.refresh_from_db()
    assert later < key.last_used_at <= clock.now()


def test_outcomes_are_counted_and_what_the_platform_lost_costs_nothing():
    book(
        record(TENANT, outcome="error", status=502, billable=False),
        record(TENANT, outcome="aborted", status=499),
        record(TENANT),
    )
    (hour,) = hours()
    assert (hour.requests, hour.errors, hour.aborted, hour.unbilled, hour.completion_tokens) == (3, 1, 1, 1, 10)


def test_hours_keys_endpoints_revisions_and_owners_are_kept_apart():
    variants = [
        record(TENANT),
        record(TENANT, at=NOON + datetime.timedelta(minutes=59, seconds=59)),
        record(TENANT, at=NOON + datetime.timedelta(hours=1)),
        record(TENANT, key_id=str(uuid.UUID(int=9))),
        record(TENANT, endpoint_id=str(uuid.UUID(int=9))),
        record(TENANT, revision_id=str(uuid.UUID(int=9))),
        record(TENANT, owner_id=OTHER),
        record(OTHER),
    ]
    book(*variants)
    assert sorted(hour.requests for hour in hours()) == [1, 1, 1, 1, 1, 2]
    assert [hour.requests for hour in hours(OTHER)] == [1]


def test_a_request_that_reached_no_deployment_is_booked_under_nobody():
    book(record(TENANT, deployment_id="", revision_id="", replica_id="", status=503, outcome="error"))
    assert hours()[0].revision_id == NOBODY


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"tenant_id": "acme"}, "tenant_id", id="no tenant id"),
        pytest.param({"tenant_id": ""}, "tenant_id", id="no caller"),
        pytest.param({"key_id": "x"}, "key_id", id="no key id"),
        pytest.param({"id": ""}, "id", id="no id"),
        pytest.param({"id": "a\x00b"}, "id", id="a NUL that Postgres cannot keep"),
        pytest.param({"request_id": "r" * 129}, "request_id", id="too long"),
        pytest.param({"status": 42}, "status", id="no status"),
        pytest.param({"outcome": "splendid"}, "outcome", id="no outcome"),
        pytest.param({"started_at": 1e20}, "started_at", id="beyond all calendars"),
        pytest.param({"started_at": 5.0}, "started_at", id="1970"),
        pytest.param({"started_at": 4e9}, "started_at", id="2096"),
        pytest.param({"duration_ms": -1.0}, "duration_ms", id="before it began"),
        pytest.param({"ttft_ms": float("inf")}, "ttft_ms", id="never"),
        pytest.param({"prompt_tokens": -1}, "prompt_tokens", id="negative"),
        pytest.param({"completion_tokens": 2**60}, "completion_tokens", id="absurd"),
    ],
)
def test_what_cannot_be_true_is_kept_aside_and_does_not_hold_up_the_rest(fields, problem):
    bad = record(TENANT, **fields)
    assert book(bad, record(TENANT)) == booking.Booked(accepted=1, duplicates=0, refused=1)
    assert book(bad).refused == 1
    (kept,) = UnbookedRecord.objects.all()
    assert problem in kept.problem
    assert [hour.requests for hour in hours()] == [1]


@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    deliveries=st.lists(
        st.lists(st.integers(min_value=0, max_value=11), min_size=1, max_size=8), min_size=1, max_size=6
    )
)
def test_any_order_and_repetition_of_deliveries_gives_the_same_books(deliveries):
    with scope.all_tenants():
        UsageHour.objects.all().delete()
        UsageRecord.objects.all().delete()
    known = [
        record(
            TENANT if number % 2 else OTHER,
            id=f"record-{number}",
            at=NOON + datetime.timedelta(minutes=25 * number),
            completion_tokens=number,
            billable=number % 3 != 0,
        )
        for number in range(12)
    ]
    accepted = sum(book(*(known[number] for number in delivery)).accepted for delivery in deliveries)
    seen = {number for delivery in deliveries for number in delivery}
    assert accepted == len(seen)
    booked = hours() + hours(OTHER)
    assert sum(hour.requests for hour in booked) == len(seen)
    assert sum(hour.completion_tokens for hour in booked) == sum(number for number in seen if number % 3)


@pytest.mark.django_db(transaction=True)
def test_two_gateways_at_once_lose_nothing_and_lock_nobody_out():
    shared = [
        record(TENANT, id=f"shared-{number}", at=NOON + datetime.timedelta(hours=number % 4)) for number in range(40)
    ]
    failures = []

    def deliver(order):
        try:
            for start in range(0, 40, 10):
                book(*order[start : start + 10])
        except Exception as exc:  # handed to the test's own thread
            failures.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=deliver, args=(order,)) for order in (shared, shared[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert sum(hour.requests for hour in hours()) == 40


def test_what_the_platform_lost_is_summed_apart():
    book(record(TENANT), record(TENANT, billable=False, status=502, outcome="aborted"))
    (hour,) = hours()
    assert (hour.requests, hour.unbilled) == (2, 1)
    assert (hour.prompt_tokens, hour.completion_tokens) == (10, 5)
    assert (hour.unbilled_prompt_tokens, hour.unbilled_completion_tokens) == (10, 5)


def test_a_recount_finds_nothing_to_correct_in_good_books():
    book(record(TENANT), record(TENANT, owner_id=OTHER), record(OTHER, billable=False))
    with clock.frozen(NOON + datetime.timedelta(hours=2)):
        assert books.recount(NOON).corrected == 0
    assert sum(hour.requests for hour in hours()) == 2


def test_a_recount_puts_wrong_sums_right_and_says_how_many():
    book(record(TENANT), record(TENANT, owner_id=OTHER))
    with scope.tenant(TENANT):
        UsageHour.objects.filter(owner_tenant_id=OTHER).update(completion_tokens=1)
        UsageHour.objects.filter(owner_tenant_id=TENANT).delete()
    assert books.recount(NOON).corrected == 2
    assert [hour.completion_tokens for hour in hours()] == [5, 5]


def test_every_closed_hour_is_recounted_once_oldest_first():
    with clock.frozen(NOON + datetime.timedelta(minutes=15)):
        first = books.recount_next()
        assert first.hour == NOON - datetime.timedelta(hours=books.LOOK_BACK_HOURS)
        while books.recount_next() is not None:
            continue
        assert Recount.objects.count() == books.LOOK_BACK_HOURS
    with clock.frozen(NOON + datetime.timedelta(hours=1, minutes=9)):
        assert books.recount_next() is None, "the hour is not closed for ten minutes yet"
    with clock.frozen(NOON + datetime.timedelta(hours=1, minutes=11)):
        assert books.recount_next().hour == NOON


def test_what_has_had_its_time_is_forgotten_and_the_sums_stay_longer(settings):
    settings.METERING_RECORD_DAYS, settings.METERING_HOUR_DAYS = 10, 30
    book(record(TENANT), record(TENANT, at=NOON + datetime.timedelta(days=9)))
    with clock.frozen(NOON + datetime.timedelta(days=11)):
        assert books.prune() == 1
    assert len(hours()) == 2
    with clock.frozen(NOON + datetime.timedelta(days=31)):
        assert books.prune() == 2
    assert [hour.hour for hour in hours()] == [NOON + datetime.timedelta(days=9)]


def test_the_loop_catches_up_a_few_hours_per_call_and_prunes(settings):
    settings.METERING_RECORD_DAYS = 10
    book(record(TENANT))
    with clock.frozen(NOON + datetime.timedelta(days=11)):
        tasks.roll_up()
    assert Recount.objects.filter(hour__gt=NOON + datetime.timedelta(days=8)).count() == tasks.HOURS_PER_CALL
    with scope.all_tenants():
        assert not UsageRecord.objects.exists()
