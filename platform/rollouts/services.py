"""Verbs of rollouts: each is one transaction of check, move, audit and log."""

import dataclasses
import uuid
from collections.abc import Callable

from django.db import IntegrityError, transaction

from fleet.changes import Changes
from kernel import clock, errors, scope
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from ledger.record import record
from rollouts import advance, log, perform, planning, sides
from rollouts.errors import EndpointBusy, GapNotAccepted
from rollouts.models import LogKind, Rollout
from rollouts.perform import Stage
from rollouts.planning import Wish
from rollouts.states import RolloutState
from rollouts.strategies import Plan
from serving import services as serving
from serving.models import Deployment, Endpoint
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


@retry_on_conflict
def create_rollout(
    *, actor: Actor, tenant: Tenant, endpoint: Endpoint, wish: Wish, accept: str = "", start: bool = True
) -> Rollout:
    """Make a rollout, with a candidate that has no replica and no traffic yet, and start it unless told otherwise.

    Raises:
        EndpointBusy: another rollout or an experiment owns the endpoint's weights.
        NowhereToRun: the plan has a gap in service, and no device here could run the candidate, however empty.
        GapNotAccepted: the plan has a gap in service; ``accept`` must say it in so many words.
        NoBaseline: the endpoint has no single deployment with traffic.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        sides.check_free(endpoint)
        baseline = sides.only_baseline(endpoint)
        plan = planning.plan_of(endpoint, baseline, wish)
        if plan.gap:
            planning.require_device(actor, tenant, wish)
        candidate = serving.deploy_version(
            actor=actor,
            tenant=tenant,
            endpoint_name=endpoint.name,
            model=wish.model,
            version=wish.version,
            config=wish.config,
            replicas=0,
            weight=0,
            drain_seconds=baseline.drain_seconds,
        )
        if plan.gap and accept.strip().rstrip(".").lower() != plan.gap.lower():
            raise GapNotAccepted(
                f"With this capacity {plan.gap}. To accept that, give back these words as accept.",
                data={"field": "accept", "accept": plan.gap},
            )
        if candidate.revision_id == baseline.revision_id:
            raise errors.InvalidInput(
                "The candidate is what serves already: choose another version or change the config.",
                code="same_revision",
                data={"field": "version"},
            )
        rollout = _write(actor, tenant, endpoint, baseline, candidate, wish, plan)
        if start:
            _start(actor, rollout)
        _follow_up(rollout)
    return rollout


def _write(
    actor: Actor,
    tenant: Tenant,
    endpoint: Endpoint,
    baseline: Deployment,
    candidate: Deployment,
    wish: Wish,
    plan: Plan,
) -> Rollout:
    now = clock.now()
    try:
        with transaction.atomic():
            rollout = Rollout.objects.create(
                tenant=tenant,
                endpoint=endpoint,
                baseline=baseline,
                candidate=candidate,
                from_label=sides.label_of(baseline),
                to_label=sides.label_of(candidate),
                strategy=wish.strategy,
                capacity=wish.capacity,
                plan=dataclasses.asdict(plan),
                settings={
                    "tolerance": dataclasses.asdict(wish.tolerance),
                    "auto_rollback": wish.auto_rollback,
                    "keep_seconds": wish.keep_seconds,
                    "ready_seconds": wish.ready_seconds,
                },
                state_changed_at=now,
                baseline_replicas=baseline.desired_replicas,
                candidate_replicas=wish.replicas or baseline.desired_replicas,
                created_at=now,
                created_by=actor.label,
            )
    except IntegrityError:
        raise EndpointBusy(f"A rollout of {endpoint.name!r} has just been made by somebody else.") from None
    record(
        actor=actor,
        action="rollout.created",
        subject_kind="rollout",
        subject_id=rollout.id,
        tenant_id=tenant.id,
        subject_label=endpoint.name,
        data={"from": rollout.from_label, "to": rollout.to_label, "strategy": wish.strategy.value},
    )
    return rollout


def start(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """Begin with the first step of a planned rollout."""
    return _change(actor, tenant, rollout, lambda stage: _start(actor, stage.rollout))


def pause(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """Stop moving on and judging; the shares stay as they are."""

    def work(stage: Stage) -> None:
        log.move(
            stage.rollout,
            RolloutState.PAUSED,
            actor=actor,
            reason="PausedByMember",
            message=f"Paused by {actor.label}.",
        )

    return _change(actor, tenant, rollout, work)


def resume(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """Go on with the step: it is held, and judged, anew."""

    def work(stage: Stage) -> None:
        now = clock.now()
        began = now if stage.rollout.step_began_at else None
        log.move(
            stage.rollout,
            RolloutState.RUNNING,
            actor=actor,
            reason="ResumedByMember",
            message=f"Resumed by {actor.label}; the step is held anew.",
            step_entered_at=now,
            step_began_at=began,
            judged_at=None,
            verdict={},
        )

    return _change(actor, tenant, rollout, work)


def promote(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """Skip the judge: give the candidate everything as soon as all of its replicas are ready.

    When they are ready now, the rollout is promoted at once; else it goes to its last step, unjudged.
    """

    def work(stage: Stage) -> None:
        row = stage.rollout
        _, candidate = stage.sides()
        if candidate.ready >= row.candidate_replicas:
            perform.set_share(stage, 100)
            perform.promote(stage, "PromotedByMember", f"Promoted by {actor.label}.")
            return
        _hurry(row)
        if row.state != RolloutState.RUNNING:
            log.move(
                row,
                RolloutState.RUNNING,
                actor=actor,
                reason="PromotedByMember",
                message=f"{actor.label} promotes: on to the last step, without judging.",
            )
        else:
            log.note(row, LogKind.STEP, "On to the last step, without judging.", actor=actor)
            record(
                actor=actor, action="rollout.hurried", subject_kind="rollout", subject_id=row.id, tenant_id=tenant.id,
                subject_label=row.endpoint.name, reason="PromotedByMember",
            )  # fmt: skip

    return _change(actor, tenant, rollout, work)


def _hurry(rollout: Rollout) -> None:
    steps = list(rollout.plan["steps"])
    steps[-1] = {**steps[-1], "hold_seconds": 0, "judged": False}
    fields = {
        "plan": {**rollout.plan, "steps": steps},
        "step": len(steps) - 1,
        "step_entered_at": clock.now(),
        "step_began_at": None,
        "judged_at": None,
    }
    Rollout.objects.filter(id=rollout.id).update(**fields)
    for name, value in fields.items():
        setattr(rollout, name, value)


def abort(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """End without moving anything: shares and replicas stay as they are, and are the member's to change."""

    def work(stage: Stage) -> None:
        log.move(
            stage.rollout,
            RolloutState.ABORTED,
            actor=actor,
            reason="AbortedByMember",
            message=f"Aborted by {actor.label}; the shares stay as they are.",
            ended_at=clock.now(),
        )

    return _change(actor, tenant, rollout, work)


