"""Deployments: what people want. The loop in ``serving.reconcile`` makes it so."""

from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction
from django.db.models import F

from catalog.access import access_model, access_version
from catalog.models import Revision
from catalog.services import make_revision
from fleet.changes import Changes
from kernel import clock, errors, machine, scope
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from ledger.record import record, record_move
from quotas.services import require as require_quota
from serving.errors import DeploymentDeleting
from serving.models import MAX_DRAIN_SECONDS, MAX_REPLICAS, MAX_WEIGHT, Deployment, Endpoint, Priority
from serving.reconcile import cycle
from serving.services.endpoints import add_endpoint, check_name
from serving.states import DEPLOYMENT, DeploymentState
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

MAX_DEPLOYMENTS: Final = 200
DEFAULT_WEIGHT: Final = 100
DEFAULT_DRAIN_SECONDS: Final = 30


@retry_on_conflict
def deploy_version(
    *,
    actor: Actor,
    tenant: Tenant,
    endpoint_name: str,
    model: str,
    version: str | int,
    config: Mapping[str, Any],
    replicas: int,
    weight: int = DEFAULT_WEIGHT,
    drain_seconds: int = DEFAULT_DRAIN_SECONDS,
    priority: str | None = None,
) -> Deployment:
    """Deploy a version (number or alias) of a model under ``config``: makes the revision, then :func:`deploy`."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    check_name(endpoint_name)
    _check_numbers(replicas, weight, drain_seconds)
    _check_priority(actor, tenant, priority)
    with transaction.atomic():
        found = access_version(actor, tenant, access_model(actor, tenant, model), version)
        revision = make_revision(actor=actor, tenant=tenant, version=found, config=config)
        return deploy(
            actor=actor,
            tenant=tenant,
            endpoint_name=endpoint_name,
            revision=revision,
            replicas=replicas,
            weight=weight,
            drain_seconds=drain_seconds,
            priority=priority,
        )


@retry_on_conflict
def deploy(
    *,
    actor: Actor,
    tenant: Tenant,
    endpoint_name: str,
    revision: Revision,
    replicas: int,
    weight: int = DEFAULT_WEIGHT,
    drain_seconds: int = DEFAULT_DRAIN_SECONDS,
    priority: str | None = None,
) -> Deployment:
    """Serve ``revision`` behind an endpoint, which is made when it is missing; its replicas are pending at once.

    Without a ``priority`` it has that of what serves there already.

    Raises:
        errors.QuotaExceeded: the tenant may not hold that many replicas.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    check_name(endpoint_name)
    _check_numbers(replicas, weight, drain_seconds)
    _check_priority(actor, tenant, priority)
    if revision.tenant_id != tenant.id:
        raise errors.NotFound(
            f"There is no revision {revision.id} in tenant {tenant.slug!r}.", code="revision_not_found"
        )
    now = clock.now()
    changes = Changes()
    with transaction.atomic(), scope.tenant(tenant.id):
        require_quota(tenant, replicas=replicas)
        if Deployment.objects.count() >= MAX_DEPLOYMENTS:
            raise errors.Conflict(
                f"The tenant has {MAX_DEPLOYMENTS} deployments already; delete one first.", code="too_many_deployments"
            )
        endpoint = Endpoint.objects.select_for_update(no_key=True).filter(name=endpoint_name).first()
        if endpoint is None:
            endpoint = add_endpoint(actor, tenant, endpoint_name, {}, changes)
        level = priority or _inherited(endpoint)
        deployment = Deployment.objects.create(
            tenant=tenant,
            endpoint=endpoint,
            revision=revision,
            desired_replicas=replicas,
            weight=weight,
            drain_seconds=drain_seconds,
            priority=level,
            state_changed_at=now,
            created_at=now,
            created_by=actor.label,
        )
        _note(
            actor,
            deployment,
            "deployment.created",
            {"replicas": replicas, "weight": weight, "revision": str(revision.id), "priority": level},
        )
        _follow_up(deployment, changes)
    return deployment


