"""Requests held back for one deployment: bounded, fair among tenants, least critical shed first. Pure.

Only what a deployment cannot take now waits here: it is cold, asleep, or every replica is at its limit. The order among
requests that an engine has is the engine's.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from runtime.wire.inference import PRIORITIES

RANKS: Final = {name: rank for rank, name in enumerate(PRIORITIES)}
# How much of the room a class may fill, so that a newcomer of a higher one need not push anybody out.
_SHARE: Final = {0: 0.5, 1: 0.8, 2: 1.0}
_LEARN: Final = 0.2
_MOST_WAIT: Final = 60.0
_MOST_TAGS: Final = 1024


class Waiter:
    """One held request. ``cost`` is in tokens; ``until`` (monotonic seconds) is when it will wait no longer."""

    __slots__ = ("cost", "rank", "since", "tenant_id", "until", "weight")

    def __init__(
        self, tenant_id: str, *, rank: int, weight: float, cost: float, since: float, until: float = math.inf
    ) -> None:
        self.tenant_id = tenant_id
        self.rank = rank
        self.weight = max(weight, 1e-6)
        self.cost = cost
        self.since = since
        self.until = until


class Line:
    """The held requests of one deployment: a class after the other, tenants within a class by weighted fair shares.

    ``most`` bounds them all and may be changed; what waits already may go on waiting.
    """

    def __init__(self, *, most: int, most_per_tenant: int) -> None:
        self.most = most
        self._most_per_tenant = most_per_tenant
        self._queues: list[dict[str, deque[Waiter]]] = [{} for _ in PRIORITIES]
        self._tags: dict[tuple[int, str], float] = {}  # virtual time up to which a tenant has had its share
        self._virtual = [0.0 for _ in PRIORITIES]
        self._size = 0
        # Of each class: seconds between two that went on, smoothed; and since when its first waits for its turn.
        self._gaps: list[float | None] = [None for _ in PRIORITIES]
        self._turns: list[float | None] = [None for _ in PRIORITIES]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiter]:
        for queues in self._queues:
            for queue in queues.values():
                yield from queue

    def push(self, waiter: Waiter) -> Waiter | None:
        """Take ``waiter`` in; return who has to leave instead: another, less critical, or ``waiter`` itself."""
        shed: Waiter | None = None
        own = [queues[waiter.tenant_id] for queues in self._queues if waiter.tenant_id in queues]
        if sum(map(len, own)) >= self._most_per_tenant:
            shed = self._least_of(waiter.tenant_id, waiter.rank)
        elif self._size >= self.most:
            shed = self.least(waiter.rank)
        elif sum(map(len, self._queues[waiter.rank].values())) >= self.most * _SHARE[waiter.rank]:
            return waiter
        else:
            self._append(waiter)
            return None
        if shed is None:
            return waiter
        self.remove(shed)
        self._append(waiter)
        return shed

    def first(self) -> Waiter | None:
        """Whose turn it is: of the most critical class, the tenant that has had least of its share."""
        for rank in range(len(PRIORITIES) - 1, -1, -1):
            queues = self._queues[rank]
            if queues:
                tenant_id = min(queues, key=lambda tenant_id: self._tags[rank, tenant_id])
                return queues[tenant_id][0]
        return None

    def serve(self, waiter: Waiter, now: float) -> None:
        """``waiter`` goes on to an engine."""
        turn, gap = self._turns[waiter.rank], self._gaps[waiter.rank]
        tag = self._tags[waiter.rank, waiter.tenant_id]
        self._virtual[waiter.rank] = max(self._virtual[waiter.rank], tag)
        self._tags[waiter.rank, waiter.tenant_id] = tag + waiter.cost / waiter.weight
        self.remove(waiter)
        if len(self._tags) > _MOST_TAGS:  # who has had no more than anybody is remembered for nothing
            self._tags = {key: tag for key, tag in self._tags.items() if tag > self._virtual[key[0]] or self._has(key)}
        if turn is not None:
            self._gaps[waiter.rank] = now - turn if gap is None else gap + _LEARN * (now - turn - gap)
        self._turns[waiter.rank] = now if self._queues[waiter.rank] else None

    def remove(self, waiter: Waiter) -> None:
        """``waiter`` leaves; nothing happens when it has left."""
        queue = self._queues[waiter.rank].get(waiter.tenant_id)
        if queue is None or waiter not in queue:
            return
        queue.remove(waiter)
        self._size -= 1
        if not queue:
            del self._queues[waiter.rank][waiter.tenant_id]
            if not self._queues[waiter.rank]:  # nobody of the class waits: turns and shares begin anew
                self._turns[waiter.rank] = None
                self._virtual[waiter.rank] = 0.0
                self._tags = {key: tag for key, tag in self._tags.items() if key[0] != waiter.rank}

    def wait(self, rank: int, now: float) -> float | None:
        """Seconds that a newcomer of ``rank`` would wait at the pace of its class; ``None`` when none is known.

        A class that gets no turn because of those above it has a pace too: it shows in how long its first has waited.
        """
        gap = self._gap(rank, now)
        ahead = sum(map(len, self._queues[rank].values()))
        return min(_MOST_WAIT, (ahead + 1) * gap) if gap else None

    def least(self, rank: int) -> Waiter | None:
        """The newest request of the tenant that has most waiting in the least critical class below ``rank``."""
        for queues in self._queues[:rank]:
            if queues:
                return max(queues.values(), key=len)[-1]
        return None

    def _has(self, key: tuple[int, str]) -> bool:
        return key[1] in self._queues[key[0]]

    def hopeless(self, now: float) -> list[Waiter]:
        """Those who will not get their turn in time at the pace of their class, the newest first."""
        found: list[Waiter] = []
        for rank, queues in enumerate(self._queues):
            gap = self._gap(rank, now)
            if not gap or not queues:
                continue
            waiting = sorted((waiter for queue in queues.values() for waiter in queue), key=lambda each: each.since)
            while waiting and len(waiting) * gap > waiting[-1].until - now:
                found.append(waiting.pop())
        return found

    def _gap(self, rank: int, now: float) -> float:
        """Seconds between two turns of a class; without any, for how long its first has waited."""
        gap, turn = self._gaps[rank] or 0.0, self._turns[rank]
        return gap if turn is None else max(gap, now - turn)

    def _append(self, waiter: Waiter) -> None:
        key = (waiter.rank, waiter.tenant_id)
        queues = self._queues[waiter.rank]
        if not queues:
            self._turns[waiter.rank] = waiter.since
        if waiter.tenant_id not in queues:
            queues[waiter.tenant_id] = deque()
            self._tags[key] = max(self._tags.get(key, 0.0), self._virtual[waiter.rank])
        queues[waiter.tenant_id].append(waiter)
        self._size += 1

    def _least_of(self, tenant_id: str, rank: int) -> Waiter | None:
        for queues in self._queues[:rank]:
            if tenant_id in queues:
                return queues[tenant_id][-1]
        return None
