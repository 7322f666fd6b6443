"""Evidence of both sides, from the series of how requests ended."""

import datetime
from typing import Final

from rollouts.judge.evidence import Evidence
from rollouts.models import Experiment, Rollout
from rollouts.strategies import Step
from telemetry import outcomes
from telemetry.outcomes import Outcomes

#: How far back the baseline is looked at when the candidate has all the traffic, at least.
BEFORE: Final = datetime.timedelta(minutes=10)

Pair = tuple[Evidence, Evidence]


def of_step(rollout: Rollout, step: Step, began: datetime.datetime, until: datetime.datetime | None = None) -> Pair:
    """Baseline and candidate since the step's share was set (to ``until``, where the step has ended).

    While both have traffic they are compared over the same time. At 100 % the baseline has none: then what it did just
    before is what there is.
    """
    baseline, candidate = rollout.baseline_id, rollout.candidate_id
    assert baseline is not None
    assert candidate is not None
    if step.share < 100:
        seen = outcomes.since([baseline, candidate], began, until)
        return of_outcomes(seen[baseline]), of_outcomes(seen[candidate])
    back = max(BEFORE, datetime.timedelta(seconds=step.hold_seconds))
    before = outcomes.since([baseline], began - back, until=began)
    return of_outcomes(before[baseline]), of_outcomes(outcomes.since([candidate], began, until)[candidate])


def of_experiment(experiment: Experiment, until: datetime.datetime | None = None) -> Pair:
    """Both sides since the experiment began."""
    baseline, candidate = experiment.baseline_id, experiment.candidate_id
    if baseline is None or candidate is None:
        return of_outcomes(Outcomes()), of_outcomes(Outcomes())
    seen = outcomes.since([baseline, candidate], experiment.created_at, until)
    return of_outcomes(seen[baseline]), of_outcomes(seen[candidate])


def of_outcomes(seen: Outcomes) -> Evidence:
    """As the judge takes it."""
    return Evidence(
        requests=seen.requests, errors=seen.errors, ttft=seen.ttft, itl=seen.itl, e2e=seen.e2e, tokens=seen.tokens
    )
