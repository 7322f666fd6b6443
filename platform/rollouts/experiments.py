"""Experiments: a fixed split, estimates with intervals, and the weights of before when it ends."""

import datetime
import uuid
from typing import Any, Final

from django.db import IntegrityError, transaction

from fleet.changes import Changes
from kernel import clock, errors, machine, scope, texts
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from ledger.record import record, record_move
from rollouts import evidence, sides
from rollouts.errors import EndpointBusy
from rollouts.judge import intervals
from rollouts.models import Experiment
from rollouts.states import EXPERIMENT, ExperimentState
from serving import services as serving
from serving.models import Deployment, Endpoint
from serving.states import DeploymentState
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

MAX_SECONDS: Final = 86_400


@retry_on_conflict
def start_experiment(
    *,
    actor: Actor,
    tenant: Tenant,
    endpoint: Endpoint,
    name: str,
    candidate_id: uuid.UUID,
    share: int,
    seconds: int | None = None,
) -> Experiment:
    """Split the endpoint's traffic between its baseline and another deployment behind it.

    ``share`` is the candidate's part in per mille. With ``seconds`` (up to a day, which is as long as evidence is
    kept) it ends by itself.

    Raises:
        EndpointBusy: a rollout or another experiment owns the endpoint's weights.
        errors.Conflict: the candidate has no ready replica.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    name = texts.readable(name)
    if not 1 <= share <= 999:
        raise errors.InvalidInput("share is a number of thousandths from 1 to 999.", data={"field": "share"})
    if seconds is not None and not 60 <= seconds <= MAX_SECONDS:
        raise errors.InvalidInput(f"seconds is a number from 60 to {MAX_SECONDS}.", data={"field": "seconds"})
    with transaction.atomic(), scope.tenant(tenant.id):
        sides.check_free(endpoint)
        baseline = sides.only_baseline(endpoint)
        candidate = _candidate(endpoint, candidate_id, baseline)
        experiment = _write(actor, tenant, endpoint, name, baseline, candidate, share, seconds)
        sides.locked(experiment)
        weights = sides.weights(baseline, candidate, share)
        serving.set_weights(actor=actor, tenant=tenant, weights=weights)
        _announce(experiment)
    return experiment


def _candidate(endpoint: Endpoint, candidate_id: uuid.UUID, baseline: Deployment) -> Deployment:
    rows = Deployment.objects.select_related("revision__version", "revision__model")
    found = rows.filter(id=candidate_id, endpoint=endpoint, state=DeploymentState.RUNNING).exclude(id=baseline.id)
    candidate = found.first()
    if candidate is None:
        raise errors.InvalidInput(
            f"{candidate_id} is no other running deployment behind {endpoint.name!r}.", data={"field": "candidate"}
        )
    if sides.looked_at(candidate)[0].ready == 0:
        raise errors.Conflict("The candidate has no ready replica; wait until it serves.", code="candidate_not_ready")
    return candidate


def _write(
    actor: Actor,
    tenant: Tenant,
    endpoint: Endpoint,
    name: str,
    baseline: Deployment,
    candidate: Deployment,
    share: int,
    seconds: int | None,
) -> Experiment:
    now = clock.now()
    try:
        with transaction.atomic():
            experiment = Experiment.objects.create(
                tenant=tenant,
                endpoint=endpoint,
                name=name,
                baseline=baseline,
                candidate=candidate,
                from_label=sides.label_of(baseline),
                to_label=sides.label_of(candidate),
                share=share,
                before={str(baseline.id): baseline.weight, str(candidate.id): candidate.weight},
                ends_at=now + datetime.timedelta(seconds=seconds) if seconds else None,
                state_changed_at=now,
                created_at=now,
                created_by=actor.label,
            )
    except IntegrityError:
        raise EndpointBusy(f"An experiment on {endpoint.name!r} has just been made by somebody else.") from None
    record(
        actor=actor,
        action="experiment.started",
        subject_kind="experiment",
        subject_id=experiment.id,
        tenant_id=tenant.id,
        subject_label=name,
        data={"endpoint": endpoint.name, "share": share, "from": experiment.from_label, "to": experiment.to_label},
    )
    return experiment


@retry_on_conflict
def end_experiment(
    *, actor: Actor, tenant: Tenant, experiment: Experiment, reason: str = "EndedByMember"
) -> Experiment:
    """Give the weights back that were there before, and keep what was estimated."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        fresh = Experiment.objects.select_for_update(of=("self",), no_key=True).get(id=experiment.id)
        results = compare(fresh)
        move = machine.move(
            fresh,
            EXPERIMENT,
            ExperimentState.ENDED,
            reason=reason,
            message=f"Ended by {actor.label}.",
            results=results,
        )
        record_move(move, actor=actor, tenant_id=tenant.id, subject_label=fresh.name)
        there = Deployment.objects.filter(id__in=fresh.before).exclude(state=DeploymentState.DELETING)
        weights = {row.id: int(fresh.before[str(row.id)]) for row in there}
        serving.set_weights(actor=actor, tenant=tenant, weights=weights)
        _announce(fresh)
    return fresh


def end_overdue(actor: Actor) -> int:
    """End experiments whose time is up; return how many."""
    with scope.all_tenants():
        due = list(
            Experiment.objects.select_related("tenant").filter(state=ExperimentState.RUNNING, ends_at__lte=clock.now())
        )
    for experiment in due:
        end_experiment(actor=actor, tenant=experiment.tenant, experiment=experiment, reason="TimeIsUp")
    return len(due)


def compare(experiment: Experiment) -> dict[str, Any]:
    """Estimates of both sides per measure, with 95 % intervals, and whether they are apart."""
    if experiment.state == ExperimentState.ENDED:
        return dict(experiment.results)
    baseline, candidate = evidence.of_experiment(experiment)
    rows = intervals.shown(intervals.pairs_of(baseline, candidate))
    return {"baseline_requests": baseline.requests, "candidate_requests": candidate.requests, "measures": rows}


def _announce(experiment: Experiment) -> None:
    changes = Changes()
    changes.tenant(experiment.tenant_id, "rollouts", experiment.id)
    changes.announce()
