"""Carrying out what was decided, in the caller's transaction: rollout and both deployments are locked."""

import dataclasses
import datetime

from fleet.changes import Changes
from kernel import clock
from kernel.actors import Actor
from kernel.texts import counted
from rollouts import log, sides
from rollouts.decide import Action, Do, Side, go_back
from rollouts.models import LogKind, Rollout
from rollouts.states import RolloutState
from serving import services as serving
from serving.models import Deployment
from serving.states import DeploymentState

DEFAULT_KEEP_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Stage:
    """A rollout with its locked sides and who acts."""

    rollout: Rollout
    baseline: Deployment
    candidate: Deployment
    actor: Actor

    def sides(self) -> tuple[Side, Side]:
        """Both as they stand now."""
        self.baseline.refresh_from_db(fields=["desired_replicas", "weight", "state"])
        self.candidate.refresh_from_db(fields=["desired_replicas", "weight", "state"])
        baseline, candidate = sides.looked_at(self.baseline, self.candidate)
        return baseline, candidate


def perform(stage: Stage, action: Action) -> None:
    """Do one thing and log it."""
    if action.verdict is not None:
        log.note(stage.rollout, LogKind.VERDICT, action.verdict.sentence, data=action.verdict.as_dict())
    match action.do:
        case Do.SCALE_BASELINE:
            _scale(stage, stage.baseline, action.amount, "baseline")
        case Do.SCALE_CANDIDATE:
            _scale(stage, stage.candidate, action.amount, "candidate")
        case Do.SET_SHARE:
            set_share(stage, action.amount)
        case Do.NEXT_STEP:
            _next(stage)
        case Do.PROMOTE:
            promote(stage, "StepsPassed", "All steps passed; the candidate is the new baseline.")
        case Do.PAUSE:
            log.move(
                stage.rollout,
                RolloutState.PAUSED,
                actor=stage.actor,
                reason=action.reason,
                message=f"Paused. {action.sentence}",
            )
        case Do.ROLL_BACK:
            roll_back(stage, action.reason, action.sentence)
        case Do.ROLLED_BACK:
            _rolled_back(stage)
        case Do.RETIRE:
            _retire(stage)


def _scale(stage: Stage, deployment: Deployment, amount: int, word: str) -> None:
    serving.scale(actor=stage.actor, tenant=stage.rollout.tenant, deployment=deployment, replicas=amount)
    log.note(stage.rollout, LogKind.STEP, f"The {word} gets {counted(amount, 'replica')}.", actor=stage.actor)


def set_share(stage: Stage, percent: int) -> None:
    """Give the candidate ``percent`` of the traffic; a running step begins with it."""
    rollout, now = stage.rollout, clock.now()
    weights = sides.weights(stage.baseline, stage.candidate, percent * 10)
    serving.set_weights(actor=stage.actor, tenant=rollout.tenant, weights=weights)
    if rollout.state == RolloutState.RUNNING:
        _write(rollout, step_began_at=now, judged_at=None, verdict={})
    sentence = f"{percent} % of the traffic goes to the candidate."
    log.note(rollout, LogKind.WEIGHT, sentence, actor=stage.actor, data={"candidate": percent})


def _next(stage: Stage) -> None:
    rollout = stage.rollout
    _write(rollout, step=rollout.step + 1, step_entered_at=clock.now(), step_began_at=None, judged_at=None, verdict={})
    total = len(rollout.plan["steps"])
    log.note(rollout, LogKind.STEP, f"Step {rollout.step + 1} of {total} begins.", actor=stage.actor)


def promote(stage: Stage, reason: str, message: str) -> None:
    """End well: the baseline has no traffic any more and is kept warm for a while."""
    keep = int(stage.rollout.settings.get("keep_seconds", DEFAULT_KEEP_SECONDS))
    now = clock.now()
    log.move(
        stage.rollout,
        RolloutState.PROMOTED,
        actor=stage.actor,
        reason=reason,
        message=message,
        ended_at=now,
        keep_until=now + datetime.timedelta(seconds=keep),
    )


def roll_back(stage: Stage, reason: str, sentence: str) -> None:
    """Turn around, and in the same transaction give the baseline everything if it can take it."""
    log.move(
        stage.rollout,
        RolloutState.ROLLING_BACK,
        actor=stage.actor,
        reason=reason,
        message=f"Rolling back. {sentence}",
        keep_until=None,
    )
    return_traffic(stage)


def return_traffic(stage: Stage) -> None:
    """Go as far back as is possible now; called again by the loop until it is done."""
    if stage.baseline.state == DeploymentState.STOPPED:
        serving.start(actor=stage.actor, tenant=stage.rollout.tenant, deployment=stage.baseline)
    for _ in range(2):  # first the traffic, then the end: both at once where nothing must be waited for
        baseline, candidate = stage.sides()
        waits = sides.waits_for_place(stage.baseline)
        for action in go_back(baseline, candidate, stage.rollout.baseline_replicas, baseline_waits=waits):
            perform(stage, action)
        if stage.rollout.state != RolloutState.ROLLING_BACK:
            return


def _rolled_back(stage: Stage) -> None:
    rollout = stage.rollout
    serving.stop(actor=stage.actor, tenant=rollout.tenant, deployment=stage.candidate)
    why = rollout.message.removeprefix("Rolling back. ")
    log.move(
        rollout,
        RolloutState.ROLLED_BACK,
        actor=stage.actor,
        reason=rollout.reason,
        message=f"Rolled back; the baseline has all the traffic. {why}",
        ended_at=clock.now(),
    )


def _retire(stage: Stage) -> None:
    """The replaced baseline ends, unless somebody gave it traffic again."""
    _write(stage.rollout, keep_until=None)
    if stage.baseline.weight == 0 and stage.baseline.state == DeploymentState.RUNNING:
        serving.stop(actor=stage.actor, tenant=stage.rollout.tenant, deployment=stage.baseline)
        log.note(stage.rollout, LogKind.STEP, "The old baseline was kept long enough; it ends.", actor=stage.actor)


def _write(rollout: Rollout, **fields: object) -> None:
    Rollout.objects.filter(id=rollout.id).update(**fields)
    for name, value in fields.items():
        setattr(rollout, name, value)


def announce(rollout: Rollout) -> None:
    """Tell open pages."""
    changes = Changes()
    changes.tenant(rollout.tenant_id, "rollouts", rollout.id)
    changes.announce()
