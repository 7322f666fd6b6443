"""Verbs on quotas. Everything that takes capacity asks :func:`require` in the transaction in which it takes it."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from kernel import clock, scope
from kernel import errors as platform_errors
from kernel.actors import Actor
from ledger import hints, outbox
from ledger.record import record
from quotas import errors, promises, selectors
from quotas.amount import Amount, Kind
from quotas.models import GROUP_NAME, QuotaGroup, TenantQuota
from quotas.tree import MAX_WEIGHT
from tenants import access
from tenants.models import Tenant

MAX_GROUPS = 200
#: Outbox topic: limits have changed; what waits may have a place now, or a claim.
CHANGED = "quotas.changed"


def require(
    tenant: Tenant, *, replicas: int = 0, hbm_bytes: int = 0, storage_bytes: int = 0, gpu_millis: int = 0
) -> None:
    """Refuse unless ``tenant`` and its group may hold that much more than they hold now.

    Locks the quota rows of both until the surrounding transaction ends, so that two takers cannot both fit into what
    is left for one. Call it before the rows that take the capacity are written.

    Raises:
        kernel.errors.QuotaExceeded: ``data`` has quota, limit, used, asked.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("quota is asked for in the transaction that takes the capacity")
    asked = {
        Kind.GPU_MILLIS: gpu_millis, Kind.REPLICAS: replicas, Kind.HBM_BYTES: hbm_bytes,
        Kind.STORAGE_BYTES: storage_bytes,
    }  # fmt: skip
    wanted = {kind: Amount.of(number) for kind, number in asked.items() if number}
    if not wanted:
        return
    quota = _locked(tenant)
    if quota.group is not None:  # two tenants of a group meet here, not before
        quota.group = _locked_group(quota.group)
    bounded = [kind for kind in wanted if selectors.is_bounded(quota, kind)]  # what is not is always allowed
    for line in selectors.lines_in(quota, tenant, bounded):
        if not line.allows(wanted[line.kind]):
            raise errors.exceeded(line, wanted[line.kind])


def check_storage(tenant: Tenant, size_bytes: int) -> None:
    """What the catalog asks before it takes ``size_bytes`` of an upload: :func:`require` for storage alone."""
    with transaction.atomic():
        require(tenant, storage_bytes=size_bytes)


def set_quota(
    *,
    actor: Actor,
    tenant: Tenant,
    changes: Mapping[Kind, Amount],
    guaranteed: Mapping[Kind, Amount] | None = None,
    weight: int | None = None,
    group: str | None = None,
) -> TenantQuota:
    """Set what is named, keep the rest; platform admins only. ``group`` "" takes the tenant out of its group.

    A limit may be set below what is in use: nothing is taken away, and nothing more is given. What is held above a
    lowered guarantee may be claimed back by others.

    Raises:
        errors.InvalidInput: a guarantee above its limit, more guaranteed than the group may hold, or "all that the
            limit allows" in a group that has a limit.
        errors.NotFound: there is no such group.
    """
    access.require_platform_admin(actor)
    values = values_of(changes, guaranteed or {}, weight)
    with transaction.atomic(), scope.tenant(tenant.id):
        quota = _locked(tenant)
        if group is not None:
            values["group"] = group_named(group) if group else None
        before = {name: _plain(getattr(quota, name)) for name in values}
        for name, value in values.items():
            setattr(quota, name, value)
        if quota.group is not None:  # two that promise, or one that promises and one that lowers the limit, meet here
            quota.group = _locked_group(quota.group)
        promises.check(quota)
        quota.updated_at = clock.now()
        quota.save()
        after = {name: _plain(value) for name, value in values.items()}
        _note(actor, "quota.set", "quota", tenant.id, tenant.slug, before, after, tenant_id=tenant.id)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "quota"})
    return quota


def values_of(changes: Mapping[Kind, Amount], guaranteed: Mapping[Kind, Amount], weight: int | None) -> dict[str, Any]:
    """The fields of a quota's row and their values."""
    values: dict[str, Any] = {kind.value: amount.as_number() for kind, amount in changes.items()}
    for kind, amount in guaranteed.items():
        if kind not in selectors.GUARANTEED:
            raise platform_errors.InvalidInput(
                f"Nothing can be guaranteed of {kind.value}.", data={"field": kind.value}
            )
        values[f"guaranteed_{kind.value}"] = amount.as_number()
    if weight is not None:
        if not 0 <= weight <= MAX_WEIGHT:
            raise platform_errors.InvalidInput(
                f"The weight is a number from 0 to {MAX_WEIGHT}.", data={"field": "over_quota_weight"}
            )
        values["over_quota_weight"] = weight
    return values


