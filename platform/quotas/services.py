"""Verbs on quotas. Everything that takes capacity asks :func:`require` in the transaction in which it takes it."""

from collections.abc import Mapping

from django.conf import settings
from django.db import transaction

from kernel import clock, scope
from kernel.actors import Actor
from ledger import hints
from ledger.record import record
from quotas import errors, usage
from quotas.amount import Amount, Kind, Line
from quotas.models import TenantQuota
from tenants import access
from tenants.models import Tenant


def defaults() -> dict[str, int]:
    """Limits of a tenant that has none of its own (settings; -1 is unlimited)."""
    return {
        "hbm_bytes": settings.QUOTA_DEFAULT_HBM_BYTES,
        "replicas": settings.QUOTA_DEFAULT_REPLICAS,
        "storage_bytes": settings.QUOTA_DEFAULT_STORAGE_BYTES,
    }


def require(tenant: Tenant, *, replicas: int = 0, hbm_bytes: int = 0, storage_bytes: int = 0) -> None:
    """Refuse unless ``tenant`` may hold that much more than it holds now.

    Locks the tenant's quota row until the surrounding transaction ends, so that two takers cannot both fit into what
    is left for one. Call it before the rows that take the capacity are written.

    Raises:
        kernel.errors.QuotaExceeded: ``data`` has quota, limit, used, asked.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("quota is asked for in the transaction that takes the capacity")
    asked = {Kind.REPLICAS: replicas, Kind.HBM_BYTES: hbm_bytes, Kind.STORAGE_BYTES: storage_bytes}
    wanted = {kind: Amount.of(number) for kind, number in asked.items() if number}
    if not wanted:
        return
    quota = _locked(tenant)
    for kind, amount in wanted.items():
        line = Line(kind, usage.used(tenant, kind), Amount.limit(getattr(quota, kind.value)))
        if not line.allows(amount):
            raise errors.exceeded(line, amount)


def check_storage(tenant: Tenant, size_bytes: int) -> None:
    """What the catalog asks before it takes ``size_bytes`` of an upload: :func:`require` for storage alone."""
    with transaction.atomic():
        require(tenant, storage_bytes=size_bytes)


def set_quota(*, actor: Actor, tenant: Tenant, changes: Mapping[Kind, Amount]) -> TenantQuota:
    """Set the limits in ``changes``, keep the others; platform admins only.

    A limit may be set below what is in use: nothing is taken away, and nothing more is given.
    """
    access.require_platform_admin(actor)
    with transaction.atomic(), scope.tenant(tenant.id):
        quota = _locked(tenant)
        before = {kind.value: getattr(quota, kind.value) for kind in changes}
        for kind, amount in changes.items():
            setattr(quota, kind.value, amount.as_number())
        quota.updated_at = clock.now()
        quota.save()
        record(
            actor=actor,
            action="quota.set",
            subject_kind="quota",
            subject_id=tenant.id,
            tenant_id=tenant.id,
            subject_label=tenant.slug,
            data={"before": before, "after": {kind.value: amount.as_number() for kind, amount in changes.items()}},
        )
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "quota"})
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "quota"})
    return quota


def _locked(tenant: Tenant) -> TenantQuota:
    """The tenant's row, made from the defaults when it is missing, locked."""
    with scope.tenant(tenant.id):
        TenantQuota.objects.get_or_create(tenant=tenant, defaults={**defaults(), "updated_at": clock.now()})
        return TenantQuota.objects.select_for_update(no_key=True).get(tenant=tenant)
