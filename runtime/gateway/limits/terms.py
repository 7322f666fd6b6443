"""What a request asks of its limits, and of whose: demands, subjects, budget periods, leases. Pure."""

import calendar
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from runtime.gateway.auth import Caller
from runtime.wire.inference import Usage
from runtime.wire.routes import Budget, RateLimits, TokenPrice

Headers = list[tuple[bytes, bytes]]

# A cost is counted in tokens times price: millionths of a millionth of the currency, so that nothing is rounded.
COST_SCALE: Final = 1_000_000
_FOREVER_KEEP_SECONDS: Final = 400 * 86400
_GRACE_SECONDS: Final = 2 * 86400  # settling may come after the period's end


class Demand(NamedTuple):
    """Upper bounds of one request in tokens.

    ``prompt`` and ``completion`` are taken from limits per minute; ``most_completion`` is what budgets are held to:
    where the request names no maximum it is what the model can take at all, ``completion`` the stated default.
    """

    prompt: int
    completion: int
    most_completion: int

    @property
    def tokens(self) -> int:
        """What is taken from a limit of tokens per minute."""
        return self.prompt + self.completion


def cost_of(price: TokenPrice, usage: Usage) -> int:
    """Cost of ``usage`` in millionths of a millionth of the currency. Cached tokens are part of the prompt."""
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    return (
        (usage.prompt_tokens - cached) * price.prompt
        + cached * price.cached
        + usage.completion_tokens * price.completion
    )


def most_cost(price: TokenPrice, demand: Demand) -> int:
    """Upper bound of the cost: no prompt token is known to be cached before it is computed."""
    return demand.prompt * max(price.prompt, price.cached) + demand.most_completion * price.completion


class Period(NamedTuple):
    """A calendar period in UTC, Unix seconds. ``end`` is 0 for the one without end."""

    start: float
    end: float


def period_at(name: str, now: float) -> Period:
    """The ``hour``, ``day``, ``week`` (from Monday) or ``month`` around ``now``; any other name is one without end."""
    at = datetime.fromtimestamp(now, UTC)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    if name == "hour":
        begin = at.replace(minute=0, second=0, microsecond=0)
        return Period(begin.timestamp(), (begin + timedelta(hours=1)).timestamp())
    if name == "day":
        return Period(day.timestamp(), (day + timedelta(days=1)).timestamp())
    if name == "week":
        begin = day - timedelta(days=day.weekday())
        return Period(begin.timestamp(), (begin + timedelta(days=7)).timestamp())
    if name == "month":
        begin = day.replace(day=1)
        days = calendar.monthrange(begin.year, begin.month)[1]
        return Period(begin.timestamp(), (begin + timedelta(days=days)).timestamp())
    return Period(0.0, 0.0)


class BudgetTerm(msgspec.Struct, frozen=True):
    """A budget in its present period. Amounts are in ``scale`` parts of a token (1) or of a millionth (COST_SCALE)."""

    counter: str
    budget: Budget
    period: Period
    limit: int
    seed: int
    keep_seconds: int
    scale: int

    def hold(self, demand: Demand, price: TokenPrice) -> int:
        """Upper bound of what a request takes."""
        return most_cost(price, demand) if self.scale > 1 else demand.prompt + demand.most_completion

    def spent(self, usage: Usage, price: TokenPrice) -> int:
        """What ``usage`` takes."""
        return cost_of(price, usage) if self.scale > 1 else usage.prompt_tokens + usage.completion_tokens


class Subject(msgspec.Struct, frozen=True):
    """A key or a tenant with limits. ``word`` is what people call it; ``id`` names its counters."""

    id: str
    word: str
    limits: RateLimits
    budget: BudgetTerm | None

    @property
    def windowed(self) -> bool:
        """True when something is counted by the minute."""
        return self.limits.requests_per_minute is not None or self.limits.tokens_per_minute is not None


class Terms(msgspec.Struct, frozen=True):
    """Whose limits a caller's requests come under, the tenant's first; ``until`` is when a budget's period ends."""

    subjects: tuple[Subject, ...]
    until: float


class Standing(NamedTuple):
    """What is counted for a subject. ``reset`` is seconds until its minute is empty if nothing else comes.

    ``used`` and ``held`` are of its budget, in the term's scale.
    """

    requests: int = 0
    tokens: int = 0
    reset: float = 0.0
    parallel: int = 0
    used: int = 0
    held: int = 0


class Verdict(NamedTuple):
    """Which limit refused: index of the subject, ``kind`` (parallel, requests, tokens, budget), use, seconds to wait.

    For a budget ``wait`` is what running requests hold of it, and ``ask`` what this one would.
    """

    subject: int
    kind: str
    used: int
    wait: float
    ask: int = 0


class Lease(msgspec.Struct, eq=False):
    """What one admitted request holds until it is settled.

    ``bucket`` and ``tokens`` are where and what was taken by the minute, ``holds`` what is held of each budget.
    ``holder`` names who holds it in the shared counters; empty where it was counted here alone.
    """

    subjects: tuple[Subject, ...]
    price: TokenPrice
    headers: Headers
    prompt: int = 0
    bucket: int = 0
    tokens: int = 0
    holds: list[int] = []
    holder: str = ""
    local_bucket: int = 0
    freed: bool = False  # its parallel slot is given back, the rest not yet
    settled: bool = False


def terms_of(caller: Caller, now: float) -> Terms:
    """Return the terms of ``caller``: only who has a limit appears."""
    found: list[Subject] = []
    ends: list[float] = []
    tenant, key = caller.tenant, caller.key
    for word, ident, limits, budget in (
        ("tenant", "t:" + tenant.id, tenant.limits, tenant.budget),
        ("key", "k:" + key.id, key.limits, key.budget),
    ):
        term = budget_term(ident, budget, now) if budget is not None else None
        if term is not None and term.period.end:
            ends.append(term.period.end)
        parallel = limits.max_parallel_requests
        subject = Subject(ident, word, limits, term)
        if subject.windowed or parallel is not None or term is not None:
            found.append(subject)
    return Terms(tuple(found), min(ends, default=float("inf")))


def budget_term(ident: str, budget: Budget, now: float) -> BudgetTerm:
    """``budget`` of the subject ``ident`` in the period around ``now``; no seed where the books' period is over."""
    period = period_at(budget.period, now)
    scale = COST_SCALE if budget.unit == "cost" else 1
    known = not budget.period or budget.period_start == period.start
    keep = int(period.end - now) + _GRACE_SECONDS if period.end else _FOREVER_KEEP_SECONDS
    return BudgetTerm(
        counter=f"{ident}:{budget.unit}:{budget.period}:{int(period.start)}",
        budget=budget,
        period=period,
        limit=budget.limit * scale,
        seed=budget.used * scale if known else 0,
        keep_seconds=keep,
        scale=scale,
    )
