"""Who is served next: the order among tenants, as an object the scheduler asks. Pure; no torch, no clock.

:class:`VirtualTokenCounters` is the order in use. Every tenant has a counter of the service it got, and the waiting
tenant with the smallest one is next: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm
2 with weights. Nobody is held back while there is room (work conserving), and a tenant gains nothing by being idle:
when it has nothing *waiting*, even if it still has something running, its counter is lifted on arrival to the
smallest one among the tenants that wait, or to that of the tenant served last when none waits.

A prompt is charged when it is admitted, less what the prefix cache spares (caches are salted by tenant, so only its
own earlier work can make a tenant cheaper), a generated token when it is there. What is computed again after a
preemption is the engine's doing and is not charged; prompt tokens that a cancelled sequence never read are taken back.

:class:`Arrivals` and :class:`LeastCounter` are the two orders it is measured against.
"""

import math
from collections import OrderedDict
from collections.abc import Collection
from typing import Final, Protocol

INPUT_COST: Final = 1.0
OUTPUT_COST: Final = 2.0
# Tenants that are remembered while they have nothing here: with more, the longest absent starts anew.
MAX_IDLE_TENANTS: Final = 4096


class TenantOrder(Protocol):
    """What the scheduler asks. ``waiting`` are the tenants that have a sequence in the queue."""

    def arrive(self, tenant: str, weight: float, waiting: Collection[str]) -> None:
        """A sequence of ``tenant`` is about to join the queue."""

    def charge(self, tenant: str, cost: float) -> None:
        """``tenant`` got service worth ``cost`` (negative: taken back)."""

    def served(self, tenant: str) -> None:
        """A sequence of ``tenant`` has left the queue for a slot."""

    def rank(self, tenant: str) -> float:
        """The smallest is next; equal ones go by arrival."""

    def weight(self, tenant: str) -> float:
        """Its share relative to others."""


class LeastCounter:
    """Least counter first: service since the start. Who was away catches up on everybody, which is its flaw."""

    def __init__(self) -> None:
        self._counters: OrderedDict[str, float] = OrderedDict()  # least recently seen first
        self._weights: dict[str, float] = {}

    def arrive(self, tenant: str, weight: float, waiting: Collection[str]) -> None:
        self._counters.setdefault(tenant, 0.0)
        self._counters.move_to_end(tenant)
        self._weights[tenant] = weight
        if len(self._counters) > MAX_IDLE_TENANTS + len(waiting):
            oldest = next(name for name in self._counters if name not in waiting)
            del self._counters[oldest], self._weights[oldest]

    def charge(self, tenant: str, cost: float) -> None:
        counter = self._counters.get(tenant)
        if counter is not None:
            self._counters[tenant] = counter + cost / self._weights[tenant]

    def served(self, tenant: str) -> None:
        return

    def rank(self, tenant: str) -> float:
        return self._counters.get(tenant, 0.0)

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)


class VirtualTokenCounters(LeastCounter):
    """Least counter first with lifting: idle time is no credit."""

    def __init__(self) -> None:
        super().__init__()
        self._last_served = ""

    def arrive(self, tenant: str, weight: float, waiting: Collection[str]) -> None:
        super().arrive(tenant, weight, waiting)
        if tenant in waiting:
            return
        if waiting:
            floor = min(self.rank(name) for name in waiting)
        else:
            floor = self._counters.get(self._last_served, -math.inf)
        self._counters[tenant] = max(self._counters[tenant], floor)

    def served(self, tenant: str) -> None:
        self._last_served = tenant


class Arrivals(LeastCounter):
    """First come, first served, whoever comes."""

    def rank(self, tenant: str) -> float:
        return 0.0