@retry_on_conflict
def scale(
    *,
    actor: Actor,
    tenant: Tenant,
    deployment: Deployment,
    replicas: int | None = None,
    weight: int | None = None,
    priority: str | None = None,
) -> Deployment:
    """Change the number of replicas, the share of the traffic, the priority; ``None`` leaves as it is.

    Raises:
        errors.QuotaExceeded: the tenant may not hold that many replicas.
        errors.Forbidden: only a tenant's admins let a deployment take the places of others (``high``).
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    if priority is not None:
        _check_priority(actor, tenant, priority)
    with transaction.atomic(), scope.tenant(tenant.id):
        fresh = _locked(deployment)
        wanted = fresh.desired_replicas if replicas is None else replicas
        share = fresh.weight if weight is None else weight
        _check_numbers(wanted, share, fresh.drain_seconds)
        level = fresh.priority if priority is None else priority
        numbers = (fresh.desired_replicas, fresh.weight)
        if (wanted, share) == numbers and level == fresh.priority:
            return fresh
        if fresh.state == DeploymentState.RUNNING and wanted > fresh.desired_replicas:
            require_quota(tenant, replicas=wanted - fresh.desired_replicas)
        before, was = {"replicas": fresh.desired_replicas, "weight": fresh.weight}, fresh.priority
        Deployment.objects.filter(id=fresh.id).update(
            desired_replicas=wanted, weight=share, priority=level, generation=F("generation") + 1
        )
        fresh.refresh_from_db()
        if (wanted, share) != numbers:
            after = {"replicas": wanted, "weight": share}
            _note(actor, fresh, "deployment.scaled", {"before": before, "after": after})
        changes = Changes()
        if level != was:
            _note(actor, fresh, "deployment.prioritized", {"before": was, "after": level})
            changes.wake(cycle.UNPLACED)
        _follow_up(fresh, changes)
    return fresh


def stop(*, actor: Actor, tenant: Tenant, deployment: Deployment) -> Deployment:
    """Drain all replicas and keep the deployment, so that it can be started again."""
    return _move(actor, tenant, deployment, DeploymentState.STOPPED, "StoppedByMember")


def start(*, actor: Actor, tenant: Tenant, deployment: Deployment) -> Deployment:
    """Serve again with the desired number of replicas."""
    return _move(actor, tenant, deployment, DeploymentState.RUNNING, "StartedByMember")


def delete_deployment(*, actor: Actor, tenant: Tenant, deployment: Deployment) -> Deployment:
    """Drain all replicas; the deployment is gone when the last one has stopped."""
    return _move(actor, tenant, deployment, DeploymentState.DELETING, "DeletedByMember")


@retry_on_conflict
def _move(actor: Actor, tenant: Tenant, deployment: Deployment, to: DeploymentState, reason: str) -> Deployment:
    access.require(actor, Permission.DEPLOY, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        fresh = _locked(deployment, deleting_is_fine=to is DeploymentState.DELETING)
        if fresh.state == to:
            return fresh
        if to is DeploymentState.RUNNING:
            require_quota(tenant, replicas=fresh.desired_replicas)
        move = machine.move(
            fresh, DEPLOYMENT, to, reason=reason, message=f"By {actor.label}.", generation=fresh.generation + 1
        )
        record_move(move, actor=actor, tenant_id=tenant.id, subject_label=fresh.endpoint.name)
        _follow_up(fresh, Changes())
    return fresh


def _locked(deployment: Deployment, *, deleting_is_fine: bool = False) -> Deployment:
    fresh = (
        Deployment.objects.select_for_update(of=("self",), no_key=True)
        .select_related("endpoint")
        .filter(id=deployment.id)
        .first()
    )
    if fresh is None:
        raise errors.NotFound(f"Deployment {deployment.id} is gone.", code="deployment_not_found")
    if fresh.state == DeploymentState.DELETING and not deleting_is_fine:
        raise DeploymentDeleting("The deployment is being deleted; make a new one.")
    return fresh


def _inherited(endpoint: Endpoint) -> str:
    """The priority of what serves behind the endpoint: a successor is not to be pushed out before it leads."""
    there = Deployment.objects.filter(endpoint=endpoint, state=DeploymentState.RUNNING)
    ranks = [Priority(value) for value in there.values_list("priority", flat=True)]
    return max(ranks, key=lambda each: each.rank).value if ranks else Priority.NORMAL.value


def _check_priority(actor: Actor, tenant: Tenant, priority: str | None) -> None:
    """A ``high`` deployment takes the places of others: that is for those who answer for the whole tenant."""
    if priority is None:
        return
    if priority not in Priority.values:
        raise errors.InvalidInput(f"priority is one of {', '.join(Priority.values)}.", data={"field": "priority"})
    above = Priority(priority) is Priority.HIGH
    access.require(actor, Permission.PRIORITIZE if above else Permission.DEPLOY, tenant.id)


def _check_numbers(replicas: int, weight: int, drain_seconds: int) -> None:
    for name, value, high in (
        ("replicas", replicas, MAX_REPLICAS),
        ("weight", weight, MAX_WEIGHT),
        ("drain_seconds", drain_seconds, MAX_DRAIN_SECONDS),
    ):
        if not 0 <= value <= high:
            raise errors.InvalidInput(f"{name} is a number from 0 to {high}.", data={"field": name})


def _note(actor: Actor, deployment: Deployment, action: str, data: Mapping[str, Any]) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="deployment",
        subject_id=deployment.id,
        tenant_id=deployment.tenant_id,
        subject_label=deployment.endpoint.name,
        data=data,
    )


def _follow_up(deployment: Deployment, changes: Changes) -> None:
    """Bring the replicas in line within the same transaction, so that the answer already shows them; announces."""
    changes.routes()
    changes.tenant(deployment.tenant_id, "deployments", deployment.id)
    cycle.settle(deployment, changes)
    changes.wake(cycle.WAKE)
    changes.announce()