def set_group(*, actor: Actor, name: str, changes: Mapping[Kind, Amount], new: bool = False) -> QuotaGroup:
    """Make a group of tenants or change its limits; what is not named stays (unlimited at first). Platform admins.

    A limit may be set below what its tenants hold: nothing is taken away, and nothing more is given. With ``new`` there
    may be no group of that name yet.

    Raises:
        errors.InvalidInput: no name for a group, a limit below what is guaranteed in the group, or one while tenants
            of it are guaranteed all that their own limit allows.
        errors.Conflict: there are :data:`MAX_GROUPS` already, or with ``new`` one of that name.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        group = group_to_be(name, new=new, lock=True)
        is_new = group._state.adding
        before = {kind.value: getattr(group, kind.value) for kind in changes}
        changed(group, changes)
        promises.check_group(group)
        group.updated_at = clock.now()
        try:
            with transaction.atomic():
                group.save()
        except IntegrityError:
            raise platform_errors.StaleTransition(f"Somebody made a group {name} just now. Look again.") from None
        after = {kind.value: amount.as_number() for kind, amount in changes.items()}
        action = "quota_group.created" if is_new else "quota_group.set"
        _note(actor, action, "quota_group", group.id, name, before, after)
    return group


def group_to_be(name: str, *, new: bool = False, lock: bool = False) -> QuotaGroup:
    """The group that :func:`set_group` would change; one that is not saved where there is none of that name yet.

    Raises:
        errors.InvalidInput, errors.Conflict: as :func:`set_group`.
    """
    try:
        GROUP_NAME(name)
    except ValidationError:
        raise platform_errors.InvalidInput(str(GROUP_NAME.message), data={"field": "group"}) from None
    rows = QuotaGroup.objects.select_for_update(no_key=True) if lock else QuotaGroup.objects.all()
    group = rows.filter(name=name).first()
    if group is not None and new:
        raise platform_errors.Conflict(
            f"There is a group {name} already. Choose another name.", code="quota_group_exists", data={"field": "group"}
        )
    if group is None and QuotaGroup.objects.count() >= MAX_GROUPS:
        raise platform_errors.Conflict(f"There are {MAX_GROUPS} groups already.", code="too_many_groups")
    return group or QuotaGroup(name=name, hbm_bytes=-1, replicas=-1, storage_bytes=-1)


def changed(group: QuotaGroup, changes: Mapping[Kind, Amount]) -> QuotaGroup:
    """``group`` with other limits, not saved."""
    for kind, amount in changes.items():
        setattr(group, kind.value, amount.as_number())
    return group


def delete_group(*, actor: Actor, name: str) -> None:
    """Forget a group that has no members.

    Raises:
        errors.Conflict: tenants are in it; ``data`` has them as ``members``.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        group = QuotaGroup.objects.select_for_update().get(id=group_named(name).id)  # nobody comes in meanwhile
        check_empty(group)
        key = group.id
        group.delete()
        _note(actor, "quota_group.deleted", "quota_group", key, name, {}, {})


def check_empty(group: QuotaGroup) -> None:
    """Raise :class:`kernel.errors.Conflict`, which names them, where tenants are in ``group``."""
    members = [member.tenant.slug for member in selectors.members_of(group)]
    if members:
        raise platform_errors.Conflict(
            f"Tenants are in the group {group.name}: {errors.named(members)}. Take them out of it first.",
            code="quota_group_in_use",
            data={"members": members},
        )


def group_named(name: str) -> QuotaGroup:
    """The group of that name.

    Raises:
        errors.NotFound: there is none.
    """
    group = QuotaGroup.objects.filter(name=name[:40]).first()
    if group is None:
        raise _no_group(name)
    return group


def _no_group(name: str) -> platform_errors.NotFound:
    return platform_errors.NotFound(f"There is no group {name[:40]!r}.", code="quota_group_not_found")


def _note(
    actor: Actor, action: str, kind: str, key: Any, label: str, before: Any, after: Any, tenant_id: Any = None
) -> None:
    record(
        actor=actor, action=action, subject_kind=kind, subject_id=key, tenant_id=tenant_id, subject_label=label,
        data={"before": before, "after": after},
    )  # fmt: skip
    hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "quota"})
    outbox.emit(CHANGED, {})


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, QuotaGroup) else value


def _locked(tenant: Tenant) -> TenantQuota:
    """The tenant's row, made from the defaults when it is missing, locked."""
    with scope.tenant(tenant.id):
        rows = TenantQuota.objects.select_for_update(of=("self",), no_key=True).select_related("group")
        found = rows.filter(tenant=tenant).first()
        if found is None:  # made by whoever needs it first, maybe somebody else just now
            values = {**selectors.defaults(), "updated_at": clock.now()}
            TenantQuota.objects.get_or_create(tenant=tenant, defaults=values)
            found = rows.get(tenant=tenant)
        return found


def _locked_group(group: QuotaGroup) -> QuotaGroup:
    """The group's row, locked until the transaction ends: after the tenant's row, always.

    Raises:
        errors.NotFound: it was deleted just now.
    """
    found = QuotaGroup.objects.select_for_update(no_key=True).filter(id=group.id).first()
    if found is None:
        raise _no_group(group.name)
    return found


def lock(tenant: Tenant) -> TenantQuota:
    """The tenant's row, made from the defaults when it is missing, locked until the caller's transaction ends."""
    return _locked(tenant)
