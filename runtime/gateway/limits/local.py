"""Limits counted in this process: all there is without shared counters, a gateway's share while they are gone."""

from collections.abc import Callable
from typing import Final

from runtime.base.clock import Clock
from runtime.gateway.limits.terms import BudgetTerm, Demand, Lease, Standing, Subject, Verdict
from runtime.gateway.limits.window import Usage, bucket_at
from runtime.wire.routes import TokenPrice

_MAX_SUBJECTS: Final = 100_000


class Purse:
    """One budget's counter. ``base`` is what others had used of it when it was last known."""

    __slots__ = ("base", "held", "used")

    def __init__(self, base: int) -> None:
        self.base = base
        self.used = 0
        self.held = 0


class LocalBook:
    """Minutes, parallel requests and budgets of this process. ``share`` tells how many gateways divide a limit."""

    def __init__(self, clock: Clock, share: Callable[[], int]) -> None:
        self._clock = clock
        self._share = share
        self._usage: dict[str, Usage] = {}
        self._purses: dict[str, Purse] = {}

    def check(self, subjects: tuple[Subject, ...], holds: list[int], tokens: int) -> Verdict | None:
        """The first limit that refuses, or ``None``. Nothing is taken."""
        now, parts = self._clock.monotonic(), max(1, self._share())
        for index, subject in enumerate(subjects):
            usage, limits = self._of(subject.id, now), subject.limits
            most = limits.max_parallel_requests
            if most is not None and usage.parallel >= _part(most, parts):
                return Verdict(index, "parallel", usage.parallel, 1.0)
            most = limits.requests_per_minute
            if most is not None and (wait := usage.wait_for(_part(most, parts), 1, now, tokens=False)):
                return Verdict(index, "requests", usage.requests, wait)
            most = limits.tokens_per_minute
            if most is not None and (wait := usage.wait_for(most // parts, tokens, now, tokens=True)):
                return Verdict(index, "tokens", usage.tokens, wait)
            term = subject.budget
            if term is not None and term.budget.blocks:
                purse = self._purse(term)
                left = max(0, term.limit - purse.base) // parts
                if purse.used + purse.held + holds[index] > left:
                    return Verdict(index, "budget", purse.base + purse.used, float(purse.held), holds[index])
        return None

    def take(self, lease: Lease) -> None:
        """Count an admitted request."""
        now = self._clock.monotonic()
        lease.local_bucket = bucket_at(now)
        for subject, hold in zip(lease.subjects, lease.holds, strict=True):
            usage = self._of(subject.id, now)
            usage.parallel += 1
            usage.add(lease.local_bucket, 1, lease.tokens)
            if subject.budget is not None:
                self._purse(subject.budget).held += hold

    def free(self, lease: Lease) -> None:
        """Give back the parallel slot alone."""
        now = self._clock.monotonic()
        for subject in lease.subjects:
            usage = self._of(subject.id, now)
            usage.parallel = max(0, usage.parallel - 1)

    def give_back(self, lease: Lease, tokens: int, spent: list[int]) -> None:
        """Replace what the lease took by what it came to."""
        now = self._clock.monotonic()
        for subject, hold, used in zip(lease.subjects, lease.holds, spent, strict=True):
            usage = self._of(subject.id, now)
            if not lease.freed and usage.parallel:
                usage.parallel -= 1
            usage.add(lease.local_bucket, 0, tokens - lease.tokens)
            if subject.budget is not None:
                purse = self._purse(subject.budget)
                purse.held = max(0, purse.held - hold)
                purse.used += used

    def correct(self, lease: Lease, tokens: int, holds: list[int]) -> None:
        """The bound became tighter while the request runs: the lease still holds the old one."""
        now = self._clock.monotonic()
        for subject, old, new in zip(lease.subjects, lease.holds, holds, strict=True):
            self._of(subject.id, now).add(lease.local_bucket, 0, tokens - lease.tokens)
            if subject.budget is not None:
                purse = self._purse(subject.budget)
                purse.held = max(0, purse.held + new - old)

    def standings(self, subjects: tuple[Subject, ...]) -> list[Standing]:
        """What is counted for each."""
        now = self._clock.monotonic()
        return [self._standing(subject, now) for subject in subjects]

    def know(self, term: BudgetTerm, used: int) -> None:
        """Note what shared counters hold of a budget: the base to go on from when they are gone."""
        purse = self._purse(term)
        purse.base, purse.used = used, 0

    def _standing(self, subject: Subject, now: float) -> Standing:
        usage = self._of(subject.id, now)
        purse = self._purse(subject.budget) if subject.budget is not None else Purse(0)
        used = purse.base + purse.used
        return Standing(usage.requests, usage.tokens, usage.reset(now), usage.parallel, used, purse.held)

    def _of(self, subject: str, now: float) -> Usage:
        usage = self._usage.get(subject)
        if usage is None:
            if len(self._usage) >= _MAX_SUBJECTS:
                self._sweep(now)
            usage = self._usage[subject] = Usage()
        usage.roll(bucket_at(now))
        return usage

    def _purse(self, term: BudgetTerm) -> Purse:
        purse = self._purses.get(term.counter)
        if purse is None:
            if len(self._purses) >= _MAX_SUBJECTS:
                self._purses.pop(next(iter(self._purses)))  # the oldest: its seed comes with the table
            purse = self._purses[term.counter] = Purse(term.seed)
        elif term.seed > purse.base + purse.used:
            purse.base, purse.used = term.seed, 0  # the books can only be behind what was counted
        return purse

    def _sweep(self, now: float) -> None:
        for usage in self._usage.values():
            usage.roll(bucket_at(now))
        self._usage = {subject: usage for subject, usage in self._usage.items() if not usage.idle}


def holds_of(subjects: tuple[Subject, ...], demand: Demand, price: TokenPrice) -> list[int]:
    """What a request holds of each subject's budget; 0 where there is none."""
    return [subject.budget.hold(demand, price) if subject.budget is not None else 0 for subject in subjects]


def _part(limit: int, parts: int) -> int:
    """A gateway's part of a limit that counts requests: at least one, or a small limit would shut everyone out."""
    return limit if parts == 1 else max(min(1, limit), limit // parts)
