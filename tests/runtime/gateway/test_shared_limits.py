"""Limits of several gateways on one real Valkey: exact together, given back by the dead, sane while it is gone."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from runtime.base.clock import SystemClock
from runtime.embedded.valkey import Valkey
from runtime.gateway.auth import Caller
from runtime.gateway.limits import Demand, Limiter, Options
from runtime.gateway.limits.counters import Counters
from runtime.gateway.refusals import Refusal
from runtime.wire.inference import Usage
from runtime.wire.routes import Budget, KeyEntry, RateLimits, TenantEntry, TokenPrice
from tests.build.gateway_peers import a_table, ask, until

FREE = TokenPrice()


class Server:
    """A Valkey that can be hung, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._valkey = Valkey(home=folder / "data", sockets_in=folder, settings={"appendonly": "no", "save": ""})
        self._valkey.create()
        self.url = self._valkey.url()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._valkey.command(), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._valkey.ready_now():
            assert time.monotonic() < deadline, "Valkey never started"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(running_server: Server) -> Server:
    """The Valkey of this module, empty."""
    running_server.client().flushall()
    return running_server


@contextlib.asynccontextmanager
async def gateways(url: str, count: int = 1, **changes) -> AsyncIterator[list[Limiter]]:
    options = {"timeout_seconds": 5.0, "lease_seconds": 30.0, **changes}
    limiters = [Limiter(SystemClock(), Options(url=url, **options)) for _ in range(count)]
    for limiter in limiters:
        await limiter.start()
    tasks = [asyncio.create_task(limiter.keep()) for limiter in limiters]
    try:
        yield limiters
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def a_caller(*, key=None, tenant=None, budget=None, name="k"):
    return Caller(
        KeyEntry(id=name, digest="d", tenant_id="t", limits=key or RateLimits(), budget=budget),
        TenantEntry(id="t", slug="t", prefix_salt="s", limits=tenant or RateLimits()),
    )


async def admitted(limiters, caller, count, demand):
    """Leases of ``count`` calls at once, spread over the gateways."""

    async def one(number):
        limiter = limiters[number % len(limiters)]
        with contextlib.suppress(Refusal):
            return limiter, await limiter.admit(caller, demand, FREE)

    return [pair for pair in await asyncio.gather(*(one(number) for number in range(count))) if pair]


async def test_a_caller_without_limits_never_asks_the_counters(server):
    async with gateways(server.url) as (limiter,):
        before = server.client().info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        for _ in range(20):
            limiter.settle(await limiter.admit(a_caller(), Demand(10, 10, 10), FREE), Usage())
        after = server.client().info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        assert after == before


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        pytest.param(RateLimits(requests_per_minute=10), None, id="requests"),
        pytest.param(RateLimits(tokens_per_minute=500), None, id="tokens"),
        pytest.param(RateLimits(max_parallel_requests=10), None, id="parallel"),
        pytest.param(RateLimits(), Budget(limit=500), id="budget"),
    ],
)
async def test_two_hundred_calls_at_once_over_three_gateways_get_exactly_the_limit(server, limits, budget):
    async with gateways(server.url, 3) as limiters:
        caller = a_caller(key=limits, budget=budget)
        assert len(await admitted(limiters, caller, 200, Demand(30, 20, 20))) == 10


async def test_a_batch_of_many_costs_few_calls(server):
    async with gateways(server.url) as (limiter,):
        before = server.client().info("commandstats")["cmdstat_evalsha"]["calls"]
        leases = await admitted([limiter], a_caller(key=RateLimits(requests_per_minute=10**6)), 300, Demand(1, 1, 1))
        assert len(leases) == 300
        assert server.client().info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 10


async def test_what_is_settled_on_one_gateway_is_free_for_the_others(server):
    async with gateways(server.url, 2) as (one, other):
        caller = a_caller(key=RateLimits(tokens_per_minute=100, max_parallel_requests=1), budget=Budget(limit=100))
        lease = await one.admit(caller, Demand(50, 50, 50), FREE)
        with pytest.raises(Refusal, match="1 parallel requests"):
            await other.admit(caller, Demand(1, 0, 0), FREE)
        one.settle(lease, Usage(prompt_tokens=5, completion_tokens=5))
        # The settlement is on its way; what it gives back is there as soon as it has arrived.
        await until_admitted(other, caller, Demand(45, 45, 45))
        with pytest.raises(Refusal):
            await one.admit(caller, Demand(1, 0, 0), FREE)


