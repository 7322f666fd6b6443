"""What a rollout should do next (pure): everything that decides is passed in, everything that happens is returned."""

import dataclasses
import datetime
import enum
from collections.abc import Callable
from typing import Final

from rollouts.judge.verdict import Outcome, Question, Verdict
from rollouts.strategies import Step

#: How long a candidate may go without a single ready replica while it has traffic.
ABSENT: Final = datetime.timedelta(seconds=20)
#: How much longer than planned a step is held for requests that do not come, at least.
PATIENCE: Final = datetime.timedelta(minutes=10)
SHORTEST_LOOK: Final = datetime.timedelta(seconds=2)
LOOKS_PER_STEP: Final = 200


class Do(enum.StrEnum):
    """A thing to do."""

    SCALE_BASELINE = "scale_baseline"  # to ``amount`` replicas
    SCALE_CANDIDATE = "scale_candidate"
    SET_SHARE = "set_share"  # the candidate's share becomes ``amount`` percent; the step begins
    NEXT_STEP = "next_step"
    PROMOTE = "promote"
    PAUSE = "pause"
    ROLL_BACK = "roll_back"
    ROLLED_BACK = "rolled_back"  # the baseline has everything
    RETIRE = "retire"  # end what the replaced baseline still holds


@dataclasses.dataclass(frozen=True)
class Action:
    """``amount`` where a number belongs to it; ``reason`` and ``sentence`` where people are told."""

    do: Do
    amount: int = 0
    reason: str = ""
    sentence: str = ""
    verdict: Verdict | None = None


@dataclasses.dataclass(frozen=True)
class Side:
    """A deployment as the loop finds it. ``weight`` is relative."""

    desired: int
    ready: int
    weight: int
    running: bool


@dataclasses.dataclass(frozen=True)
class View:
    """A running rollout at one moment."""

    now: datetime.datetime
    step: int
    steps: tuple[Step, ...]
    entered_at: datetime.datetime
    began_at: datetime.datetime | None
    judged_at: datetime.datetime | None
    baseline: Side
    candidate: Side
    ready_within: datetime.timedelta
    auto_rollback: bool

    @property
    def current(self) -> Step:
        """The step that the rollout is in."""
        return self.steps[self.step]

    @property
    def last(self) -> bool:
        """True in the last step."""
        return self.step == len(self.steps) - 1


Ask = Callable[[Question], Verdict]


def advance(view: View, ask: Ask) -> list[Action]:
    """What to do now for a running rollout. ``ask`` collects evidence and judges; it is called only when due."""
    if not view.candidate.running or (not view.baseline.running and view.current.baseline_after > 0):
        side = "candidate" if not view.candidate.running else "baseline"
        return [Action(Do.PAUSE, reason="DeploymentStopped", sentence=f"The {side} was stopped by somebody else.")]
    if view.began_at is None:
        return _prepare(view)
    return _hold(view, view.began_at, ask)


def _prepare(view: View) -> list[Action]:
    """Replicas first, traffic after: the baseline shrinks only as far as its owner accepted."""
    step = view.current
    actions: list[Action] = []
    if view.baseline.desired > step.baseline_before:
        actions.append(Action(Do.SCALE_BASELINE, step.baseline_before))
    if view.candidate.desired < step.candidate_replicas:
        actions.append(Action(Do.SCALE_CANDIDATE, step.candidate_replicas))
    if actions:
        return actions
    if view.candidate.ready >= step.candidate_replicas:
        return [Action(Do.SET_SHARE, step.share)]
    if view.now - view.entered_at > view.ready_within:
        waited = round((view.now - view.entered_at).total_seconds())
        return _fail(
            view,
            "NotReady",
            f"The candidate has {view.candidate.ready} of {step.candidate_replicas} replicas ready after {waited} s.",
        )
    return []


def _hold(view: View, began: datetime.datetime, ask: Ask) -> list[Action]:
    step = view.current
    if view.baseline.desired > step.baseline_after:
        return [Action(Do.SCALE_BASELINE, step.baseline_after)]
    held_for = view.now - began
    if view.candidate.ready == 0 and held_for > ABSENT:
        return _fail(view, "CandidateAbsent", "No replica of the candidate is ready any more.")
    if not step.judged:
        return _on(view) if held_for >= datetime.timedelta(seconds=step.hold_seconds) else []
    if view.judged_at is not None and view.now - view.judged_at < look_interval(held_for):
        return []
    planned = datetime.timedelta(seconds=step.hold_seconds)
    verdict = ask(
        Question(
            min_requests=step.min_requests,
            held=held_for >= planned,
            overdue=held_for >= planned + max(planned, PATIENCE),
        )
    )
    return _follow(view, verdict)


def _follow(view: View, verdict: Verdict) -> list[Action]:
    match verdict.outcome:
        case Outcome.FAIL:
            return _fail(view, "VerdictFailed", verdict.sentence, verdict)
        case Outcome.INCONCLUSIVE:
            return [Action(Do.PAUSE, reason="VerdictUnclear", sentence=verdict.sentence, verdict=verdict)]
        case Outcome.PASS:
            return _on(view, verdict)
        case _:
            return []


def _fail(view: View, reason: str, sentence: str, verdict: Verdict | None = None) -> list[Action]:
    do = Do.ROLL_BACK if view.auto_rollback else Do.PAUSE
    return [Action(do, reason=reason, sentence=sentence, verdict=verdict)]


def _on(view: View, verdict: Verdict | None = None) -> list[Action]:
    return [Action(Do.PROMOTE if view.last else Do.NEXT_STEP, verdict=verdict)]


def look_interval(held_for: datetime.timedelta) -> datetime.timedelta:
    """How often the judge looks: every two seconds at first, rarer the longer a step lasts."""
    return max(SHORTEST_LOOK, held_for / LOOKS_PER_STEP)


def go_back(baseline: Side, candidate: Side, wanted: int, *, baseline_waits: bool) -> list[Action]:
    """What to do now for a rollout that rolls back to ``wanted`` replicas of the baseline.

    A baseline that is still ready gets everything at once. One that must come back first may need the candidate's place
    (``baseline_waits``: it found none); as long as it does not, the candidate goes on serving.
    """
    if baseline.ready > 0:
        if candidate.weight or not baseline.weight:
            return [Action(Do.SET_SHARE, 0)]
        more = [Action(Do.SCALE_BASELINE, wanted)] if baseline.desired < wanted else []
        return [*more, Action(Do.ROLLED_BACK)]
    actions = [Action(Do.SCALE_BASELINE, wanted)] if baseline.desired < wanted else []
    if baseline_waits and candidate.desired > 0:
        actions.append(Action(Do.SCALE_CANDIDATE, 0))
    return actions
