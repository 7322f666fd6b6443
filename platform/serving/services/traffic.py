"""Traffic between the deployments of one endpoint, moved in one transaction: no request meets half a change."""

import uuid
from collections.abc import Mapping

from django.db import transaction
from django.db.models import F

from fleet.changes import Changes
from kernel import errors, scope
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from ledger.record import record
from serving.models import MAX_WEIGHT, Deployment
from serving.states import DeploymentState
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


@retry_on_conflict
def set_weights(*, actor: Actor, tenant: Tenant, weights: Mapping[uuid.UUID, int]) -> None:
    """Give each deployment its relative weight (0 to 1000), all at once.

    Raises:
        errors.InvalidInput: a weight out of bounds.
        errors.Conflict: a deployment is gone or being deleted.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    if any(not 0 <= weight <= MAX_WEIGHT for weight in weights.values()):
        raise errors.InvalidInput(f"weight is a number from 0 to {MAX_WEIGHT}.", data={"field": "weight"})
    changes = Changes()
    with transaction.atomic(), scope.tenant(tenant.id):
        rows = list(
            Deployment.objects.select_for_update(of=("self",), no_key=True)
            .select_related("endpoint", "revision__version")
            .filter(id__in=weights)
            .exclude(state=DeploymentState.DELETING)
            .order_by("id")
        )
        if len(rows) != len(weights):
            raise errors.Conflict("A deployment is gone or being deleted.", code="deployment_gone")
        totals = _totals({row.endpoint_id for row in rows}, weights)
        for row in rows:
            if row.weight == weights[row.id]:
                continue
            before = row.weight
            Deployment.objects.filter(id=row.id).update(weight=weights[row.id], generation=F("generation") + 1)
            record(
                actor=actor,
                action="deployment.weighted",
                subject_kind="deployment",
                subject_id=row.id,
                tenant_id=tenant.id,
                subject_label=row.endpoint.name,
                data={
                    "before": before,
                    "after": weights[row.id],
                    "share": round(weights[row.id] / (totals[row.endpoint_id] or 1) * 100, 1),
                    "version": row.revision.version.number,
                },
            )
            changes.routes()
            changes.tenant(tenant.id, "deployments", row.id)
        changes.announce()


def _totals(endpoints: set[uuid.UUID], weights: Mapping[uuid.UUID, int]) -> dict[uuid.UUID, int]:
    """The sum of weights behind each endpoint once ``weights`` are set."""
    totals = dict.fromkeys(endpoints, 0)
    there = Deployment.objects.filter(endpoint_id__in=endpoints).exclude(state=DeploymentState.DELETING)
    for ident, endpoint_id, weight in there.values_list("id", "endpoint_id", "weight"):
        totals[endpoint_id] += weights.get(ident, weight)
    return totals
