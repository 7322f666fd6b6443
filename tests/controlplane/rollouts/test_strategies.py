"""Plans of every strategy, and what the loop decides from what it finds."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import errors
from rollouts import decide
from rollouts.decide import Action, Do, Side, View
from rollouts.judge.verdict import Outcome, Verdict
from rollouts.models import Capacity, Strategy
from rollouts.strategies import Step, make

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


def plan(strategy=Strategy.CANARY, capacity=Capacity.SPARE, baseline=4, candidate=4, **rest):
    return make(strategy=strategy, capacity=capacity, endpoint="chat", baseline=baseline, candidate=candidate, **rest)


def test_a_canary_rises_and_keeps_the_baseline_whole():
    made = plan()
    assert [step.share for step in made.steps] == [5, 25, 50, 100]
    assert [step.candidate_replicas for step in made.steps] == [1, 1, 2, 4]
    assert {step.baseline_after for step in made.steps} == {4}
    assert (made.extra_replicas, made.gap) == (4, "")


def test_rolling_needs_one_replica_more():
    made = plan(Strategy.ROLLING)
    assert [step.share for step in made.steps] == [25, 50, 75, 100]
    assert [step.candidate_replicas for step in made.steps] == [1, 2, 3, 4]
    assert [step.baseline_after for step in made.steps] == [3, 2, 1, 0]
    assert made.extra_replicas == 1


def test_blue_green_is_one_step_with_both_whole():
    made = plan(Strategy.BLUE_GREEN)
    assert [(step.share, step.candidate_replicas, step.baseline_after) for step in made.steps] == [(100, 4, 4)]
    assert made.extra_replicas == 4


def test_squeeze_and_in_place_say_what_must_be_accepted():
    squeezed = plan(capacity=Capacity.SQUEEZE)
    assert squeezed.extra_replicas == 3
    assert "3 of 4 replicas" in squeezed.gap
    rolled = plan(Strategy.ROLLING, Capacity.SQUEEZE)
    assert rolled.extra_replicas == 0
    in_place = plan(capacity=Capacity.IN_PLACE, baseline=1, candidate=1)
    assert in_place.extra_replicas == 0
    assert "does not answer" in in_place.gap


@pytest.mark.parametrize(
    "rest",
    [
        {"shares": [5, 5, 100]}, {"shares": [50, 25, 100]}, {"shares": [5, 50]}, {"shares": [0, 100]},
        {"shares": [*list(range(1, 100, 4)), 100]}, {"hold_seconds": -1}, {"hold_seconds": 10**6},
        {"min_requests": 0}, {"baseline": 0}, {"capacity": Capacity.SQUEEZE, "baseline": 1},
    ],
)  # fmt: skip
def test_plans_that_make_no_sense_are_refused_with_the_field(rest):
    with pytest.raises(errors.InvalidInput) as caught:
        plan(**rest)
    assert caught.value.data["field"] in str(caught.value)


@given(
    st.sampled_from(list(Strategy)), st.sampled_from([Capacity.SPARE, Capacity.SQUEEZE]),
    st.integers(2, 12), st.integers(1, 12),
)  # fmt: skip
def test_the_baseline_shrinks_only_as_the_candidate_grows(strategy, capacity, baseline, candidate):
    made = plan(strategy, capacity, baseline, candidate)
    left = baseline
    for step in made.steps:
        assert step.baseline_before <= left
        assert step.baseline_after <= step.baseline_before
        if capacity is Capacity.SPARE:
            assert step.baseline_before == left, "spare capacity never takes from the baseline first"
        assert step.candidate_replicas >= 1
        assert step.baseline_before + step.candidate_replicas <= baseline + made.extra_replicas
        left = step.baseline_after
    assert made.steps[-1].share == 100
    assert made.steps[-1].candidate_replicas == candidate


def side(desired=2, ready=2, weight=0, running=True):
    return Side(desired=desired, ready=ready, weight=weight, running=running)


def view(baseline=None, candidate=None, **changes):
    steps = (Step(5, 1, 2, 2, 60, 50), Step(100, 2, 2, 0, 60, 50))
    values = {
        "now": NOW, "step": 0, "steps": steps, "entered_at": NOW - datetime.timedelta(seconds=5), "began_at": None,
        "judged_at": None, "baseline": baseline or side(weight=1000), "candidate": candidate or side(0, 0),
        "ready_within": datetime.timedelta(minutes=30), "auto_rollback": True,
    }  # fmt: skip
    return View(**{**values, **changes})


def ago(seconds):
    return NOW - datetime.timedelta(seconds=seconds)


def says(outcome, seen=None):
    def ask(question):
        if seen is not None:
            seen.append(question)
        return Verdict(outcome, "because", None, ())

    return ask


def never(question):
    raise AssertionError("the judge was asked")


def kinds(actions):
    return [(action.do, action.amount) for action in actions]


def test_traffic_comes_after_replicas():
    assert kinds(decide.advance(view(), never)) == [(Do.SCALE_CANDIDATE, 1)]
    assert decide.advance(view(candidate=side(1, 0)), never) == []
    assert kinds(decide.advance(view(candidate=side(1, 1)), never)) == [(Do.SET_SHARE, 5)]


def test_a_candidate_that_never_gets_ready_is_rolled_back_or_pauses():
    late = view(candidate=side(1, 0), entered_at=ago(1801))
    (action,) = decide.advance(late, never)
    assert (action.do, action.reason) == (Do.ROLL_BACK, "NotReady")
    (action,) = decide.advance(view(candidate=side(1, 0), entered_at=ago(1801), auto_rollback=False), never)
    assert action.do is Do.PAUSE


def test_the_judge_is_asked_while_holding_and_followed():
    asked = []
    holding = view(candidate=side(1, 1, 50), began_at=ago(10))
    assert decide.advance(holding, says(Outcome.WAIT, asked)) == []
    assert not asked[0].held
    assert not asked[0].overdue
    (action,) = decide.advance(holding, says(Outcome.FAIL))
    assert action.do is Do.ROLL_BACK
    assert action.verdict is not None
    done = view(candidate=side(1, 1, 50), began_at=ago(61))
    assert kinds(decide.advance(done, says(Outcome.PASS, asked))) == [(Do.NEXT_STEP, 0)]
    assert asked[1].held
    assert not asked[1].overdue
    last = view(candidate=side(2, 2, 1000), began_at=ago(61), step=1, baseline=side(0, 0))
    assert kinds(decide.advance(last, says(Outcome.PASS))) == [(Do.PROMOTE, 0)]
    overdue = view(candidate=side(1, 1, 50), began_at=ago(3600))
    (action,) = decide.advance(overdue, says(Outcome.INCONCLUSIVE, asked))
    assert action.do is Do.PAUSE
    assert asked[2].overdue


def test_the_judge_looks_rarer_the_longer_it_takes():
    assert decide.advance(view(candidate=side(1, 1), began_at=ago(10), judged_at=ago(1)), never) == []
    assert decide.look_interval(datetime.timedelta(hours=2)) == datetime.timedelta(seconds=36)


def test_a_candidate_without_replicas_is_not_held():
    (action,) = decide.advance(view(candidate=side(1, 0, 50), began_at=ago(30)), never)
    assert (action.do, action.reason) == (Do.ROLL_BACK, "CandidateAbsent")


def test_a_side_that_somebody_stopped_pauses():
    (action,) = decide.advance(view(candidate=side(running=False)), never)
    assert (action.do, action.reason) == (Do.PAUSE, "DeploymentStopped")


def test_going_back_gives_everything_to_what_is_ready():
    assert decide.go_back(side(2, 2, 950), side(1, 1, 50), 2, baseline_waits=False) == [Action(Do.SET_SHARE, 0)]
    done = decide.go_back(side(2, 2, 1000), side(1, 1, 0), 2, baseline_waits=False)
    assert kinds(done) == [(Do.ROLLED_BACK, 0)]


def test_going_back_to_what_is_cold_keeps_serving_until_it_is_ready():
    cold = side(0, 0, 0)
    assert kinds(decide.go_back(cold, side(2, 2, 1000), 2, baseline_waits=False)) == [(Do.SCALE_BASELINE, 2)]
    waiting = decide.go_back(side(2, 0, 0), side(2, 2, 1000), 2, baseline_waits=True)
    assert kinds(waiting) == [(Do.SCALE_CANDIDATE, 0)]
    assert decide.go_back(side(2, 0, 0), side(0, 0, 1000), 2, baseline_waits=True) == []
