"""Limits and budgets counted in one process: when a request is refused, what it is told, and that it is true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.clock import FakeClock
from runtime.gateway.auth import Caller
from runtime.gateway.limits import Demand, Limiter
from runtime.gateway.limits.terms import COST_SCALE, cost_of, period_at
from runtime.gateway.limits.window import SLOTS, Usage
from runtime.gateway.refusals import Refusal
from runtime.wire.inference import Usage as Tokens
from runtime.wire.routes import Budget, KeyEntry, RateLimits, TenantEntry, TokenPrice

FREE = TokenPrice()
NOON = 1_700_049_600.0  # Wednesday, 2023-11-15 12:00:00 UTC
NOVEMBER = 1_698_796_800.0
DAY = 1_700_006_400.0


def a_caller(*, key=None, tenant=None, key_budget=None, tenant_budget=None):
    return Caller(
        KeyEntry(id="k", digest="d", tenant_id="t", limits=key or RateLimits(), budget=key_budget),
        TenantEntry(id="t", slug="t", prefix_salt="s", limits=tenant or RateLimits(), budget=tenant_budget),
    )


def a_demand(tokens):
    return Demand(tokens, 0, 0)


def used(tokens):
    return Tokens(prompt_tokens=tokens)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(RateLimits(requests_per_minute=5), id="requests"),
        pytest.param(RateLimits(tokens_per_minute=50), id="tokens"),
    ],
)
async def test_after_the_stated_wait_the_request_is_accepted_and_not_a_second_before(limits):
    clock = FakeClock()
    limiter = Limiter(clock)
    caller = a_caller(key=limits)
    for _ in range(5):
        limiter.settle(await limiter.admit(caller, a_demand(10), FREE), used(10))
        clock.advance(3)
    with pytest.raises(Refusal) as refused:
        await limiter.admit(caller, a_demand(10), FREE)
    assert refused.value.status == 429
    wait = refused.value.retry_after
    clock.advance(wait - 1)
    with pytest.raises(Refusal):
        await limiter.admit(caller, a_demand(10), FREE)
    clock.advance(1)
    await limiter.admit(caller, a_demand(10), FREE)


async def test_no_wait_is_longer_than_official_clients_heed():
    limiter, caller = Limiter(FakeClock()), a_caller(key=RateLimits(requests_per_minute=1))
    await limiter.admit(caller, a_demand(10), FREE)
    with pytest.raises(Refusal) as refused:
        await limiter.admit(caller, a_demand(10), FREE)
    assert refused.value.retry_after == 60
    assert "Try again in 60 s" in refused.value.message


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.floats(0, 40), st.integers(1, 30)), max_size=80))
async def test_no_minute_ever_holds_more_than_the_limit(steps):
    clock, accepted = FakeClock(), []
    limiter = Limiter(clock)
    for wait, tokens in steps:
        clock.advance(wait)
        caller = a_caller(tenant=RateLimits(requests_per_minute=6, tokens_per_minute=90))
        try:
            await limiter.admit(caller, a_demand(tokens), FREE)
        except Refusal:
            continue
        accepted.append((clock.monotonic(), tokens))
    for end, _ in accepted:
        minute = [tokens for at, tokens in accepted if end - 60 < at <= end]
        assert len(minute) <= 6
        assert sum(minute) <= 90


async def test_settling_gives_back_what_was_reserved_too_much_and_only_once():
    limiter = Limiter(FakeClock())
    caller = a_caller(key=RateLimits(tokens_per_minute=100, max_parallel_requests=1))
    lease = await limiter.admit(caller, a_demand(90), FREE)
    for _ in range(3):
        limiter.settle(lease, used(10))
    assert dict(lease.headers)[b"x-ratelimit-remaining-tokens"] == b"10"
    again = await limiter.admit(caller, a_demand(90), FREE)
    assert dict(again.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    with pytest.raises(Refusal, match="1 parallel requests"):
        await limiter.admit(caller, a_demand(1), FREE)


async def test_once_the_engine_has_tokenized_no_more_is_held_for_the_prompt_than_it_has():
    limiter = Limiter(FakeClock())
    caller = a_caller(key=RateLimits(tokens_per_minute=100), key_budget=Budget(limit=100))
    lease = await limiter.admit(caller, Demand(80, 20, 20), FREE)
    with pytest.raises(Refusal):
        await limiter.admit(caller, a_demand(10), FREE)
    for _ in range(2):
        limiter.correct(lease, 15)
    other = await limiter.admit(caller, a_demand(65), FREE)
    assert dict(other.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    limiter.settle(lease, Tokens(prompt_tokens=15, completion_tokens=5))
    last = await limiter.admit(caller, a_demand(15), FREE)
    assert dict(last.headers)[b"x-millpond-budget-remaining"] == b"0"


async def test_the_tenants_limit_stands_above_the_keys():
    limiter = Limiter(FakeClock())
    caller = a_caller(key=RateLimits(requests_per_minute=10), tenant=RateLimits(requests_per_minute=1))
    await limiter.admit(caller, a_demand(1), FREE)
    with pytest.raises(Refusal, match="The tenant's limit of 1 requests per minute"):
        await limiter.admit(caller, a_demand(1), FREE)


async def test_what_can_never_fit_is_told_so_and_not_to_come_back():
    limiter = Limiter(FakeClock())
    with pytest.raises(Refusal) as refused:
        await limiter.admit(a_caller(key=RateLimits(tokens_per_minute=10)), a_demand(11), FREE)
    assert refused.value.code == "request_too_large"
    assert refused.value.retry_after is None


def test_a_long_silence_empties_the_minute():
    usage = Usage()
    usage.roll(4_000)
    usage.add(4_000, 3, 30)
    usage.roll(1_000_000)
    assert usage.idle
    usage.add(4_000, 0, -5)
    assert usage.idle


def test_more_than_was_promised_counts_even_when_it_becomes_known_late():
    usage = Usage()
    usage.roll(4_000)
    usage.roll(4_000 + SLOTS)
    usage.add(4_000, 0, 70)
    assert usage.tokens == 70


class TestBudgets:
    async def test_the_bound_is_held_and_what_was_not_used_comes_back(self):
        limiter = Limiter(FakeClock(NOON))
        caller = a_caller(key_budget=Budget(limit=100, period="day"))
        lease = await limiter.admit(caller, Demand(20, 30, 50), FREE)
        assert dict(lease.headers)[b"x-millpond-budget-remaining"] == b"30"
        with pytest.raises(Refusal) as refused:
            await limiter.admit(caller, a_demand(31), FREE)
        assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("budget_exceeded", 429, 1)
        limiter.settle(lease, Tokens(prompt_tokens=10, completion_tokens=5))
        await limiter.admit(caller, a_demand(85), FREE)

    @pytest.mark.parametrize(
        ("period", "status", "wait"),
        [
            ("hour", 429, 3600),
            ("day", 429, 12 * 3600),
            ("week", 429, 108 * 3600),
            ("month", 429, 372 * 3600),
            ("", 403, None),
        ],
    )
    async def test_a_spent_budget_says_when_the_next_period_begins_and_then_it_does(self, period, status, wait):
        clock = FakeClock(NOON)
        limiter = Limiter(clock)
        caller = a_caller(tenant_budget=Budget(limit=10, period=period))
        limiter.settle(await limiter.admit(caller, a_demand(10), FREE), used(10))
        with pytest.raises(Refusal) as refused:
            await limiter.admit(caller, a_demand(1), FREE)
        assert (refused.value.status, refused.value.retry_after) == (status, wait)
        assert "tenant's budget of 10 tokens" in refused.value.message
        if wait is not None:
            clock.advance(wait)
            await limiter.admit(caller, a_demand(10), FREE)

    async def test_it_goes_on_from_what_the_books_hold_for_this_period_only(self):
        spent = Budget(limit=100, period="day", period_start=DAY, used=90)
        caller = a_caller(key_budget=spent)
        with pytest.raises(Refusal, match=r"90 used"):
            await Limiter(FakeClock(NOON)).admit(caller, a_demand(11), FREE)
        await Limiter(FakeClock(NOON)).admit(caller, a_demand(10), FREE)
        await Limiter(FakeClock(NOON + 86_400)).admit(caller, a_demand(100), FREE)

    async def test_a_cost_is_held_at_the_price_and_settled_to_a_part_of_a_millionth(self):
        price = TokenPrice(prompt=100_000, cached=50_000, completion=400_000)
        limiter = Limiter(FakeClock(NOON))
        caller = a_caller(key_budget=Budget(limit=10, unit="cost"))
        # 30 prompt tokens at 0.1 and 10 of completion at 0.4 are at most 7 millionths.
        lease = await limiter.admit(caller, Demand(30, 10, 10), price)
        assert dict(lease.headers)[b"x-millpond-budget-remaining"] == b"3"
        limiter.settle(lease, Tokens(prompt_tokens=10, cached_tokens=4, completion_tokens=2))
        again = await limiter.admit(caller, Demand(1, 0, 0), price)
        assert 10 * COST_SCALE - (600_000 + 200_000 + 800_000) - 100_000 == 8_300_000
        assert dict(again.headers)[b"x-millpond-budget-remaining"] == b"8"
        with pytest.raises(Refusal):
            await limiter.admit(caller, Demand(84, 0, 0), price)
        await limiter.admit(caller, Demand(83, 0, 0), price)

    async def test_what_the_platform_lost_is_not_taken_from_the_budget(self):
        limiter = Limiter(FakeClock(NOON))
        caller = a_caller(key_budget=Budget(limit=10))
        limiter.settle(await limiter.admit(caller, a_demand(10), FREE), used(9), billable=False)
        await limiter.admit(caller, a_demand(10), FREE)

    async def test_a_budget_that_only_alerts_refuses_nobody_and_says_so(self):
        told = []
        limiter = Limiter(FakeClock(NOON), on_alert=told.append)
        caller = a_caller(key_budget=Budget(limit=10, blocks=False))
        first = await limiter.admit(caller, a_demand(10), FREE)
        assert b"x-millpond-budget-alert" not in dict(first.headers)
        limiter.settle(first, used(10))
        over = await limiter.admit(caller, a_demand(1), FREE)
        assert dict(over.headers)[b"x-millpond-budget-alert"] == b"key"
        assert told == ["key"]

    @settings(max_examples=80, deadline=None)
    @given(
        calls=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1), st.booleans(), st.booleans()), max_size=40),
        limit=st.integers(0, 200),
    )
    async def test_no_order_of_taking_and_settling_overspends(self, calls, limit):
        limiter, open_leases, spent = Limiter(FakeClock(NOON)), [], 0
        caller = a_caller(key_budget=Budget(limit=limit), tenant_budget=Budget(limit=limit + 20))
        for bound, share, settle_now, billable in calls:
            try:
                lease = await limiter.admit(caller, a_demand(bound), FREE)
            except Refusal:
                continue
            open_leases.append((lease, round(bound * share), billable))
            if settle_now:
                lease, computed, paid = open_leases.pop(0)
                limiter.settle(lease, used(computed), billable=paid)
                spent += computed * paid
            assert spent + sum(lease.tokens for lease, _, _ in open_leases) <= limit


@pytest.mark.parametrize(
    ("name", "start", "days"),
    [("day", DAY, 1), ("week", DAY - 2 * 86_400, 7), ("month", NOVEMBER, 30), ("hour", NOON, 1 / 24)],
)
def test_periods_are_the_calendars_in_utc(name, start, days):
    period = period_at(name, NOON + 1234)
    assert period.start == start
    assert period.end - period.start == days * 86_400
    assert period_at(name, period.end).start == period.end


def test_cached_tokens_are_part_of_the_prompt_and_cost_their_own_price():
    price = TokenPrice(prompt=10, cached=1, completion=100)
    assert cost_of(price, Tokens(prompt_tokens=5, cached_tokens=3, completion_tokens=2)) == 2 * 10 + 3 * 1 + 2 * 100
    # An engine that tells more cached tokens than prompt tokens makes nothing negative.
    assert cost_of(price, Tokens(prompt_tokens=2, cached_tokens=9)) == 2