async def until_admitted(limiter, caller, demand):
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Refusal):
                return await limiter.admit(caller, demand, FREE)
            await asyncio.sleep(0.02)


async def test_what_a_dead_gateway_held_comes_back_with_its_lease(server):
    caller = a_caller(key=RateLimits(max_parallel_requests=2), budget=Budget(limit=100))
    async with gateways(server.url, lease_seconds=1.0) as (doomed,):
        for _ in range(2):
            await doomed.admit(caller, Demand(50, 0, 0), FREE)
    async with gateways(server.url) as (other,):
        with pytest.raises(Refusal):
            await other.admit(caller, Demand(1, 0, 0), FREE)
        await until_admitted(other, caller, Demand(100, 0, 0))
        assert other.gateways == 1


async def test_a_restarted_gateway_gives_back_at_once_what_its_earlier_process_held(server, tmp_path):
    caller = a_caller(key=RateLimits(max_parallel_requests=1))
    memory = tmp_path / "limits.json"
    async with gateways(server.url, lease_seconds=600.0, memory=memory) as (killed,):
        await killed.admit(caller, Demand(1, 0, 0), FREE)
    async with gateways(server.url, memory=memory) as (restarted,):
        await restarted.admit(caller, Demand(1, 0, 0), FREE)


async def test_a_budget_goes_on_from_the_books_when_its_counter_is_gone(server):
    async with gateways(server.url) as (limiter,):
        caller = a_caller(budget=Budget(limit=100, used=60))
        with pytest.raises(Refusal, match="60 used"):
            await limiter.admit(caller, Demand(41, 0, 0), FREE)
        limiter.settle(await limiter.admit(caller, Demand(40, 0, 0), FREE), Usage(prompt_tokens=40))
        await refused_for(limiter, caller, "100 used")
        server.client().flushall()
        await refused_for(limiter, a_caller(budget=Budget(limit=100, used=100)), "100 used")


async def refused_for(limiter, caller, words):
    async with asyncio.timeout(20):
        while True:
            try:
                lease = await limiter.admit(caller, Demand(1, 0, 0), FREE)
            except Refusal as refusal:
                if words in refusal.message:
                    return
            else:
                limiter.settle(lease, Usage())
            await asyncio.sleep(0.02)


async def test_counters_that_lost_everything_learn_anew_what_runs(server):
    caller = a_caller(key=RateLimits(max_parallel_requests=2), budget=Budget(limit=100))
    async with gateways(server.url) as (limiter,):
        leases = [await limiter.admit(caller, Demand(50, 0, 0), FREE) for _ in range(2)]
        server.client().flushall()
        with pytest.raises(Refusal, match="2 parallel requests"):
            await limiter.admit(caller, Demand(1, 0, 0), FREE)
        for lease in leases:
            limiter.settle(lease, Usage(prompt_tokens=30))
        await until_admitted(limiter, caller, Demand(40, 0, 0))
        with pytest.raises(Refusal, match="60 used, 40 held"):
            await limiter.admit(caller, Demand(1, 0, 0), FREE)


async def test_a_client_who_does_not_wait_for_the_counters_leaves_nothing_behind(server):
    caller = a_caller(key=RateLimits(max_parallel_requests=1, requests_per_minute=1))
    async with gateways(server.url) as (limiter,):
        server.signal(signal.SIGSTOP)
        try:
            asking = asyncio.create_task(limiter.admit(caller, Demand(1, 0, 0), FREE))
            await asyncio.sleep(0.05)  # until it is sent; nothing that is observable changes
            asking.cancel()
        finally:
            server.signal(signal.SIGCONT)
        await until_admitted(limiter, caller, Demand(1, 0, 0))


