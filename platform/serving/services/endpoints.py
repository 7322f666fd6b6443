"""Endpoints and grants: each verb is one transaction of check, change, audit and generation."""

from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from fleet.changes import Changes
from kernel import clock, errors, scope
from kernel.actors import Actor
from kernel.texts import counted
from ledger.record import record
from serving import slo as objectives
from serving.errors import EndpointInUse, EndpointNameTaken, GrantExists
from serving.models import ENDPOINT_NAME, Deployment, Endpoint, Grant
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

MAX_ENDPOINTS: Final = 200
MAX_GRANTS: Final = 500


def create_endpoint(*, actor: Actor, tenant: Tenant, name: str, slo: Mapping[str, Any] | None = None) -> Endpoint:
    """Make a name that clients can call."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    chosen = objectives.normalise(slo or {})
    check_name(name)
    changes = Changes()
    with transaction.atomic(), scope.tenant(tenant.id):
        endpoint = add_endpoint(actor, tenant, name, chosen, changes)
        changes.announce()
    return endpoint


def add_endpoint(actor: Actor, tenant: Tenant, name: str, slo: Mapping[str, Any], changes: Changes) -> Endpoint:
    """Make the endpoint in the caller's transaction, which has checked everything and announces ``changes``."""
    if Endpoint.objects.count() >= MAX_ENDPOINTS:
        raise errors.Conflict(
            f"The tenant has {MAX_ENDPOINTS} endpoints already; delete one first.", code="too_many_endpoints"
        )
    try:
        with transaction.atomic():
            endpoint = Endpoint.objects.create(tenant=tenant, name=name, slo=dict(slo), created_at=clock.now())
    except IntegrityError:
        raise EndpointNameTaken(
            f"There is an endpoint {name!r} already; choose another name.", data={"field": "name"}
        ) from None
    _note(actor, endpoint, "endpoint.created", {"slo": dict(slo)}, changes)
    return endpoint


def check_name(name: str) -> None:
    """Raise unless ``name`` can be an endpoint's."""
    try:
        ENDPOINT_NAME(name)
    except ValidationError:
        raise errors.InvalidInput(str(ENDPOINT_NAME.message), code="invalid_name", data={"field": "endpoint"}) from None


def set_slo(*, actor: Actor, tenant: Tenant, endpoint: Endpoint, slo: Mapping[str, Any]) -> Endpoint:
    """Replace what the endpoint promises."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    chosen = objectives.normalise(slo)
    with transaction.atomic(), scope.tenant(tenant.id):
        Endpoint.objects.filter(id=endpoint.id).update(slo=chosen)
        endpoint.slo = chosen
        _finish(actor, endpoint, "endpoint.slo_set", {"slo": chosen})
    return endpoint


def delete_endpoint(*, actor: Actor, tenant: Tenant, endpoint: Endpoint) -> None:
    """Forget the name and its grants.

    Raises:
        EndpointInUse: deployments are behind it; delete them first.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        Endpoint.objects.select_for_update().filter(id=endpoint.id).first()
        if count := Deployment.objects.filter(endpoint=endpoint).count():
            raise EndpointInUse(
                f"{counted(count, 'deployment')} still behind {endpoint.name!r}; delete first.",
                data={"deployments": count},
            )
        _finish(actor, endpoint, "endpoint.deleted", {})
        endpoint.delete()


def grant(*, actor: Actor, tenant: Tenant, endpoint: Endpoint, to: Tenant) -> Grant:
    """Let the tenant ``to`` call the endpoint as ``owner/name``, with its own keys, limits and bill."""
    access.require(actor, Permission.GRANT, tenant.id)
    if to.id == tenant.id:
        raise errors.InvalidInput("The endpoint belongs to this tenant; it needs no grant.", data={"field": "tenant"})
    with transaction.atomic(), scope.tenant(tenant.id):
        Endpoint.objects.select_for_update(no_key=True).get(id=endpoint.id)
        if Grant.objects.filter(endpoint=endpoint).count() >= MAX_GRANTS:
            raise errors.Conflict(f"The endpoint is granted to {MAX_GRANTS} tenants already.", code="too_many_grants")
        made, created = Grant.objects.get_or_create(
            endpoint=endpoint, tenant=to, defaults={"created_at": clock.now(), "created_by": actor.label}
        )
        if not created:
            raise GrantExists(f"Tenant {to.slug!r} may call {endpoint.name!r} already.", data={"grant": str(made.id)})
        _finish(actor, endpoint, "endpoint.granted", {"tenant": to.slug}, also=to)
    return made


def revoke_grant(*, actor: Actor, tenant: Tenant, grant: Grant) -> None:
    """The tenant may not call the endpoint any more, from the next route table on."""
    access.require(actor, Permission.GRANT, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _finish(actor, grant.endpoint, "endpoint.grant_revoked", {"tenant": grant.tenant.slug}, also=grant.tenant)
        grant.delete()


def _finish(actor: Actor, endpoint: Endpoint, action: str, data: Mapping[str, Any], also: Tenant | None = None) -> None:
    changes = Changes()
    _note(actor, endpoint, action, data, changes)
    if also is not None:
        changes.tenant(also.id, "endpoints")
    changes.announce()


def _note(actor: Actor, endpoint: Endpoint, action: str, data: Mapping[str, Any], changes: Changes) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="endpoint",
        subject_id=endpoint.id,
        tenant_id=endpoint.tenant_id,
        subject_label=endpoint.name,
        data=data,
    )
    changes.routes()
    changes.tenant(endpoint.tenant_id, "endpoints", endpoint.id)
