"""The judge: what it says, and how often it is wrong when it looks all the time."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.judge import intervals, sequential
from rollouts.judge.checks import Tolerance, checks_of
from rollouts.judge.evidence import Evidence, empty
from rollouts.judge.sequential import Stream
from rollouts.judge.verdict import Outcome, Question, alone, judge
from telemetry import histograms

HELD = Question(min_requests=50, held=True, overdue=False)
OVERDUE = Question(min_requests=50, held=True, overdue=True)
FRESH = Question(min_requests=50, held=False, overdue=False)


def side(requests=1000, errors=0, ttft=100.0, itl=20.0, e2e=1000.0, tokens=100.0, spread=0.2, seed=1):
    rng = random.Random(seed)

    def around(middle):
        return histograms.of(middle * math.exp(rng.gauss(0, spread)) for _ in range(requests - errors))

    return Evidence(requests, errors, around(ttft), around(itl), around(e2e), around(tokens))


def test_the_same_on_both_sides_passes():
    verdict = judge(side(), side(seed=2), HELD, {}, Tolerance())
    assert verdict.outcome is Outcome.PASS
    assert "baseline" in verdict.sentence


@pytest.mark.parametrize(
    ("candidate", "measure"),
    [
        (side(errors=80, seed=2), "error_rate"),
        (side(ttft=220, seed=2), "ttft"),
        (side(itl=44, seed=2), "itl"),
        (side(e2e=2200, seed=2), "e2e"),
        (side(tokens=8, seed=2), "short_answers"),
        (side(tokens=900, seed=2), "long_answers"),
    ],
)
def test_each_measure_can_fail_and_is_named_with_value_and_limit(candidate, measure):
    verdict = judge(side(), candidate, FRESH, {}, Tolerance())
    assert verdict.outcome is Outcome.FAIL
    assert verdict.check is not None
    assert verdict.check.measure == measure
    assert verdict.check.value > verdict.check.limit
    said = verdict.as_dict()
    assert said["value"] == verdict.check.value
    assert said["limit"] == verdict.check.limit
    assert "limit" in verdict.sentence
    assert "1000 requests" in verdict.sentence.replace(",", "").replace("920", "1000")


def test_an_objective_that_only_the_candidate_breaks_fails():
    slo = {"ttft_p95_ms": 150.0}
    verdict = judge(side(ttft=90), side(ttft=125, seed=2), FRESH, slo, Tolerance(slower=5.0))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.check is not None
    assert verdict.check.against == "slo"
    assert "the objective" in verdict.sentence


def test_an_objective_that_both_break_is_not_the_candidates_fault():
    slo = {"ttft_p95_ms": 50.0}
    assert judge(side(), side(seed=2), HELD, slo, Tolerance()).outcome is Outcome.PASS


def test_too_few_requests_wait_then_are_inconclusive():
    few = side(requests=20)
    assert judge(side(), few, HELD, {}, Tolerance()).outcome is Outcome.WAIT
    late = judge(side(), few, OVERDUE, {}, Tolerance())
    assert late.outcome is Outcome.INCONCLUSIVE
    assert "20 of the 50" in late.sentence
    assert judge(few, side(), OVERDUE, {}, Tolerance()).outcome is Outcome.INCONCLUSIVE


def test_a_handful_of_requests_that_all_fail_is_enough():
    assert judge(side(), side(requests=20, errors=20), FRESH, {}, Tolerance()).outcome is Outcome.FAIL


def test_worse_but_maybe_by_chance_waits_and_then_is_inconclusive():
    candidate = side(requests=60, errors=2, seed=3)
    waiting = judge(side(), candidate, HELD, {}, Tolerance())
    assert waiting.outcome is Outcome.WAIT
    assert judge(side(), candidate, OVERDUE, {}, Tolerance()).outcome is Outcome.INCONCLUSIVE


def test_nothing_seen_is_judged_without_a_crash():
    for question in (FRESH, HELD, OVERDUE):
        assert judge(empty(), empty(), question, {"error_rate": 0.1}, Tolerance()).outcome is not Outcome.FAIL


def test_looking_all_the_time_does_not_fail_equals():
    """200 A/A runs with 300 looks each: a naive 5 % test over these looks would fail dozens of them."""
    failed = 0
    for seed in range(200):
        rng = random.Random(seed)
        ours = theirs = tried_theirs = 0
        for tried_ours in range(1, 301):
            for _ in range(10):
                theirs += rng.random() < 0.05
                tried_theirs += 1
            ours += rng.random() < 0.05
            if sequential.log_e_not_worse(Stream(theirs, tried_theirs), Stream(ours, tried_ours), 0.0) >= math.log(50):
                failed += 1
                break
    assert failed <= 4  # at most 2 % in expectation


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.floats(0, 0.5))
def test_evidence_is_finite_and_only_against_what_is_worse(errors, fine, our_errors, our_fine, margin):
    baseline, candidate = Stream(errors, errors + fine), Stream(our_errors, our_errors + our_fine)
    evidence = sequential.log_e_not_worse(baseline, candidate, margin)
    assert math.isfinite(evidence)
    if candidate.rate <= baseline.rate + margin:
        assert evidence <= 0
    low, high = sequential.confidence_sequence(candidate, 0.05)
    assert 0 <= low <= candidate.rate <= high <= 1 or not candidate.trials


def test_more_of_the_same_difference_is_more_evidence():
    def evidence(scale):
        return sequential.log_e_not_worse(Stream(5 * scale, 1000 * scale), Stream(10 * scale, 100 * scale), 0.01)

    assert evidence(1) < evidence(2) < evidence(8)


def test_intervals_hold_the_truth_and_tell_sides_apart():
    one, other = intervals.estimates(side(ttft=100)), intervals.estimates(side(ttft=200, seed=2))
    by_name = {estimate.measure: estimate for estimate in one}
    ttft = by_name["ttft_p50"]
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low <= 100 * 1.05
    assert ttft.high >= 100 / 1.05
    apart = {mine.measure: intervals.apart(mine, theirs) for mine, theirs in zip(one, other, strict=True)}
    assert apart["ttft_p50"]
    assert not apart["itl_p50"]
    assert not any(intervals.apart(estimate, estimate) for estimate in intervals.estimates(empty()))


@given(st.lists(st.floats(0.01, 2e6), min_size=1, max_size=300))
def test_histograms_are_right_to_their_bucket(values):
    histogram = histograms.of(values)
    assert histogram.total == len(values)
    middle = sorted(min(max(value, 0.1), 0.1 * 1.05**329) for value in values)[math.ceil(len(values) / 2) - 1]
    found = histogram.quantile(0.5)
    assert found is not None
    assert middle / 1.0001 <= found <= middle * 1.0501
    again = histograms.Histogram(histogram.as_json())
    again.merge(histogram.as_json())
    assert again.total == 2 * histogram.total
    assert again.quantile(0.5) == found


def test_every_check_names_a_limit_that_its_own_baseline_keeps():
    for check in checks_of(side(), side(seed=2), {"ttft_p95_ms": 400.0, "error_rate": 0.05}, Tolerance()):
        assert check.baseline is not None
        assert check.baseline <= check.limit


@pytest.mark.parametrize("seed", range(5))
def test_a_difference_holds_the_truth_within_its_interval(seed):
    one = intervals.estimates(side(requests=4000, errors=40, ttft=100, seed=seed))
    other = intervals.estimates(side(requests=4000, errors=120, ttft=110, seed=seed + 50))
    found = {mine.measure: intervals.difference(mine, theirs) for mine, theirs in zip(one, other, strict=True)}
    assert found["error_rate"].low <= 0.02 <= found["error_rate"].high
    assert found["error_rate"].low > 0
    assert not found["error_rate"].relative
    assert found["ttft_p95"].low <= 0.10 <= found["ttft_p95"].high
    assert found["itl_p50"].low <= 0 <= found["itl_p50"].high
    assert all(each.low <= each.value <= each.high for each in found.values())


def test_more_requests_make_a_difference_narrower_but_never_than_a_bucket():
    few, many = (
        intervals.difference(*(intervals.estimates(side(requests=count, seed=seed))[2] for seed in (1, 2)))
        for count in (100, 50_000)
    )
    assert many.high - many.low < few.high - few.low
    assert many.high - many.low >= histograms.GROWTH - 1


def test_nothing_seen_has_no_difference():
    some, none = intervals.estimates(side()), intervals.estimates(empty())
    assert [intervals.difference(mine, theirs) for mine, theirs in zip(some, none, strict=True)] == [None] * len(some)


def test_a_check_alone_waits_for_requests_then_passes_fails_or_doubts():
    equal = checks_of(side(), side(seed=2), {}, Tolerance())
    assert {alone(check, 50) for check in equal} == {Outcome.PASS}
    few = checks_of(side(), side(requests=10, seed=2), {}, Tolerance())
    assert {alone(check, 50) for check in few} == {Outcome.WAIT}
    worse = {check.measure: alone(check, 50) for check in checks_of(side(), side(ttft=200), {}, Tolerance())}
    assert worse["ttft"] is Outcome.FAIL
    assert worse["itl"] is Outcome.PASS
