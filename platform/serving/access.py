"""The only way to fetch a row of this room for a person. What belongs to another tenant does not exist."""

import uuid

from kernel import errors, scope
from kernel.actors import Actor
from serving.models import Deployment, Endpoint, Grant, Replica
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


def access_endpoint(
    actor: Actor, tenant: Tenant, name_or_id: str | uuid.UUID, permission: Permission = Permission.VIEW
) -> Endpoint:
    """Return an endpoint of ``tenant`` by its name or id."""
    access.require(actor, permission, tenant.id)
    text = str(name_or_id)
    with scope.tenant(tenant.id):
        endpoint = Endpoint.objects.filter(name=text).first()
        if endpoint is None and (key := _uuid(text)) is not None:
            endpoint = Endpoint.objects.filter(id=key).first()
    if endpoint is None:
        raise errors.NotFound(
            f"There is no endpoint {text[:80]!r} in tenant {tenant.slug!r}.", code="endpoint_not_found"
        )
    return endpoint


def access_grant(
    actor: Actor, tenant: Tenant, endpoint: Endpoint, grant_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> Grant:
    """Return a grant of an endpoint of ``tenant``."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        grant = Grant.objects.select_related("endpoint", "tenant").filter(id=grant_id, endpoint=endpoint).first()
    if grant is None:
        raise errors.NotFound(f"Endpoint {endpoint.name!r} has no grant {grant_id}.", code="grant_not_found")
    return grant


def access_deployment(
    actor: Actor, tenant: Tenant, deployment_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> Deployment:
    """Return a deployment of ``tenant`` with its endpoint and revision."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        rows = Deployment.objects.select_related(
            "endpoint", "revision__model", "revision__version", "revision__serving_config", "revision__runtime"
        )
        deployment = rows.filter(id=deployment_id).first()
    if deployment is None:
        raise errors.NotFound(
            f"There is no deployment {deployment_id} in tenant {tenant.slug!r}.", code="deployment_not_found"
        )
    return deployment


def access_replica(
    actor: Actor,
    tenant: Tenant,
    deployment: Deployment,
    replica_id: uuid.UUID,
    permission: Permission = Permission.VIEW,
) -> Replica:
    """Return a replica of a deployment of ``tenant``."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        replica = Replica.objects.select_related("node").filter(id=replica_id, deployment=deployment).first()
    if replica is None:
        raise errors.NotFound(f"The deployment has no replica {replica_id}.", code="replica_not_found")
    return replica


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
