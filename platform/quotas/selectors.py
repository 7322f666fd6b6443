"""Reads."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings

from kernel import scope
from quotas import usage
from quotas.amount import UNLIMITED, Amount, Kind, Line
from quotas.models import QuotaGroup, TenantQuota
from quotas.tree import Pool
from tenants.models import Tenant

#: Kinds of which a part can be guaranteed.
GUARANTEED = (Kind.GPU_MILLIS, Kind.HBM_BYTES)


def defaults() -> dict[str, int]:
    """Limits of a tenant that has none of its own (settings; -1 is unlimited)."""
    return {
        "gpu_millis": settings.QUOTA_DEFAULT_GPU_MILLIS,
        "hbm_bytes": settings.QUOTA_DEFAULT_HBM_BYTES,
        "replicas": settings.QUOTA_DEFAULT_REPLICAS,
        "storage_bytes": settings.QUOTA_DEFAULT_STORAGE_BYTES,
    }


def terms_of(tenant: Tenant) -> TenantQuota:
    """The quota of ``tenant``; one that is not saved, with the defaults, where it has none of its own."""
    with scope.tenant(tenant.id):
        found = TenantQuota.objects.select_related("group").filter(tenant_id=tenant.id).first()
    return found or TenantQuota(tenant=tenant, **defaults())


def lines_of(tenant: Tenant) -> list[Line]:
    """Every quota of ``tenant`` with what is used of it, in the order of :class:`Kind`."""
    quota = terms_of(tenant)
    return [line_of(quota, tenant, kind) for kind in Kind]


def line_of(quota: TenantQuota, tenant: Tenant, kind: Kind) -> Line:
    """One line, with what the tenant's group leaves."""
    used, limit, guaranteed = usage.used(tenant, kind), _limit(quota, kind), _guaranteed(quota, kind)
    group = quota.group
    if group is None:
        return Line(kind, used, limit, guaranteed)
    pool = pool_of(group, kind, leaves=[Pool(name=tenant.slug, limit=limit, guaranteed=guaranteed, used=used)])
    return Line(kind, used, limit, pool.entitled(tenant.slug), left_above=pool.own_left)


def pool_of(group: QuotaGroup, kind: Kind, leaves: Sequence[Pool] = ()) -> Pool:
    """The group with its members, of one kind. ``leaves`` are members at hand; the others are counted."""
    known = {leaf.name: leaf for leaf in leaves}
    limit = _limit(group, kind)
    members = members_of(group) if not limit.unlimited else []
    for member in members:
        if member.tenant.slug not in known:
            known[member.tenant.slug] = Pool(
                name=member.tenant.slug, limit=_limit(member, kind), guaranteed=_guaranteed(member, kind),
                weight=member.over_quota_weight, used=usage.used(member.tenant, kind),
            )  # fmt: skip
    return Pool(
        name=f"group {group.name}", limit=limit, guaranteed=_guaranteed(group, kind), children=tuple(known.values())
    )


def members_of(group: QuotaGroup) -> list[TenantQuota]:
    """The quotas of the group's tenants, by name."""
    with scope.all_tenants():
        return list(TenantQuota.objects.select_related("tenant").filter(group=group).order_by("tenant__slug"))


def groups() -> list[dict[str, Any]]:
    """Every group with its limits, its members' slugs and what they hold together (platform admins)."""
    found = []
    for group in QuotaGroup.objects.order_by("name"):
        members = members_of(group)
        lines = []
        for kind in Kind:
            used = Amount.of(0)
            for member in members:
                used = used.plus(usage.used(member.tenant, kind))
            lines.append(Line(kind, used, _limit(group, kind), _guaranteed(group, kind)))
        found.append({"group": group, "members": [member.tenant.slug for member in members], "lines": lines})
    return found


def _limit(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, kind.value))


def _guaranteed(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, f"guaranteed_{kind.value}")) if kind in GUARANTEED else UNLIMITED
