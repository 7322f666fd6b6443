"""Reads of this room."""

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any, Final

from django.db.models import QuerySet

from kernel import clock, scope
from rollouts import evidence
from rollouts.judge import intervals, verdict
from rollouts.judge.checks import Check, Tolerance, checks_of
from rollouts.judge.intervals import Estimate
from rollouts.judge.verdict import Outcome
from rollouts.models import Experiment, LogKind, Rollout, RolloutLog
from rollouts.states import ACTIVE, RolloutState
from rollouts.strategies import Step
from serving.models import Endpoint
from telemetry import outcomes
from telemetry.outcomes import Outcomes
from tenants.models import Tenant

#: Intervals of a series, and how much of the time before the start is shown as well.
POINTS: Final = 60
LEAD: Final = 0.1


def rollouts_of(tenant: Tenant, endpoint: Endpoint | None = None) -> "QuerySet[Rollout]":
    """Rollouts of a tenant (or of one endpoint), newest first."""
    with scope.tenant(tenant.id):
        rows = Rollout.objects.select_related("endpoint", "baseline", "candidate").order_by("-id")
        return rows.filter(endpoint=endpoint) if endpoint is not None else rows


def experiments_of(tenant: Tenant, endpoint: Endpoint | None = None) -> "QuerySet[Experiment]":
    """Experiments of a tenant (or of one endpoint), newest first."""
    with scope.tenant(tenant.id):
        rows = Experiment.objects.select_related("endpoint", "baseline", "candidate").order_by("-id")
        return rows.filter(endpoint=endpoint) if endpoint is not None else rows


def active_rollout(endpoint: Endpoint) -> Rollout | None:
    """The rollout that owns the weights of ``endpoint`` now, if there is one."""
    with scope.tenant(endpoint.tenant_id):
        return Rollout.objects.filter(endpoint=endpoint, state__in=ACTIVE).first()


def log_of(rollout: Rollout) -> "QuerySet[RolloutLog]":
    """Lines of the log, newest first."""
    with scope.tenant(rollout.tenant_id):
        return RolloutLog.objects.filter(rollout=rollout).order_by("-id")


@dataclasses.dataclass(frozen=True)
class ShareAt:
    """The candidate's share (percent) from ``at`` on."""

    at: datetime.datetime
    percent: int


def shares_of(rollout: Rollout) -> Sequence[ShareAt]:
    """How the share moved, oldest first, beginning with 0."""
    with scope.tenant(rollout.tenant_id):
        rows = RolloutLog.objects.filter(rollout=rollout, kind=LogKind.WEIGHT).order_by("id")
        moved = [ShareAt(row.at, int(row.data["candidate"])) for row in rows]
    return [ShareAt(rollout.started_at or rollout.created_at, 0), *moved]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Both sides of a step as they are compared. ``pairs`` are baseline and candidate per measure; ``checks`` are the
    judge's, each with what it says by itself: pass, fail, inconclusive, or wait while too little was seen."""

    baseline_requests: int
    candidate_requests: int
    pairs: tuple[tuple[Estimate, Estimate], ...]
    checks: tuple[tuple[Check, Outcome], ...]

    @property
    def share(self) -> float | None:
        """The candidate's part of the requests that ended, as a fraction; ``None`` before any did."""
        total = self.baseline_requests + self.candidate_requests
        return self.candidate_requests / total if total else None


def measured(rollout: Rollout) -> Measured | None:
    """What both sides did in the current (or last) step; ``None`` before its share was set."""
    if rollout.step_began_at is None or rollout.baseline_id is None or rollout.candidate_id is None:
        return None
    step = Step.read(rollout.plan["steps"][rollout.step])
    baseline, candidate = evidence.of_step(rollout, step, rollout.step_began_at, rollout.ended_at)
    tolerance = Tolerance(**rollout.settings.get("tolerance", {}))
    checks = checks_of(baseline, candidate, rollout.endpoint.slo, tolerance)
    return Measured(
        baseline.requests,
        candidate.requests,
        tuple(intervals.pairs_of(baseline, candidate)),
        tuple((check, verdict.alone(check, step.min_requests)) for check in checks),
    )


def compared(rollout: Rollout) -> list[dict[str, Any]]:
    """Both sides' measures in the current (or last) step, with intervals; empty before its share was set."""
    found = measured(rollout)
    return intervals.shown(found.pairs if found else ())


@dataclasses.dataclass(frozen=True)
class Moment:
    """Both sides in the interval that begins at ``at``. ``planned`` is the share (percent) that was set then."""

    at: datetime.datetime
    planned: int
    baseline: Outcomes
    candidate: Outcomes


def over_time(rollout: Rollout, shares: Sequence[ShareAt]) -> list[Moment]:
    """How both sides did from a little before the start to the end (or now), in about 60 whole intervals.

    ``shares`` is what :func:`shares_of` gives. Empty when a side is gone or nothing has started.
    """
    if rollout.started_at is None or rollout.baseline_id is None or rollout.candidate_id is None:
        return []
    until = rollout.ended_at or clock.now()
    lead = max(outcomes.INTERVAL, (until - rollout.started_at) * LEAD)
    start = max(rollout.started_at - lead, until - outcomes.KEEP)
    step = outcomes.INTERVAL * max(1, math.ceil((until - start) / outcomes.INTERVAL / POINTS))
    sides = outcomes.over_time([rollout.baseline_id, rollout.candidate_id], start, until, step)
    found, planned, ahead = [], 0, list(shares)
    whole = [(at, seen) for at, seen in sides if at + step <= until]
    for at, seen in whole or sides:
        while ahead and ahead[0].at < at + step:
            planned = ahead.pop(0).percent
        found.append(Moment(at, planned, seen[rollout.baseline_id], seen[rollout.candidate_id]))
    return found


def active_count(tenant: Tenant) -> int:
    """How many rollouts own the weights of an endpoint now."""
    with scope.tenant(tenant.id):
        return Rollout.objects.filter(state__in=ACTIVE).count()


def can(rollout: Rollout) -> dict[str, bool]:
    """Which verbs make sense now: what buttons are shown."""
    state = RolloutState(rollout.state)
    sides = rollout.baseline_id is not None and rollout.candidate_id is not None
    kept = rollout.keep_until is not None and rollout.keep_until > clock.now()
    moving = state in (RolloutState.RUNNING, RolloutState.PAUSED)
    return {
        "start": state is RolloutState.PLANNED and sides,
        "pause": state is RolloutState.RUNNING,
        "resume": state is RolloutState.PAUSED and sides,
        "promote": moving and sides,
        "roll_back": sides and (moving or (state is RolloutState.PROMOTED and kept)),
        "abort": state in ACTIVE,
    }
