"""Whom a change of a quota would hurt, before it is made. Nothing is written."""

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from kernel import scope
from kernel.actors import Actor
from quotas import promises, selectors, services, usage
from quotas.amount import ZERO, Amount, Kind, Line
from quotas.models import QuotaGroup, TenantQuota
from quotas.usage import Held
from tenants import access
from tenants.models import Tenant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One kind before and after. ``over`` is held above the new limit (kept, but nothing more is given)."""

    before: Line
    after: Line

    @property
    def over(self) -> Amount:
        return self.after.used.beyond(self.after.limit)

    @property
    def newly_borrowed(self) -> Amount:
        """What the change makes reclaimable that was not before; of what cannot be guaranteed nothing is."""
        if self.after.kind not in selectors.GUARANTEED:
            return ZERO
        return self.after.borrowed.beyond(self.before.borrowed)

    @property
    def closes(self) -> bool:
        """True when something could be taken before the change and nothing can after it."""
        return self.after.left == ZERO != self.before.left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Borrower:
    """A tenant that holds more than it is guaranteed: it may have to give way for a larger guarantee of another."""

    slug: str
    gpu_millis: Amount
    hbm_bytes: Amount


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roof:
    """The group that a tenant would come into: what all its tenants hold together, without and with the new one."""

    name: str
    changes: tuple[Change, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squeezed:
    """A tenant of the group that could take nothing more of some kinds, or holds a part of what is above the limit."""

    slug: str
    changes: tuple[Change, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preview:
    """What a change of a tenant's or a group's limits would do.

    ``changes`` are the lines of whose limits change: a tenant, or a group (``of_group``). ``reclaimable`` are
    deployments that could lose replicas, first at the front. ``group`` is the one that a tenant would come into;
    ``members`` are the tenants beside it there, or those of the group whose limits change, as far as they would be
    worse off.
    """

    changes: tuple[Change, ...] = ()
    reclaimable: tuple[Held, ...] = ()
    may_lose: tuple[Borrower, ...] = ()
    group: Roof | None = None
    members: tuple[Squeezed, ...] = ()
    of_group: bool = False

    @property
    def hurts(self) -> bool:
        """True when somebody would be worse off. A group that is full hurts its members, if it has any."""
        if self.reclaimable or self.may_lose or self.members:
            return True
        above = (*self.changes, *(self.group.changes if self.group is not None else ()))
        if any(change.over != ZERO for change in above):
            return True
        return not self.of_group and any(change.closes for change in self.changes)


def preview(
    *,
    actor: Actor,
    tenant: Tenant,
    changes: Mapping[Kind, Amount],
    guaranteed: Mapping[Kind, Amount] | None = None,
    weight: int | None = None,
    group: str | None = None,
) -> Preview:
    """What :func:`quotas.services.set_quota` with the same arguments would mean; it refuses what that would refuse."""
    access.require_platform_admin(actor)
    quota = selectors.terms_of(tenant)
    before = {kind: selectors.line_of(quota, tenant, kind) for kind in Kind}
    weighed, was_in = quota.over_quota_weight, quota.group_id
    for name, value in services.values_of(changes, guaranteed or {}, weight).items():
        setattr(quota, name, value)
    if group is not None:
        quota.group = services.group_named(group) if group else None
    promises.check(quota)
    shown = tuple(Change(before=before[kind], after=selectors.line_of(quota, tenant, kind)) for kind in Kind)
    comes_in = quota.group if quota.group_id != was_in else None
    roof, members = _coming_into(comes_in, quota) if comes_in is not None else (None, ())
    heavier = quota.over_quota_weight > weighed
    return Preview(
        changes=shown,
        reclaimable=tuple(_reclaimable(tenant, shown, lighter=quota.over_quota_weight < weighed)),
        may_lose=tuple(_may_lose(quota, shown, comes_in, at_large=heavier or _promises_more(shown))),
        group=roof,
        members=members,
    )


def preview_group(*, actor: Actor, name: str, changes: Mapping[Kind, Amount], new: bool = False) -> Preview:
    """What :func:`quotas.services.set_group` with the same arguments would mean; it refuses what that would refuse.

    Guarantees stay whole: a limit that could not keep them is refused.
    """
    access.require_platform_admin(actor)
    group = services.group_to_be(name, new=new)
    members = selectors.members_of(group)
    used = selectors.usage_of({member.tenant_id for member in members})
    before = selectors.together(group, members, used)
    promises.check_group(services.changed(group, changes))
    after = selectors.together(group, members, used)
    shown = _changes(before.lines, after.lines)
    theirs = [
        (member.tenant, _changes(was.lines, member.lines))
        for was, member in zip(before.members, after.members, strict=True)
    ]
    rises = any(_promises_more(each) for _tenant, each in theirs)
    return Preview(
        changes=shown,
        reclaimable=tuple(held for tenant, each in theirs for held in _reclaimable(tenant, each)),
        may_lose=tuple(_borrowers({member.tenant_id for member in members})) if rises else (),
        members=_squeezed(shown, theirs),
        of_group=True,
    )


def preview_deletion(*, actor: Actor, name: str) -> Preview:
    """What :func:`quotas.services.delete_group` would mean: nothing for anybody, or it is refused while it has tenants.

    Raises:
        errors.Conflict: tenants are in it.
    """
    access.require_platform_admin(actor)
    services.check_empty(services.group_named(name))
    return Preview()


def _may_lose(
    quota: TenantQuota, changes: Sequence[Change], comes_in: QuotaGroup | None, *, at_large: bool
) -> list[Borrower]:
    """Who may have to give way for the tenant: ``at_large`` anybody who borrows, else who does in a group with a limit,
    where a part of its guarantee is still to be claimed."""
    if at_large:
        return _borrowers({quota.tenant_id})
    due = (change.after.kind for change in changes if not change.after.used.covers(change.after.guaranteed))
    if comes_in is None or not any(kind in selectors.GUARANTEED and getattr(comes_in, kind.value) >= 0 for kind in due):
        return []
    inside = {member.tenant.slug for member in selectors.members_of(comes_in)}
    return [one for one in _borrowers({quota.tenant_id}) if one.slug in inside]


def _coming_into(group: QuotaGroup, newcomer: TenantQuota) -> tuple[Roof, tuple[Squeezed, ...]]:
    """What the group holds with ``newcomer``, and the tenants in it for which there is no room then."""
    beside = selectors.members_of(group)
    used = selectors.usage_of({newcomer.tenant_id, *(member.tenant_id for member in beside)})
    before = selectors.together(group, beside, used)
    after = selectors.together(group, [*beside, newcomer], used)
    shown = _changes(before.lines, after.lines)
    theirs = [
        (member.tenant, _changes(was.lines, member.lines))
        for was, member in zip(before.members, after.members, strict=False)  # the newcomer is the last of ``after``
    ]
    return Roof(name=group.name, changes=shown), _squeezed(shown, theirs)


def _changes(before: Iterable[Line], after: Iterable[Line]) -> tuple[Change, ...]:
    return tuple(Change(before=was, after=is_now) for was, is_now in zip(before, after, strict=True))


def _squeezed(of_group: Iterable[Change], members: Iterable[tuple[Tenant, Sequence[Change]]]) -> tuple[Squeezed, ...]:
    """Members that could take nothing more of a kind, or hold some of a kind that the group holds too much of."""
    over = {change.after.kind for change in of_group if change.over != ZERO}
    found = []
    for tenant, changes in members:
        meant = tuple(
            change for change in changes if change.closes or (change.after.kind in over and change.after.used != ZERO)
        )
        if meant:
            found.append(Squeezed(slug=tenant.slug, changes=meant))
    return tuple(found)


def _promises_more(changes: Iterable[Change]) -> bool:
    return any(
        change.after.guaranteed != change.before.guaranteed and change.after.guaranteed.covers(change.before.guaranteed)
        for change in changes
    )


def _reclaimable(tenant: Tenant, changes: Sequence[Change], *, lighter: bool = False) -> list[Held]:
    """The tenant's deployments that others could claim back then and not now; ``lighter``: its weight is lowered."""
    if not _borrows(change.after for change in changes):
        return []
    decides = _deciding(change.after for change in changes)
    due = {
        change.after.kind: change.after.borrowed if lighter else change.newly_borrowed
        for change in changes
        if change.after is decides
    }
    return _until_covered(tenant, due)


