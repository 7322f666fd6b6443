"""The waiting queue: by priority class, then by tenant, then by arrival. No torch.

The class decides first, then a :class:`~runtime.engine.causal.fairness.TenantOrder` says whose turn it is. A class
above may keep one below waiting as long as it has work; that is what classes are for, and why a caller needs
permission for those above ``default``. Inside a class nobody starves: whoever is served loses its turn.
"""

from collections import deque
from collections.abc import Collection, Iterator

from runtime.engine.causal.fairness import TenantOrder
from runtime.engine.causal.sequences import Sequence
from runtime.wire.inference import PRIORITIES


class WaitingQueue:
    """Sequences that wait for a slot. Its size is bounded by whoever adds to it."""

    def __init__(self, order: TenantOrder) -> None:
        self._order = order
        self._classes: list[dict[str, deque[Sequence]]] = [{} for _ in PRIORITIES]
        self._counts: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait: class by class, tenant by tenant, as their turns stand now."""
        for tenants in reversed(self._classes):
            for tenant in sorted(tenants, key=lambda name: (self._order.rank(name), tenants[name][0].arrival)):
                yield from tenants[tenant]

    @property
    def tenants(self) -> Collection[str]:
        """Those who have something waiting."""
        return self._counts.keys()

    def count_of(self, tenant: str) -> int:
        """How many sequences of ``tenant`` wait."""
        return self._counts.get(tenant, 0)

    def top_priority(self) -> int:
        """The highest class that has something waiting; -1 when nothing waits."""
        return max((priority for priority, tenants in enumerate(self._classes) if tenants), default=-1)

    def push(self, sequence: Sequence) -> None:
        """Put ``sequence`` where its arrival belongs among its tenant's."""
        self._order.arrive(sequence.tenant, sequence.weight, self._counts.keys())
        line = self._classes[sequence.priority].setdefault(sequence.tenant, deque())
        position = len(line)
        while position and line[position - 1].arrival > sequence.arrival:
            position -= 1
        line.insert(position, sequence)
        self._counts[sequence.tenant] = self._counts.get(sequence.tenant, 0) + 1
        self._size += 1

    def next(self, passed_over: Collection[str] = ()) -> Sequence | None:
        """The sequence whose turn it is, leaving out tenants that are ``passed_over``."""
        for tenants in reversed(self._classes):
            heads = [line[0] for tenant, line in tenants.items() if tenant not in passed_over]
            if heads:
                return min(heads, key=lambda head: (self._order.rank(head.tenant), head.arrival))
        return None

    def remove(self, sequence: Sequence) -> bool:
        """Take ``sequence`` out; False when it is not here."""
        tenants = self._classes[sequence.priority]
        line = tenants.get(sequence.tenant)
        if line is None:
            return False
        try:
            line.remove(sequence)
        except ValueError:
            return False
        if not line:
            del tenants[sequence.tenant]
        left = self._counts[sequence.tenant] - 1
        if left:
            self._counts[sequence.tenant] = left
        else:
            del self._counts[sequence.tenant]
        self._size -= 1
        return True

    def oldest(self) -> Sequence | None:
        """The one that came first of all that wait."""
        heads = (line[0] for tenants in self._classes for line in tenants.values())
        return min(heads, key=lambda head: head.arrival, default=None)

    def crowder(self, newcomer: Sequence, places: int) -> Sequence | None:
        """Who should leave a full queue for ``newcomer``, which needs ``places``; ``None`` when it is refused itself.

        The lowest class leaves first; inside the newcomer's own class the tenant with the most waiting per weight, if
        that is still more than the newcomer's would have. The newest of that tenant leaves, and only what has never
        had a slot.
        """
        for priority, tenants in enumerate(self._classes[: newcomer.priority + 1]):
            found = [line[-1] for line in tenants.values() if not line[-1].admitted]
            if not found:
                continue
            last = max(found, key=lambda seq: (self._crowding(seq.tenant), seq.arrival))
            if priority < newcomer.priority:
                return last
            fair = last.tenant != newcomer.tenant and self._crowding(last.tenant) > (
                (self.count_of(newcomer.tenant) + places) / newcomer.weight
            )
            return last if fair else None
        return None

    def _crowding(self, tenant: str) -> float:
        return self.count_of(tenant) / self._order.weight(tenant)
