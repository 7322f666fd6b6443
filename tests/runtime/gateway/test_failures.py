"""What fails: ejection and readmission, panic, the breaker, the retry budget, standing still."""

import pytest

from runtime.gateway import outliers
from runtime.gateway.asks import BROKEN, ERROR, NOTHING, UNREACHED, Outcome
from runtime.gateway.breaker import FAILURES, Breaker
from runtime.gateway.outliers import Health, StuckWatch
from runtime.gateway.pool import Blocked
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.retries import RetryBudget
from tests.build.gateway_peers import a_variant, an_endpoint
from tests.build.gateway_stage import Stage, replicas

GOOD = Outcome(e2e_ms=5.0)


def fail(stage: Stage, bad: set[str], outcome, count: int) -> list[str]:
    """Send ``count`` requests; those on a bad replica end with ``outcome``. Return where they went."""
    went = []
    for _ in range(count):
        stage.clock.advance(0.01)
        slot = stage.take()
        replica_id = slot.choice.replica.replica_id
        stage.pool.give_back(slot, outcome if replica_id in bad else GOOD)
        went.append(replica_id)
    return went


def ejected(stage: Stage) -> set[str]:
    return {key for key, state in stage.pool.replicas.items() if state.health.ejected}


@pytest.mark.parametrize(("outcome", "reason"), [(ERROR, outliers.CONSECUTIVE), (UNREACHED, outliers.UNREACHABLE)])
def test_one_bad_of_ten_is_ejected_and_gets_nothing(outcome, reason):
    stage = Stage(an_endpoint("chat", a_variant(*replicas(10))))
    fail(stage, {"replica-3"}, outcome, 100)
    assert ejected(stage) == {"replica-3"}
    assert stage.pool.replicas["replica-3"].health.reason == reason
    assert "replica-3" not in fail(stage, set(), GOOD, 50)


def test_a_share_of_errors_ejects_although_they_never_come_in_a_row():
    health = Health()
    for number in range(40):
        health.failed(number * 0.1, 0.0) if number % 3 else health.succeeded(number * 0.1)
    assert health.reason == outliers.RATIO


def test_errors_of_long_ago_do_not_count_into_the_share():
    health = Health()
    for number in range(200):
        health.failed(number * 5.0, 0.0) if number % 2 else health.succeeded(number * 5.0)
    assert not health.ejected


def test_when_most_fail_by_errors_all_are_used_again():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(10))))
    bad = {f"replica-{number}" for number in range(1, 7)}
    fail(stage, bad, ERROR, 200)
    assert ejected(stage) == bad
    assert set(fail(stage, set(), GOOD, 100)) == {f"replica-{number}" for number in range(1, 11)}


def test_when_most_cannot_be_reached_the_others_serve():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(3))))
    bad = {"replica-1", "replica-2"}
    fail(stage, bad, UNREACHED, 12)
    assert ejected(stage) == bad
    assert set(fail(stage, set(), GOOD, 20)) == {"replica-3"}


def test_when_none_can_be_reached_they_are_still_tried():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
    fail(stage, {"replica-1", "replica-2"}, UNREACHED, 8)
    assert ejected(stage) == {"replica-1", "replica-2"}
    assert len(set(fail(stage, set(), GOOD, 4))) == 2


def test_a_request_that_was_tried_where_it_could_be_does_not_wait_for_the_ejected():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
    fail(stage, {"replica-1"}, ERROR, 12)
    ask = stage.ask()
    ask.tried.add("replica-2")
    with pytest.raises(Refusal) as refused:
        stage.pool.take(ask)
    assert refused.value.reason is Reason.UPSTREAM_UNREACHABLE


def test_requests_wait_before_a_deployment_that_stands_still():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(1))))
    stage.place()
    stage.pool.replicas["replica-1"].health.eject(outliers.STUCK, "It stands still.", 0.0, 0.0)
    assert stage.take() == Blocked("deployment-1", cold=False)


