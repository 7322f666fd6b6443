"""The only way to fetch a row of this room for a person. What belongs to another tenant does not exist."""

import uuid

from kernel import errors, scope
from kernel.actors import Actor
from rollouts.models import Experiment, Rollout
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


def access_rollout(
    actor: Actor, tenant: Tenant, rollout_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> Rollout:
    """Return a rollout of ``tenant`` with its endpoint and both deployments."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        rows = Rollout.objects.select_related("tenant", "endpoint", "baseline", "candidate")
        rollout = rows.filter(id=rollout_id).first()
    if rollout is None:
        raise errors.NotFound(f"There is no rollout {rollout_id} in tenant {tenant.slug!r}.", code="rollout_not_found")
    return rollout


def access_experiment(
    actor: Actor, tenant: Tenant, experiment_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> Experiment:
    """Return an experiment of ``tenant`` with its endpoint and both deployments."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        rows = Experiment.objects.select_related("tenant", "endpoint", "baseline", "candidate")
        experiment = rows.filter(id=experiment_id).first()
    if experiment is None:
        raise errors.NotFound(
            f"There is no experiment {experiment_id} in tenant {tenant.slug!r}.", code="experiment_not_found"
        )
    return experiment
