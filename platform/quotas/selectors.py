"""Reads."""

import dataclasses
import functools
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings

from kernel import scope
from quotas import usage
from quotas.amount import UNLIMITED, ZERO, Amount, Kind, Line
from quotas.models import QuotaGroup, TenantQuota
from quotas.tree import Pool
from tenants.models import Tenant

#: Kinds of which a part can be guaranteed.
GUARANTEED = (Kind.GPU_MILLIS, Kind.HBM_BYTES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupMember:
    """A tenant of a group; its ``lines`` are in the order of :class:`Kind` and know what the group leaves."""

    tenant: Tenant
    lines: tuple[Line, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Together:
    """A group: its ``lines`` say what all ``members`` (by slug) hold together, in the order of :class:`Kind`."""

    group: QuotaGroup
    lines: tuple[Line, ...]
    members: tuple[GroupMember, ...]


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
    return lines_in(terms_of(tenant), tenant, list(Kind))


def lines_by_tenant(tenants: Collection[Tenant]) -> dict[uuid.UUID, list[Line]]:
    """:func:`lines_of` of each of them, with as many queries as for one."""
    ids = {tenant.id for tenant in tenants}
    terms = terms_by_tenant(tenants)
    members = _members_by_group({row.group_id for row in terms.values() if row.group_id is not None})
    used = usage_of(ids | {row.tenant_id for rows in members.values() for row in rows})
    held = {
        (group_id, kind): _sum(used[kind][row.tenant_id] for row in rows)
        for group_id, rows in members.items()
        for kind in Kind
    }
    found = {}
    for tenant in tenants:
        quota = terms[tenant.id]
        own = {kind: used[kind][tenant.id] for kind in Kind}
        found[tenant.id] = [
            _line(quota, kind, own[kind], held.get((quota.group_id, kind), own[kind]).beyond(own[kind]))
            for kind in Kind
        ]
    return found


def is_bounded(quota: TenantQuota, kind: Kind) -> bool:
    """False where neither ``quota`` nor its group limits ``kind``: any amount is allowed, whatever is held."""
    return any(not _limit(row, kind).unlimited for row in (quota, quota.group) if row is not None)


def line_of(quota: TenantQuota, tenant: Tenant, kind: Kind) -> Line:
    """One line, with what the tenant's group leaves. ``quota`` need not be saved: its group may be another."""
    return lines_in(quota, tenant, [kind])[0]


def lines_in(quota: TenantQuota, tenant: Tenant, kinds: Sequence[Kind]) -> list[Line]:
    """:func:`line_of` for some kinds, in their order."""
    group = quota.group
    shared = {kind for kind in kinds if group is not None and not _limit(group, kind).unlimited}
    members = members_of(group) if group is not None and shared else []
    beside = {member.tenant_id for member in members} - {tenant.id}
    used = usage.used_of({tenant.id, *beside}, kinds)
    return [
        _line(quota, kind, used[kind][tenant.id], _sum(used[kind][each] for each in beside if kind in shared))
        for kind in kinds
    ]


def _line(quota: TenantQuota, kind: Kind, own: Amount, beside: Amount) -> Line:
    """What the tenant of ``quota`` holds is ``own``; the others of its group hold ``beside`` together."""
    limit, guaranteed = _limit(quota, kind), _guaranteed(quota, kind)
    group = quota.group
    if group is None:
        return Line(kind, own, limit, guaranteed)
    leaf = Pool(name="tenant", limit=limit, guaranteed=guaranteed, used=own)
    pool = Pool(
        name="group", limit=_limit(group, kind), guaranteed=_guaranteed(group, kind),
        children=(leaf, Pool(name="others", used=beside)),
    )  # fmt: skip
    firm = guaranteed if guaranteed.unlimited else pool.entitled(leaf.name)
    return Line(kind, own, limit, firm, left_above=pool.own_left)


def usage_of(tenant_ids: Collection[uuid.UUID]) -> dict[Kind, dict[uuid.UUID, Amount]]:
    """What each of them holds of each kind now."""
    return usage.used_of(tenant_ids, list(Kind))


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


def groups() -> list[Together]:
    """Every group with its limits, what its members hold together and each for itself (platform admins)."""
    rows = list(QuotaGroup.objects.order_by("name"))
    by_group = _members_by_group([group.id for group in rows])
    used = usage_of({member.tenant_id for members in by_group.values() for member in members})
    return [together(group, by_group.get(group.id, []), used) for group in rows]


def group_with_members(group: QuotaGroup) -> Together:
    """One of :func:`groups`."""
    members = members_of(group)
    return together(group, members, usage_of({member.tenant_id for member in members}))


def together(
    group: QuotaGroup, members: Sequence[TenantQuota], used: Mapping[Kind, Mapping[uuid.UUID, Amount]]
) -> Together:
    """``group`` with ``members`` in it, saved so or not; ``used`` counts all of them."""
    held = {kind: _sum(used[kind][member.tenant_id] for member in members) for kind in Kind}
    inside = []
    for member in members:
        member.group = group
        own = {kind: used[kind][member.tenant_id] for kind in Kind}
        lines = tuple(_line(member, kind, own[kind], held[kind].beyond(own[kind])) for kind in Kind)
        inside.append(GroupMember(tenant=member.tenant, lines=lines))
    lines = tuple(Line(kind, held[kind], _limit(group, kind), _guaranteed(group, kind)) for kind in Kind)
    return Together(group=group, lines=lines, members=tuple(inside))


def promised_in(group: QuotaGroup, kind: Kind, but: TenantQuota | None = None) -> Amount:
    """What the tenants of ``group`` (without ``but``) are guaranteed in numbers, together."""
    members = [member for member in members_of(group) if but is None or member.tenant_id != but.tenant_id]
    firm = (_guaranteed(member, kind) for member in members)
    return _sum(each for each in firm if not each.unlimited)


def endless_in(group: QuotaGroup, kind: Kind) -> list[str]:
    """Slugs of the tenants of ``group`` that are guaranteed all that their own limit allows, which is no number."""
    return [member.tenant.slug for member in members_of(group) if _guaranteed(member, kind).unlimited]


def _sum(amounts: Iterable[Amount]) -> Amount:
    return functools.reduce(Amount.plus, amounts, ZERO)


def _limit(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, kind.value))


def _guaranteed(row: Any, kind: Kind) -> Amount:
    return Amount.limit(getattr(row, f"guaranteed_{kind.value}")) if kind in GUARANTEED else UNLIMITED