class TestGone:
    """Valkey stops answering and comes back."""

    async def test_each_gateway_serves_its_share_and_tells(self, server):
        async with gateways(server.url, 2, timeout_seconds=0.2, lease_seconds=3.0) as limiters:
            await until(lambda: all(limiter.gateways == 2 for limiter in limiters), "both know of each other", 40)
            server.signal(signal.SIGSTOP)
            try:
                caller = a_caller(key=RateLimits(requests_per_minute=20), budget=Budget(limit=100))
                leases = await admitted(limiters, caller, 60, Demand(3, 0, 0))
                assert [limiter.shared for limiter in limiters] == [False, False]
                assert [sum(who is limiter for who, _ in leases) for limiter in limiters] == [10, 10]
                with pytest.raises(Refusal, match="Shared counters are unreachable"):
                    await limiters[0].admit(caller, Demand(3, 0, 0), FREE)
            finally:
                server.signal(signal.SIGCONT)
            await until(lambda: all(limiter.shared for limiter in limiters), "the counters are shared again")
            # What was served meanwhile counts: the minute is full for everybody, and the running requests hold.
            left = b""
            async with asyncio.timeout(20):
                while left != b"40":
                    with pytest.raises(Refusal, match="limit of 20 requests per minute is reached") as refused:
                        await limiters[1].admit(caller, Demand(1, 0, 0), FREE)
                    left = dict(refused.value.headers)[b"x-millpond-budget-remaining"]
                    await asyncio.sleep(0.02)
            for limiter, lease in leases:
                limiter.settle(lease, Usage(prompt_tokens=1))
            await until(lambda: self.spent(server, caller) == 20, "what was computed is spent")

    def spent(self, server, caller):
        (key,) = server.client().keys(f"*b:k:{caller.key.id}:*")
        return int(server.client().hget(key, "u") or 0)

    async def test_it_may_be_told_to_refuse_instead(self, server):
        async with gateways(server.url, timeout_seconds=0.1, refuse_when_down=True) as (limiter,):
            server.signal(signal.SIGSTOP)
            try:
                with pytest.raises(Refusal) as refused:
                    await limiter.admit(a_caller(key=RateLimits(requests_per_minute=20)), Demand(1, 0, 0), FREE)
                assert (refused.value.status, refused.value.code) == (503, "limits_unavailable")
                limiter.settle(await limiter.admit(a_caller(name="free"), Demand(1, 0, 0), FREE), Usage())
            finally:
                server.signal(signal.SIGCONT)
            await until(lambda: limiter.shared, "the counters are shared again")

    async def test_a_settlement_whose_answer_was_lost_is_booked_once(self, server):
        async with gateways(server.url, timeout_seconds=0.2) as (limiter,):
            caller = a_caller(budget=Budget(limit=1000))
            leases = [await limiter.admit(caller, Demand(10, 0, 0), FREE) for _ in range(20)]
            for round_number in range(4):
                server.signal(signal.SIGSTOP)
                for lease in leases[round_number * 5 : round_number * 5 + 5]:
                    limiter.settle(lease, Usage(prompt_tokens=7))
                await until(lambda: not limiter.shared, "the gateway has noticed")
                server.signal(signal.SIGCONT)
                await until(lambda: limiter.shared, "the counters are shared again")
            await until(lambda: self.spent(server, caller) == 140, "each is spent once")

    @pytest.mark.parametrize("arrives", [True, False])
    async def test_a_reserve_whose_answer_was_lost_counts_only_if_it_was_served(self, server, monkeypatch, arrives):
        limits = RateLimits(requests_per_minute=10, tokens_per_minute=1000)
        callers = [
            a_caller(key=limits, name="one"),
            a_caller(key=limits, name="two"),
            a_caller(key=limits, name="three"),
        ]
        async with gateways(server.url, timeout_seconds=0.5, refuse_when_down=True) as (limiter,):
            held = [await limiter.admit(callers[2], Demand(1, 0, 0), FREE) for _ in range(10)]
            evaluate = Counters._evaluate

            async def lose(self, *parts):
                if arrives:
                    await evaluate(self, *parts)
                raise TimeoutError("the answer is lost")

            monkeypatch.setattr(Counters, "_evaluate", lose)
            lost = await asyncio.gather(
                *(limiter.admit(caller, Demand(50, 0, 0), FREE) for caller in callers), return_exceptions=True
            )
            assert [refused.status for refused in lost] == [503] * 3
            monkeypatch.setattr(Counters, "_evaluate", evaluate)
            await until(lambda: limiter.shared, "the counters are shared again")
            for caller in callers[:2]:
                # Nobody was served on what was lost, so all of the limit is there.
                headers = dict((await limiter.admit(caller, Demand(1000, 0, 0), FREE)).headers)
                assert headers[b"x-ratelimit-remaining-requests"] == b"9"
                assert headers[b"x-ratelimit-remaining-tokens"] == b"0"
            with pytest.raises(Refusal, match="10 requests per minute"):  # its reserve was refused, and took nothing
                await limiter.admit(callers[2], Demand(1, 0, 0), FREE)
            for lease in held:
                limiter.settle(lease, Usage(prompt_tokens=1))

    async def test_a_server_that_is_killed_and_comes_back_empty_is_taken_up_again(self, tmp_path):
        server = Server(tmp_path)
        server.start()
        try:
            async with gateways(server.url, timeout_seconds=1.0) as (limiter,):
                caller = a_caller(key=RateLimits(max_parallel_requests=1), budget=Budget(limit=100))
                lease = await limiter.admit(caller, Demand(10, 0, 0), FREE)
                server.kill()
                await until(lambda: not limiter.shared, "the gateway has noticed", 40)
                with pytest.raises(Refusal, match="1 parallel requests"):
                    await limiter.admit(caller, Demand(10, 0, 0), FREE)
                server.start()
                await until(lambda: limiter.shared, "the counters are shared again")
                with pytest.raises(Refusal, match="1 parallel requests"):
                    await limiter.admit(caller, Demand(10, 0, 0), FREE)
                limiter.settle(lease, Usage(prompt_tokens=4))
                again = await until_admitted(limiter, caller, Demand(10, 0, 0))
                assert dict(again.headers)[b"x-millpond-budget-remaining"] == b"86"
        finally:
            server.kill()

    async def test_a_gateway_that_starts_without_them_serves_and_finds_them_later(self, tmp_path):
        server = Server(tmp_path)
        try:
            async with gateways(server.url, timeout_seconds=1.0, gateways=4) as (limiter,):
                caller = a_caller(key=RateLimits(requests_per_minute=20))
                assert len(await admitted([limiter], caller, 30, Demand(1, 0, 0))) == 5
                server.start()
                await until(lambda: limiter.shared, "the counters are found")
                assert len(await admitted([limiter], caller, 30, Demand(1, 0, 0))) == 15
        finally:
            server.kill()


