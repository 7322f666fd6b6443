"""Who may be taken away for one ask (pure): by priority, and what is borrowed above a guarantee.

A replica may end when
- it is of the deployment that asks, and serves nobody because one of its nodes is lost; or
- it has a lower priority than the one that asks, and belongs to the same tenant; or
- its tenant keeps its whole guarantee without it (what it holds above that is borrowed), and it has a lower priority,
  or the tenant that asks stays within its own guarantee,
  or it borrows less afterwards, by weight, than the other still does, and the priority is no higher.
The guarantee of another tenant is never touched. Nor does a priority, which tenants choose for themselves, keep what
was borrowed from one that asks for what is guaranteed to it.
"""

import uuid
from collections.abc import Mapping

from scheduling.answers import Ask
from scheduling.board import Board
from scheduling.need import Need, charge
from scheduling.snapshot import HolderView, TenantView

Tenants = Mapping[uuid.UUID, TenantView]


class Claim:
    """Whether one more may go, given those that go already."""

    def __init__(self, ask: Ask, need: Need, tenants: Tenants, entitled: bool, millis: int = 0) -> None:
        self._ask = ask
        self._millis = millis
        self._tenants = tenants
        self._asking = tenants.get(ask.tenant_id) if ask.tenant_id is not None else None
        self._need, self._entitled = need, entitled
        self._released: dict[uuid.UUID, tuple[int, int]] = {}

    def copy(self) -> "Claim":
        """The same so far; what it allows further on does not count here."""
        made = Claim(self._ask, self._need, self._tenants, self._entitled, self._millis)
        made._released = dict(self._released)
        return made

    def allows(self, holder: HolderView) -> bool:
        """True when ``holder`` may go beside the others."""
        if holder.stranded and holder.deployment_id == self._ask.deployment_id:
            return True
        lower = holder.priority < self._ask.priority
        if holder.tenant_id == self._ask.tenant_id:
            return lower
        tenant = self._tenants.get(holder.tenant_id)
        released = self._with(holder)
        if tenant is None or not (tenant.borrowed(*released) and tenant.borrowed(*holder.released)):
            return False
        if lower or self._entitled:
            return True
        return holder.priority == self._ask.priority and self._borrows_less(tenant, *released)

    def above(self, tenant_id: uuid.UUID) -> float:
        """How far a tenant is above its guarantee without those that go, in GPUs, by its weight."""
        size, millis = self._released.get(tenant_id, (0, 0))
        tenant = self._tenants.get(tenant_id)
        return _left_above(tenant, size, millis) if tenant is not None else 0.0

    def goes(self, holder: HolderView) -> None:
        """Count ``holder`` among those that go."""
        self._released[holder.tenant_id] = self._with(holder)

    def _with(self, holder: HolderView) -> tuple[int, int]:
        """Bytes and thousandths of a GPU that its tenant would have released then."""
        size, millis = self._released.get(holder.tenant_id, (0, 0))
        return size + holder.released[0], millis + holder.released[1]

    def _borrows_less(self, tenant: TenantView, size: int, millis: int) -> bool:
        """Once all is done the one that asks is no further above its guarantee: it cannot be taken back likewise."""
        if self._asking is None or not tenant.borrows or not self._asking.weight:
            return False
        mine = self._asking.over_share(self._need.total_bytes, self._millis)
        return mine <= _left_above(tenant, size, millis)


def _left_above(tenant: TenantView, size: int, millis: int) -> float:
    return tenant.over_share(-size - tenant.passing_bytes, -millis - tenant.passing_millis)


def claim_of(board: Board, ask: Ask, need: Need, tenants: Tenants) -> Claim:
    """The claim of ``ask`` for one of its needs. It is entitled where its tenant stays within its guarantee, at the
    least that ``need`` counts of GPUs."""
    asking = tenants.get(ask.tenant_id) if ask.tenant_id is not None else None
    if asking is None:
        return Claim(ask, need, tenants, entitled=False)
    ranks = need.devices * need.stages
    costs = [charge(need, device) for each in board.bins for device in each.devices if device.kind == need.kind]
    millis = min(costs, default=0) * ranks
    return Claim(ask, need, tenants, asking.within_guarantee(need.total_bytes, millis), millis)
