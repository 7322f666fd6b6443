"""The isolation that a tenant requires of all its replicas: read by the planner, set by the tenant's owner.

What runs already under a looser wall goes on; the next placement of it follows the policy.
"""

import uuid
from collections.abc import Collection

from django.db import transaction

from fleet.changes import CAPACITY_CHANGED
from fleet.models import IsolationPolicy
from kernel import clock, errors, scope
from kernel.actors import Actor
from kernel.isolation import Requirement
from ledger import hints, outbox
from ledger.record import record
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


def required_by(tenant_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The requirement of each of some tenants; those that require nothing are left out."""
    with scope.all_tenants():
        rows = IsolationPolicy.objects.filter(tenant_id__in=tenant_ids).exclude(least=Requirement.ANY)
        return dict(rows.values_list("tenant_id", "least"))


def policy_of(tenant: Tenant) -> IsolationPolicy:
    """The tenant's policy; one that was never set requires nothing and has no author."""
    with scope.tenant(tenant.id):
        found = IsolationPolicy.objects.filter(tenant=tenant).first()
    return found or IsolationPolicy(tenant=tenant, least=Requirement.ANY.value, set_at=None, set_by="")


def set_policy(*, actor: Actor, tenant: Tenant, least: str) -> IsolationPolicy:
    """Require ``least`` of every replica of ``tenant`` that is placed from now on. Its owners and platform admins.

    Raises:
        errors.InvalidInput: there is no such requirement.
    """
    access.require(actor, Permission.MANAGE_TENANT, tenant.id)
    if least not in Requirement.values:
        raise errors.InvalidInput(
            f"isolation is one of {', '.join(Requirement.values)}.",
            code="invalid_isolation",
            data={"field": "isolation"},
        )
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        row = policy_of(tenant)
        before = row.least
        if before == least:
            return row
        row.least, row.set_at, row.set_by = least, clock.now(), actor.label
        row.save(force_insert=row._state.adding)
        record(
            actor=actor, action="tenant.isolation_set", subject_kind="tenant", subject_id=tenant.id,
            tenant_id=tenant.id, subject_label=tenant.slug, data={"before": before, "after": least},
        )  # fmt: skip
        outbox.emit(CAPACITY_CHANGED, {})
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "tenant"})
    return row
