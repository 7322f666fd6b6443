"""What tenants may hold, while a plan is made (pure): what it places or promises counts for the next that ask."""

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence

from scheduling.answers import Ask
from scheduling.borrowers import Amounts
from scheduling.need import Need, charge, in_order
from scheduling.snapshot import UNLIMITED, DeviceView, GroupView, HolderView, Snapshot, TenantView
from scheduling.words import size


class Allowances:
    """Quotas of the tenants and groups of a snapshot, by the products that its fleet has."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tenants = dict(snapshot.tenants)
        self._groups = dict(snapshot.groups)
        self._costly = _largest_per_product(snapshot)

    @property
    def tenants(self) -> Mapping[uuid.UUID, TenantView]:
        """As they stand now."""
        return self._tenants

    def group_of(self, ask: Ask) -> GroupView | None:
        """The group of the tenant that asks."""
        tenant = self._of(ask)
        return self._above(tenant) if tenant is not None else None

    def affordable(self, ask: Ask) -> tuple[list[Need], str]:
        """The needs that quota allows, best kind first; and the sentence where it forbids a kind that is here."""
        needs, tenant = in_order(ask.needs), self._of(ask)
        return (needs, "") if tenant is None else self._within(tenant.under(self._above(tenant)), needs)

    def claimed(self, ask: Ask, affordable: Sequence[Need]) -> list[Need]:
        """The needs that are guaranteed, and that the tenant's group does not allow: others there have borrowed."""
        tenant = self._of(ask)
        if tenant is None or self._above(tenant) is None:
            return []
        firm, _over = self._within(tenant.firmly(), in_order(ask.needs))
        due = [need for need in firm if tenant.within_guarantee(need.total_bytes, self._least_millis([need]))]
        return [need for need in due if need not in affordable]

    def standing(self, ask: Ask) -> tuple[int, float]:
        """Whose turn it is: within the guarantee first (0), then who borrows least by weight."""
        tenant = self._of(ask)
        if tenant is None or not ask.needs:
            return (0, 0.0)
        more = self._least(ask)
        return (0, 0.0) if tenant.within_guarantee(*more) else (1, tenant.over_share(*more))

    def keeps(self, ask: Ask) -> bool:
        """True when no other tenant could claim what it gets: not all of that would be borrowed."""
        tenant = self._of(ask)
        if tenant is None or not ask.needs:
            return True
        more = self._least(ask)
        return not tenant.holding(*more).borrowed(*more)

    # --- what changes

    def book(self, ask: Ask, more: Amounts) -> None:
        """``ask`` has its places: so much is held."""
        if (tenant := self._of(ask)) is not None:
            self._hold(tenant, more)

    def promise(self, ask: Ask, more: Amounts, victims: Iterable[HolderView], evicts: Iterable[HolderView]) -> None:
        """``victims`` go for ``ask``, ``evicts`` of them without a place elsewhere: what it will hold counts already,
        and what ends is nobody's to claim again."""
        for victim in victims:
            if victim.tenant_id in self._tenants:
                self._tenants[victim.tenant_id] = self._tenants[victim.tenant_id].passing(*victim.released)
        for victim in evicts:  # who is moved holds as much elsewhere
            theirs = self._tenants.get(victim.tenant_id)
            if theirs is not None and (group := self._above(theirs)) is not None:
                self._groups[group.id] = group.ending(*victim.released)
        if (tenant := self._of(ask)) is not None:
            self._hold(tenant.passing(*more), more)

    def _hold(self, tenant: TenantView, more: Amounts) -> None:
        self._tenants[tenant.id] = tenant.holding(*more)
        if (group := self._above(tenant)) is not None:
            self._groups[group.id] = group.holding(*more)

    # --- what counts

    def _of(self, ask: Ask) -> TenantView | None:
        return self._tenants.get(ask.tenant_id) if ask.tenant_id is not None else None

    def _above(self, tenant: TenantView) -> GroupView | None:
        return self._groups.get(tenant.group) if tenant.group is not None else None

    def _within(self, tenant: TenantView, needs: list[Need]) -> tuple[list[Need], str]:
        allowed = [need for need in needs if tenant.within_limit(need.total_bytes)]
        here = self._kinds()
        if tenant.limit_millis != UNLIMITED and allowed:
            counted = [each for need in allowed if (each := self._within_gpus(tenant, need)) is not None]
            if not any(need.kind in here for need in counted) and len(counted) < len(allowed):
                return [], _over_gpus(tenant, self._least_millis(allowed))
            left = {need.kind for need in counted}
            cut = [need for need in allowed if need.kind in here and need.kind not in left]
            # what is left may run on what counts no GPUs (a CPU): where it does not, this is why there is no GPU for it
            return counted, _over_gpus(tenant, self._least_millis(cut)) if cut else ""
        left = {need.kind for need in allowed}
        cut = [need for need in needs if need.kind in here and need.kind not in left]
        if allowed or not needs:
            return allowed, _over_quota(tenant, cut) if cut else ""
        return allowed, _over_quota(tenant, cut or needs)

    def _within_gpus(self, tenant: TenantView, need: Need) -> Need | None:
        """``need``, bound to the products on which it counts no more of GPUs than the tenant may hold."""
        costs = self._millis_by_product(need)
        fine = {product for product, cost in costs.items() if tenant.within_limit(0, cost)}
        if len(fine) == len(costs):
            return need
        allowed = frozenset(fine & need.products) if need.products else frozenset(fine)
        return dataclasses.replace(need, products=allowed) if allowed else None

    def _millis_by_product(self, need: Need) -> dict[str, int]:
        ranks = need.devices * need.stages
        of_kind = {product: devices for (kind, product), devices in self._costly.items() if kind == need.kind}
        named = {product: devices for product, devices in of_kind.items() if product in need.products}
        return {
            product: max(charge(need, device) for device in devices) * ranks
            for product, devices in (named or of_kind).items()
        }

    def _least_millis(self, needs: Sequence[Need]) -> int:
        return min((cost for need in needs for cost in self._millis_by_product(need).values()), default=0)

    def _least(self, ask: Ask) -> Amounts:
        """Bytes and thousandths of a GPU that it will hold at least, on the best kind that is here."""
        here, needs = self._kinds(), in_order(ask.needs)
        need = next((each for each in needs if each.kind in here), needs[0])
        return need.total_bytes, min(self._millis_by_product(need).values(), default=0)

    def _kinds(self) -> set[str]:
        return {kind for kind, _product in self._costly}


def _largest_per_product(snapshot: Snapshot) -> dict[tuple[str, str], list[DeviceView]]:
    """One device of each size by kind and product: quota counts a part of a GPU by its share of the memory."""
    found: dict[tuple[str, str], dict[tuple[int, int], DeviceView]] = {}
    for device in snapshot.devices:
        found.setdefault((device.kind, device.product), {})[device.memory_bytes, device.gpu_millis] = device
    return {key: list(sizes.values()) for key, sizes in found.items()}


def _over_gpus(tenant: TenantView, least: int) -> str:
    return (
        f"The quota on GPUs is {tenant.limit_millis / 1000:g}; {tenant.held_millis / 1000:g} are held and "
        f"{least / 1000:g} more are asked for."
    )


def _over_quota(tenant: TenantView, needs: Sequence[Need]) -> str:
    least = min(need.total_bytes for need in needs)
    return (
        f"The quota on device memory is {size(tenant.limit_bytes)}; {size(tenant.held_bytes)} are held and "
        f"{size(least)} more are asked for."
    )
