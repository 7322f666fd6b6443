"""Rate limits of keys and tenants. This implementation counts in this process: several gateways each count alone.

Everything else speaks to :class:`Limiter` only, so that one which counts for all gateways can take its place.
"""

from typing import Final, Protocol

import msgspec

from runtime.base.clock import Clock
from runtime.gateway.auth import Caller
from runtime.gateway.refusals import Reason, Refusal
from runtime.wire.routes import RateLimits

WINDOW_SECONDS: Final = 60
_MAX_SUBJECTS: Final = 100_000

Headers = list[tuple[bytes, bytes]]


class Lease(msgspec.Struct):
    """What one admitted request holds until it is settled. ``tokens`` is the reserved bound."""

    subjects: tuple[str, ...]
    second: int
    tokens: int
    headers: Headers
    settled: bool = False


class Limiter(Protocol):
    """Takes before work starts, settles on every exit."""

    async def admit(self, caller: Caller, tokens: int) -> Lease:
        """Take one request and up to ``tokens`` tokens, or raise :class:`Refusal` (429) having taken nothing."""

    async def settle(self, lease: Lease, tokens: int) -> None:
        """Give back the parallel slot and replace the bound by the ``tokens`` computed; later calls do nothing."""


class Usage:
    """Sliding minute of one key or tenant in sixty one-second buckets, and what runs now. Pure: time is passed in."""

    def __init__(self) -> None:
        self.parallel = 0
        self._requests = [0] * WINDOW_SECONDS
        self._tokens = [0] * WINDOW_SECONDS
        self._second = 0  # newest second that the buckets cover
        self.requests = 0
        self.tokens = 0

    def roll(self, second: int) -> None:
        """Forget what is older than a minute at ``second``."""
        for step in range(min(second - self._second, WINDOW_SECONDS)):
            slot = (second - step) % WINDOW_SECONDS
            self.requests -= self._requests[slot]
            self.tokens -= self._tokens[slot]
            self._requests[slot] = self._tokens[slot] = 0
        self._second = max(self._second, second)

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count at ``second``; a second that has left the minute is ignored. ``tokens`` may be negative."""
        if second <= self._second - WINDOW_SECONDS:
            return
        slot = second % WINDOW_SECONDS
        self._requests[slot] += requests
        self._tokens[slot] += tokens
        self.requests += requests
        self.tokens += tokens

    def wait_for(self, limit: int, ask: int, *, tokens: bool) -> int:
        """Seconds until ``ask`` more fits under ``limit`` if nothing else comes; 0 when it fits now."""
        buckets, used = (self._tokens, self.tokens) if tokens else (self._requests, self.requests)
        if used + ask <= limit:
            return 0
        for age in range(WINDOW_SECONDS - 1, -1, -1):
            used -= buckets[(self._second - age) % WINDOW_SECONDS]
            if used + ask <= limit:
                return WINDOW_SECONDS - age
        return WINDOW_SECONDS

    @property
    def idle(self) -> bool:
        """True when nothing is counted."""
        return not (self.parallel or self.requests or self.tokens)


class LocalLimiter:
    """Exact for one gateway: a sliding minute with a resolution of one second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._usage: dict[str, Usage] = {}

    async def admit(self, caller: Caller, tokens: int) -> Lease:
        second = int(self._clock.monotonic())
        held = [
            ("tenant:" + caller.tenant.id, "tenant", caller.tenant.limits),
            ("key:" + caller.key.id, "key", caller.key.limits),
        ]
        counted = [(self._of(subject, second), word, limits) for subject, word, limits in held]
        pairs = [(usage, limits) for usage, _, limits in counted]
        for usage, word, limits in counted:
            _check(usage, word, limits, tokens, pairs)
        for usage, _ in pairs:
            usage.parallel += 1
            usage.add(second, 1, tokens)
        return Lease(tuple(subject for subject, _, _ in held), second, tokens, describe(pairs))

    async def settle(self, lease: Lease, tokens: int) -> None:
        if lease.settled:
            return
        lease.settled = True
        second = int(self._clock.monotonic())
        for subject in lease.subjects:
            usage = self._of(subject, second)
            usage.parallel = max(0, usage.parallel - 1)
            usage.add(lease.second, 0, tokens - lease.tokens)

    def _of(self, subject: str, second: int) -> Usage:
        usage = self._usage.get(subject)
        if usage is None:
            if len(self._usage) >= _MAX_SUBJECTS:
                self._sweep(second)
            usage = self._usage[subject] = Usage()
        usage.roll(second)
        return usage

    def _sweep(self, second: int) -> None:
        for usage in self._usage.values():
            usage.roll(second)
        self._usage = {subject: usage for subject, usage in self._usage.items() if not usage.idle}


Pairs = list[tuple[Usage, RateLimits]]


def _check(usage: Usage, word: str, limits: RateLimits, tokens: int, pairs: Pairs) -> None:
    parallel, requests, per_minute = limits.max_parallel_requests, limits.requests_per_minute, limits.tokens_per_minute
    if parallel is not None and usage.parallel >= parallel:
        raise _limited(word, "parallel requests", parallel, usage.parallel, 1, pairs)
    if requests is not None and (wait := usage.wait_for(requests, 1, tokens=False)):
        raise _limited(word, "requests per minute", requests, usage.requests, wait, pairs)
    if per_minute is None:
        return
    if tokens > per_minute:
        raise Refusal(
            Reason.NEVER_FITS_LIMIT,
            429,
            f"This request may use up to {tokens} tokens, more than the {word}'s whole limit of {per_minute} tokens "
            "per minute. Shorten the prompt, or lower max_tokens or n.",
            code="request_too_large",
            headers=[*describe(pairs), (b"x-should-retry", b"false")],
        )
    if wait := usage.wait_for(per_minute, tokens, tokens=True):
        raise _limited(word, "tokens per minute", per_minute, usage.tokens, wait, pairs)


def _limited(word: str, what: str, limit: int, used: int, wait: int, pairs: Pairs) -> Refusal:
    return Refusal(
        Reason.RATE_LIMITED,
        429,
        f"The {word}'s limit of {limit} {what} is reached ({used} in use). Try again in {wait} s.",
        code="rate_limit_exceeded",
        retry_after=wait,
        headers=describe(pairs),
    )


def describe(counted: Pairs) -> Headers:
    """Return OpenAI's ``x-ratelimit-*`` headers for the tighter of the key's and the tenant's limit, as of now."""
    headers: Headers = []
    for name, by_tokens in ((b"requests", False), (b"tokens", True)):
        rows: list[tuple[int, int, int]] = []
        for usage, limits in counted:
            limit = limits.tokens_per_minute if by_tokens else limits.requests_per_minute
            if limit is not None:
                used = usage.tokens if by_tokens else usage.requests
                rows.append((max(0, limit - used), limit, usage.wait_for(0, 0, tokens=by_tokens)))
        if rows:
            remaining, limit, reset = min(rows)
            headers += [
                (b"x-ratelimit-limit-" + name, str(limit).encode()),
                (b"x-ratelimit-remaining-" + name, str(remaining).encode()),
                (b"x-ratelimit-reset-" + name, f"{reset}s".encode()),
            ]
    return headers
