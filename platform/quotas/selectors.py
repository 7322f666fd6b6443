"""Reads."""

import uuid
from collections.abc import Collection, Mapping, Sequence
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


def terms_by_tenant(tenants: Collection[Tenant]) -> dict[uuid.UUID, TenantQuota]:
    """:func:`terms_of` of each of them, in one query."""
    with scope.all_tenants():
        rows = TenantQuota.objects.select_related("group").filter(tenant_id__in={tenant.id for tenant in tenants})
        terms = {row.tenant_id: row for row in rows}
    return {tenant.id: terms.get(tenant.id) or TenantQuota(tenant=tenant, **defaults()) for tenant in tenants}


def lines_of(tenant: Tenant) -> list[Line]:
    """Every quota of ``tenant`` with what is used of it, in the order of :class:`Kind`."""
    quota = terms_of(tenant)
    return [line_of(quota, tenant, kind) for kind in Kind]


def lines_by_tenant(tenants: Collection[Tenant]) -> dict[uuid.UUID, list[Line]]:
    """:func:`lines_of` of each of them, with as many queries as for one."""
    ids = {tenant.id for tenant in tenants}
    terms = terms_by_tenant(tenants)
    members = _members_by_group({row.group_id for row in terms.values() if row.group_id is not None})
    counted = ids | {row.tenant_id for rows in members.values() for row in rows}
    used = {kind: usage.used_by(counted, kind) for kind in Kind}
    found = {}
    for tenant in tenants:
        quota = terms[tenant.id]
        beside = members.get(quota.group_id, []) if quota.group_id is not None else []
        found[tenant.id] = [_line(quota, tenant, kind, beside, used[kind]) for kind in Kind]
    return found


def line_of(quota: TenantQuota, tenant: Tenant, kind: Kind) -> Line:
    """One line, with what the tenant's group leaves."""
    group = quota.group
    members = members_of(group) if group is not None and not _limit(group, kind).unlimited else []
    used = usage.used_by({tenant.id, *(member.tenant_id for member in members)}, kind)
    return _line(quota, tenant, kind, members, used)


def _line(
    quota: TenantQuota, tenant: Tenant, kind: Kind, members: Sequence[TenantQuota], used: Mapping[uuid.UUID, Amount]
) -> Line:
    """``members`` are the quotas of the tenant's group, with its saved one among them; ``used`` counts all of them."""
    own, limit, guaranteed = used[tenant.id], _limit(quota, kind), _guaranteed(quota, kind)
    group = quota.group
    if group is None:
        return Line(kind, own, limit, guaranteed)
    leaves = [Pool(name=tenant.slug, limit=limit, guaranteed=guaranteed, used=own)]
    whole = _limit(group, kind)
    if not whole.unlimited:  # else what the others hold takes nothing away
        leaves += [
            Pool(
                name=member.tenant.slug, limit=_limit(member, kind), guaranteed=_guaranteed(member, kind),
                weight=member.over_quota_weight, used=used[member.tenant_id],
            )
            for member in members
            if member.tenant_id != tenant.id
        ]  # fmt: skip
    pool = Pool(
        name=f"group {group.name}", limit=whole, guaranteed=_guaranteed(group, kind), children=tuple(leaves)
    )  # fmt: skip
    firm = guaranteed if guaranteed.unlimited else pool.entitled(tenant.slug)
    return Line(kind, own, limit, firm, left_above=pool.own_left)


def members_of(group: QuotaGroup) -> list[TenantQuota]:
    """The quotas of the group's tenants, by name."""
    return _members_by_group([group.id]).get(group.id, [])


def _members_by_group(group_ids: Collection[Any]) -> dict[Any, list[TenantQuota]]:
    found: dict[Any, list[TenantQuota]] = {}
    if group_ids:
        with scope.all_tenants():
            rows = TenantQuota.objects.select_related("tenant").filter(group_id__in=group_ids)
            for row in rows.order_by("tenant__slug"):
                found.setdefault(row.group_id, []).append(row)
    return found


def groups() -> list[dict[str, Any]]:
    """Every group with its limits, its members' slugs and what they hold together (platform admins)."""
    rows = list(QuotaGroup.objects.order_by("name"))
    by_group = _members_by_group([group.id for group in rows])
    ids = {member.tenant_id for members in by_group.values() for member in members}
    counted = {kind: usage.used_by(ids, kind) for kind in Kind}
    found = []
    for group in rows:
        members = by_group.get(group.id, [])
        lines = []
        for kind in Kind:
            used = Amount.of(0)
            for member in members:
                used = used.plus(counted[kind][member.tenant_id])
            lines.append(Line(kind, used, _limit(group, kind), _guaranteed(group, kind)))
        found.append({"group": group, "members": [member.tenant.slug for member in members], "lines": lines})
    return found


def _limit(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, kind.value))


def _guaranteed(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, f"guaranteed_{kind.value}")) if kind in GUARANTEED else UNLIMITED