def roll_back(*, actor: Actor, tenant: Tenant, rollout: Rollout) -> Rollout:
    """Give the baseline everything: at once while it is warm, else as soon as it is ready again.

    Raises:
        EndpointBusy: a later rollout or experiment owns the endpoint's weights.
    """

    def work(stage: Stage) -> None:
        sides.check_free(stage.rollout.endpoint, but=stage.rollout.id)
        perform.roll_back(stage, "RolledBackByMember", f"Asked for by {actor.label}.")

    return _change(actor, tenant, rollout, work)


@retry_on_conflict
def _change(actor: Actor, tenant: Tenant, rollout: Rollout, work: Callable[[Stage], None]) -> Rollout:
    access.require(actor, Permission.DEPLOY, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        fresh = _locked(rollout.id)
        baseline, candidate = sides.locked(fresh)
        work(Stage(fresh, baseline, candidate, actor))
        _follow_up(fresh)
    return fresh


def _locked(rollout_id: uuid.UUID) -> Rollout:
    fresh = (
        Rollout.objects.select_for_update(of=("self",), no_key=True)
        .select_related("endpoint", "tenant")
        .filter(id=rollout_id)
        .first()
    )
    if fresh is None:
        raise errors.NotFound(f"Rollout {rollout_id} is gone.", code="rollout_not_found")
    return fresh


def _start(actor: Actor, rollout: Rollout) -> None:
    now = clock.now()
    log.move(
        rollout,
        RolloutState.RUNNING,
        actor=actor,
        reason="StartedByMember",
        message=f"Started by {actor.label}.",
        started_at=rollout.started_at or now,
        step_entered_at=now,
    )


def _follow_up(rollout: Rollout) -> None:
    changes = Changes()
    changes.tenant(rollout.tenant_id, "rollouts", rollout.id)
    changes.wake(advance.WAKE)
    changes.announce()
