"""Whom a change of a quota would hurt, before it is made. Nothing is written."""

import dataclasses
from collections.abc import Iterable, Mapping

from kernel import scope
from kernel.actors import Actor
from quotas import selectors, services, usage
from quotas.amount import ZERO, Amount, Kind, Line
from quotas.models import TenantQuota
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Borrower:
    """A tenant that holds more than it is guaranteed: it may have to give way for a larger guarantee of another."""

    slug: str
    gpu_millis: Amount
    hbm_bytes: Amount


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preview:
    """``reclaimable`` are the tenant's deployments that could lose replicas, first at the front."""

    changes: tuple[Change, ...]
    reclaimable: tuple[Held, ...]
    may_lose: tuple[Borrower, ...]

    @property
    def hurts(self) -> bool:
        """True when somebody would be worse off."""
        return bool(self.reclaimable or self.may_lose) or any(change.over != ZERO for change in self.changes)


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
    weighed = quota.over_quota_weight
    for name, value in services.values_of(changes, guaranteed or {}, weight).items():
        setattr(quota, name, value)
    if group is not None:
        quota.group = services.group_named(group) if group else None
    services.check(quota)
    shown = tuple(Change(before=before[kind], after=selectors.line_of(quota, tenant, kind)) for kind in Kind)
    lighter = quota.over_quota_weight < weighed
    due = {change.after.kind: change.after.borrowed if lighter else change.newly_borrowed for change in shown}
    borrows = _borrows(change.after for change in shown)
    rises = quota.over_quota_weight > weighed or any(
        change.after.guaranteed != change.before.guaranteed and change.after.guaranteed.covers(change.before.guaranteed)
        for change in shown
    )
    return Preview(
        changes=shown,
        reclaimable=tuple(_until_covered(tenant, due)) if borrows else (),
        may_lose=tuple(_borrowers(tenant)) if rises else (),
    )


def _borrows(lines: Iterable[Line]) -> bool:
    """True when something can be claimed back: it is above every guarantee that there is."""
    firm = [line for line in lines if line.kind in selectors.GUARANTEED and not line.guaranteed.unlimited]
    return bool(firm) and all(line.borrowed != ZERO for line in firm)


def _until_covered(tenant: Tenant, due: dict[Kind, Amount]) -> list[Held]:
    """The deployments that hold what is ``due``, the first to give way first."""
    found = []
    for held in usage.holdings(tenant):
        takes = [kind for kind, amount in due.items() if amount != ZERO and held.amounts.get(kind, ZERO) != ZERO]
        if takes:
            found.append(held)
            due |= {kind: due[kind].beyond(held.amounts[kind]) for kind in takes}
    return found


def _borrowers(but: Tenant) -> list[Borrower]:
    """Tenants that hold more than is guaranteed to them."""
    with scope.all_tenants():
        rows = list(TenantQuota.objects.select_related("tenant", "group").exclude(tenant=but).order_by("tenant__slug"))
    found = []
    for row in rows:
        lines = [selectors.line_of(row, row.tenant, kind) for kind in selectors.GUARANTEED]
        if _borrows(lines):
            gpu, hbm = (line.borrowed for line in lines)
            found.append(Borrower(slug=row.tenant.slug, gpu_millis=gpu, hbm_bytes=hbm))
    return found
