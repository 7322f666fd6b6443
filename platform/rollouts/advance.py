"""The loop that moves rollouts on: each in a transaction of its own, under locks, from what is found now."""

import datetime
import logging
import uuid
from typing import Final

from django.db import DatabaseError, transaction
from django.db.models import Q

from fleet import loops
from kernel import clock, errors, scope
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from rollouts import decide, evidence, experiments, log, perform, sides
from rollouts.decide import Action, Do, View
from rollouts.errors import SideGone
from rollouts.judge.checks import Tolerance
from rollouts.judge.verdict import Outcome, Question, Verdict, judge
from rollouts.models import Rollout
from rollouts.perform import Stage
from rollouts.states import RolloutState
from rollouts.strategies import Step

logger = logging.getLogger(__name__)

LOOP: Final = "rollouts.advance"
#: Outbox topic: something about a rollout changed, look now.
WAKE: Final = "rollouts.changed"
ACTOR: Final = system("rollouts.advance")
READY_WITHIN_SECONDS: Final = 1800


def run() -> int:
    """Move every rollout on that is due; return how many were looked at. Ends experiments whose time is up."""
    with loops.one_at_a_time(LOOP) as mine:
        if not mine:
            return 0
        with scope.all_tenants():
            due = list(
                Rollout.objects.filter(
                    Q(state__in=[RolloutState.RUNNING, RolloutState.ROLLING_BACK])
                    | Q(state=RolloutState.PROMOTED, keep_until__lte=clock.now())
                )
                .order_by("id")
                .values_list("id", flat=True)
            )
        for rollout_id in due:
            _one(rollout_id)
        experiments.end_overdue(ACTOR)
        return len(due)


def _one(rollout_id: uuid.UUID) -> None:
    try:
        _advance(rollout_id)
    except (DatabaseError, errors.PlatformError):
        # One rollout that cannot be moved on now must not hold up the others; the next beat tries again.
        logger.exception("rollout could not be moved on", extra={"rollout": str(rollout_id)})


@retry_on_conflict
def _advance(rollout_id: uuid.UUID) -> None:
    with scope.all_tenants(), transaction.atomic():
        rollout = (
            Rollout.objects.select_for_update(of=("self",), no_key=True)
            .select_related("endpoint", "tenant")
            .filter(id=rollout_id)
            .first()
        )
        if rollout is None:
            return
        with scope.tenant(rollout.tenant_id):
            try:
                baseline, candidate = sides.locked(rollout)
            except SideGone as exc:
                _side_gone(rollout, exc)
                return
            try:
                with transaction.atomic():
                    step_on(Stage(rollout, baseline, candidate, ACTOR))
            except errors.QuotaExceeded as exc:
                rollout.refresh_from_db()
                if rollout.state == RolloutState.RUNNING:
                    perform.perform(
                        Stage(rollout, baseline, candidate, ACTOR),
                        Action(Do.PAUSE, reason="QuotaExceeded", sentence=exc.detail),
                    )
            perform.announce(rollout)


def step_on(stage: Stage) -> None:
    """Decide and act once."""
    rollout = stage.rollout
    if rollout.state == RolloutState.ROLLING_BACK:
        perform.return_traffic(stage)
    elif rollout.state == RolloutState.PROMOTED:
        perform.perform(stage, Action(Do.RETIRE))
    elif rollout.state == RolloutState.RUNNING:
        view = _view(stage)
        for action in decide.advance(view, lambda question: _ask(rollout, view, question)):
            perform.perform(stage, action)


def _view(stage: Stage) -> View:
    rollout, now = stage.rollout, clock.now()
    baseline, candidate = stage.sides()
    return View(
        now=now,
        step=rollout.step,
        steps=tuple(Step.read(step) for step in rollout.plan["steps"]),
        entered_at=rollout.step_entered_at or now,
        began_at=rollout.step_began_at,
        judged_at=rollout.judged_at,
        baseline=baseline,
        candidate=candidate,
        ready_within=datetime.timedelta(seconds=rollout.settings.get("ready_seconds", READY_WITHIN_SECONDS)),
        auto_rollback=rollout.settings.get("auto_rollback", True),
    )


def _ask(rollout: Rollout, view: View, question: Question) -> Verdict:
    """Collect evidence, judge, and keep what was said for the page."""
    assert view.began_at is not None
    baseline, candidate = evidence.of_step(rollout, view.current, view.began_at)
    verdict = judge(
        baseline,
        candidate,
        question,
        rollout.endpoint.slo,
        Tolerance(**rollout.settings.get("tolerance", {})),
    )
    said = verdict.as_dict() | {"baseline_requests": baseline.requests, "candidate_requests": candidate.requests}
    Rollout.objects.filter(id=rollout.id).update(judged_at=view.now, verdict=said)
    rollout.judged_at, rollout.verdict = view.now, said
    if verdict.outcome is not Outcome.WAIT:
        logger.info("verdict", extra={"rollout": str(rollout.id), "outcome": verdict.outcome.value})
    return verdict


def _side_gone(rollout: Rollout, exc: SideGone) -> None:
    """Nothing can be compared or moved any more; what is left keeps the traffic it has."""
    if rollout.state == RolloutState.PROMOTED:
        Rollout.objects.filter(id=rollout.id).update(keep_until=None)
        return
    log.move(
        rollout,
        RolloutState.ABORTED,
        actor=ACTOR,
        reason="DeploymentDeleted",
        message=f"Aborted. {exc.detail}",
        ended_at=clock.now(),
    )
    perform.announce(rollout)