def _borrows(lines: Iterable[Line]) -> bool:
    """True when something can be claimed back: it is above the guarantee that decides."""
    decides = _deciding(lines)
    return decides is not None and decides.borrowed != ZERO


def _deciding(lines: Iterable[Line]) -> Line | None:
    """Which guarantee says what is borrowed: that of GPUs where there is one, else that of device memory."""
    firm = {line.kind: line for line in lines if line.kind in selectors.GUARANTEED and not line.guaranteed.unlimited}
    return next((firm[kind] for kind in selectors.GUARANTEED if kind in firm), None)


def _until_covered(tenant: Tenant, due: dict[Kind, Amount]) -> list[Held]:
    """The deployments that hold what is ``due``, the first to give way first."""
    found = []
    for held in usage.holdings(tenant):
        takes = [kind for kind, amount in due.items() if amount != ZERO and held.amounts.get(kind, ZERO) != ZERO]
        if takes:
            found.append(held)
            due |= {kind: due[kind].beyond(held.amounts[kind]) for kind in takes}
    return found


def _borrowers(but: Collection[uuid.UUID]) -> list[Borrower]:
    """Tenants that hold more than is guaranteed to them."""
    with scope.all_tenants():
        rows = TenantQuota.objects.select_related("tenant").exclude(tenant_id__in=but).order_by("tenant__slug")
        tenants = [row.tenant for row in rows]
    found = []
    lines = selectors.lines_by_tenant(tenants)
    for tenant in tenants:
        if _borrows(lines[tenant.id]):
            gpu, hbm = (line.borrowed for line in lines[tenant.id] if line.kind in selectors.GUARANTEED)
            found.append(Borrower(slug=tenant.slug, gpu_millis=gpu, hbm_bytes=hbm))
    return found