def test_each_ejection_lasts_longer_and_a_probe_ends_it():
    health, now = Health(), 0.0
    lasted = []
    for _ in range(4):
        for _ in range(5):
            health.failed(now, 77.0)
        assert health.since == 77.0
        lasted.append(health.until - now)
        now = health.until
        health.probed(True, now, 78.0)
        assert not health.ejected
    assert lasted == [5.0, 10.0, 20.0, 40.0]
    for _ in range(5):
        health.failed(now + 700, 79.0)
    assert health.until == now + 705  # well for ten minutes: a clean record


def test_a_failed_probe_keeps_it_out_for_longer():
    health = Health()
    for _ in range(5):
        health.failed(0.0, 1.0)
    health.probed(False, 5.0, 6.0)
    assert (health.reason, health.since, health.until) == (outliers.CONSECUTIVE, 1.0, 15.0)


def test_the_clients_leaving_shows_nothing_of_a_replica():
    stage = Stage(an_endpoint("chat", a_variant(*replicas(2))))
    fail(stage, {"replica-1", "replica-2"}, NOTHING, 100)
    assert not ejected(stage)


class TestBreaker:
    def test_a_deployment_out_of_reach_is_tried_ever_more_rarely_and_comes_back(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(1))))
        fail(stage, {"replica-1"}, UNREACHED, FAILURES)
        pauses = []
        for _ in range(3):
            with pytest.raises(Refusal) as refused:
                stage.take()
            assert refused.value.reason is Reason.CIRCUIT_OPEN
            pauses.append(refused.value.retry_after)
            stage.clock.advance(refused.value.retry_after)
            slot = stage.take()  # one tries
            with pytest.raises(Refusal):
                stage.take()  # and only one
            stage.pool.give_back(slot, BROKEN)
        assert pauses == pytest.approx([1.0, 2.0, 4.0])
        stage.clock.advance(8.1)
        stage.pool.give_back(stage.take(), GOOD)
        assert len(fail(stage, set(), GOOD, 20)) == 20

    def test_another_variant_takes_over(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(1)), a_variant(*replicas(1, 2), version=2)))
        for _ in range(FAILURES):
            stage.pool.give_back(stage.take(draw=0.0), UNREACHED)
        assert stage.take(draw=0.0).choice.variant.version == 2

    def test_errors_in_answers_never_open_it(self):
        stage = Stage(an_endpoint("chat", a_variant(*replicas(1))))
        assert len(fail(stage, {"replica-1"}, ERROR, 100)) == 100

    def test_a_trial_whose_client_left_lets_another_try(self):
        breaker = Breaker()
        for _ in range(FAILURES):
            breaker.failed(0.0)
        breaker.took()
        assert breaker.wait(1.0) > 0
        breaker.neither()
        assert breaker.wait(1.0) == 0.0


def test_no_more_than_a_tenth_is_tried_again():
    budget = RetryBudget()
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert 100 <= spent <= 110


class TestStanding:
    def test_work_without_progress_is_seen(self):
        watch = StuckWatch()
        assert [watch.saw(float(second), tokens=5, busy=True) for second in range(4)] == [0.0, 1.0, 2.0, 3.0]
        assert watch.saw(4.0, tokens=6, busy=True) == 0.0

    def test_idle_is_not_stuck_and_neither_is_the_first_work_after_it(self):
        watch = StuckWatch()
        for second in range(100):
            assert watch.saw(float(second), tokens=5, busy=False) == 0.0
        assert watch.saw(100.0, tokens=5, busy=True) == 1.0

    def test_what_nobody_looked_at_counts_for_nothing(self):
        watch = StuckWatch()
        watch.saw(0.0, tokens=5, busy=True)
        assert watch.saw(1000.0, tokens=5, busy=True) == 0.0

    def test_silence_counts_from_its_beginning(self):
        watch = StuckWatch()
        watch.saw(0.0, tokens=5, busy=True)
        assert [watch.silent(float(second)) for second in (1, 2, 3)] == [0.0, 1.0, 2.0]
        watch.saw(4.0, tokens=5, busy=True)
        assert watch.silent(5.0) == 0.0
