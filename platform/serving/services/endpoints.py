"""Endpoints and grants: each verb is one transaction of check, change, audit and generation."""

import re
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
from serving.models import ENDPOINT_NAME, Deployment, Endpoint, Grant, Sticky
from tenants import access
from tenants.models import SLUG, SLUG_PATTERN, Tenant
from tenants.roles import Permission

MAX_ENDPOINTS: Final = 200
MAX_GRANTS: Final = 500


def create_endpoint(
    *,
    actor: Actor,
    tenant: Tenant,
    name: str,
    slo: Mapping[str, Any] | None = None,
    sticky: str = Sticky.NONE.value,
) -> Endpoint:
    """Make a name that clients can call."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    chosen = objectives.normalise(slo or {})
    kept = _checked_sticky(sticky)
    check_name(name)
    changes = Changes()
    with transaction.atomic(), scope.tenant(tenant.id):
        endpoint = add_endpoint(actor, tenant, name, chosen, changes, sticky=kept)
        changes.announce()
    return endpoint


def add_endpoint(
    actor: Actor,
    tenant: Tenant,
    name: str,
    slo: Mapping[str, Any],
    changes: Changes,
    *,
    sticky: str = Sticky.NONE.value,
) -> Endpoint:
    """Make the endpoint in the caller's transaction, which has checked everything and announces ``changes``."""
    if Endpoint.objects.count() >= MAX_ENDPOINTS:
        raise errors.Conflict(
            f"The tenant has {MAX_ENDPOINTS} endpoints already; delete one first.", code="too_many_endpoints"
        )
    try:
        with transaction.atomic():
            endpoint = Endpoint.objects.create(
                tenant=tenant, name=name, slo=dict(slo), sticky=sticky, created_at=clock.now()
            )
    except IntegrityError:
        raise EndpointNameTaken(
            f"There is an endpoint {name!r} already; choose another name.", data={"field": "name"}
        ) from None
    _note(actor, endpoint, "endpoint.created", {"slo": dict(slo), "sticky": sticky}, changes)
    return endpoint


def check_name(name: str) -> None:
    """Raise unless ``name`` can be an endpoint's."""
    try:
        ENDPOINT_NAME(name)
    except ValidationError:
        raise errors.InvalidInput(str(ENDPOINT_NAME.message), code="invalid_name", data={"field": "endpoint"}) from None


def change_endpoint(
    *, actor: Actor, tenant: Tenant, endpoint: Endpoint, slo: Mapping[str, Any] | None = None, sticky: str = ""
) -> Endpoint:
    """Replace what the endpoint promises, and what keeps a caller on one variant; ``None`` and "" leave it."""
    access.require(actor, Permission.DEPLOY, tenant.id)
    promised = endpoint.slo if slo is None else objectives.normalise(slo)
    kept = _checked_sticky(sticky or endpoint.sticky)
    with transaction.atomic(), scope.tenant(tenant.id):
        Endpoint.objects.filter(id=endpoint.id).update(slo=promised, sticky=kept)
        endpoint.slo, endpoint.sticky = promised, kept
        _finish(actor, endpoint, "endpoint.changed", {"slo": promised, "sticky": kept})
    return endpoint


def _checked_sticky(sticky: str) -> str:
    if sticky not in Sticky.values:
        raise errors.InvalidInput(f"sticky is one of {', '.join(Sticky.values)}.", data={"field": "sticky"})
    return sticky


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


def grant(*, actor: Actor, tenant: Tenant, endpoint: Endpoint, to: str) -> Grant:
    """Let the tenant named ``to`` call the endpoint as ``owner/name``, with its own keys, limits and bill.

    Whether there is such a tenant is not told: a name that nobody has is kept, and holds once a platform admin makes a
    tenant of that name.
    """
    access.require(actor, Permission.GRANT, tenant.id)
    if not re.match(SLUG_PATTERN, to):
        raise errors.InvalidInput(str(SLUG.message), code="invalid_slug", data={"field": "tenant"})
    if to == tenant.slug:
        raise errors.InvalidInput("The endpoint belongs to this tenant; it needs no grant.", data={"field": "tenant"})
    with transaction.atomic(), scope.tenant(tenant.id):
        Endpoint.objects.select_for_update(no_key=True).get(id=endpoint.id)
        if Grant.objects.filter(endpoint=endpoint).count() >= MAX_GRANTS:
            raise errors.Conflict(f"The endpoint is granted to {MAX_GRANTS} tenants already.", code="too_many_grants")
        receiver = Tenant.objects.filter(slug=to).first()
        made, created = Grant.objects.get_or_create(
            endpoint=endpoint,
            tenant_slug=to,
            defaults={"tenant": receiver, "created_at": clock.now(), "created_by": actor.label},
        )
        if not created:
            raise GrantExists(f"{endpoint.name!r} is granted to {to!r} already.", data={"grant": str(made.id)})
        _finish(actor, endpoint, "endpoint.granted", {"tenant": to}, also=receiver)
    return made


def revoke_grant(*, actor: Actor, tenant: Tenant, grant: Grant) -> None:
    """The tenant may not call the endpoint any more, from the next route table on."""
    access.require(actor, Permission.GRANT, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _finish(actor, grant.endpoint, "endpoint.grant_revoked", {"tenant": grant.tenant_slug}, also=grant.tenant)
        grant.delete()


def fill_in_grants(slug: str) -> int:
    """Let grants that were made to the name ``slug`` before there was such a tenant hold; return how many."""
    with transaction.atomic(), scope.all_tenants():
        receiver = Tenant.objects.filter(slug=slug).first()
        if receiver is None:
            return 0
        filled = Grant.objects.filter(tenant=None, tenant_slug=slug).update(tenant=receiver)
        if filled:
            changes = Changes()
            changes.routes()
            changes.tenant(receiver.id, "endpoints")
            changes.announce()
    return filled


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