async def test_a_whole_gateway_says_whether_its_limits_are_shared(server, start_gateway, control):
    limits = RateLimits(requests_per_minute=100)
    control[0].table = a_table(*control[0].table.endpoints, acme_limits=limits)
    async with start_gateway(limits_url=server.url, limits_timeout_seconds=0.2) as gateway:
        status, _, headers = await gateway.post(ask())
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "99")
        _, health, _ = await gateway.get("/health")
        assert (health["limits_shared"], health["limits_gateways"]) == (True, 1)
        assert control[0].reports[-1].limits_shared
        server.signal(signal.SIGSTOP)
        try:
            status, _, headers = await gateway.post(ask())
            assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "98")
            _, health, _ = await gateway.get("/health")
            assert (health["status"], health["limits_shared"]) == ("ok", False)
        finally:
            server.signal(signal.SIGCONT)
        await until(lambda: gateway.core.limiter.shared, "limits are shared again")


async def test_a_budget_of_a_thousand_million_holds_nobody_up(server):
    """Costs are counted in parts of a millionth: such an amount is no integer that MessagePack could carry."""
    caller = a_caller(budget=Budget(limit=10**15, used=10**15 - 1_000_000, unit="cost"))
    price = TokenPrice(prompt=1_000_000, completion=1_000_000)
    async with gateways(server.url) as (limiter,):
        lease = await limiter.admit(caller, Demand(400_000, 0, 0), price)
        with pytest.raises(Refusal, match="does not cover"):
            await limiter.admit(caller, Demand(700_000, 0, 0), price)
        limiter.settle(lease, Usage(prompt_tokens=400_000))
        small = a_caller(key=RateLimits(requests_per_minute=1), name="small")
        await limiter.admit(small, Demand(1, 0, 0), price)
        with pytest.raises(Refusal, match="1 requests per minute"):
            await limiter.admit(small, Demand(1, 0, 0), price)
        assert limiter.shared


async def test_nobody_waits_for_counters_whose_loop_has_failed(server, monkeypatch):
    async with gateways(server.url) as (limiter,):
        caller = a_caller(key=RateLimits(requests_per_minute=5))
        await limiter.admit(caller, Demand(1, 0, 0), FREE)

        def broken(_message):
            raise OverflowError("told to fail")

        monkeypatch.setattr("runtime.gateway.limits.counters.msgspec.msgpack.encode", broken)
        async with asyncio.timeout(10):
            for _ in range(3):
                limiter.settle(await limiter.admit(caller, Demand(1, 0, 0), FREE), Usage())
        assert not limiter.shared
