"""Whether limits are exact with three gateways on one Valkey, and how fast a revoked key is refused.

1. 200 calls at once against a budget of ten calls: how many are accepted, and what is overspent.
2. Requests and tokens per minute, each offered at 150 % for whole minutes: what is accepted, in percent of the limit.
3. A key revoked under load, again and again: how long until every gateway has acknowledged, and what any of them
   accepted after that.

Prints a table, and one JSON object as its last line.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from runtime.wire.routes import Budget, EndpointEntry, KeyEntry, RateLimits, RouteTable, TokenPrice
from tests.benchmarks.gateway import Machine, process, valkey
from tests.build import gateway_peers as peers
from tests.build.gateway_engine import FakeEngine

GATEWAYS: Final = 3
RPM: Final = 600
TPM: Final = 6000
_CALL_TOKENS: Final = 10  # what the engine counts for one call: 7 of prompt, 3 of completion
_KEYS: Final = {name: f"mp_{name * 4:.12}_" + "k" * 43 for name in ("budget", "rpm", "tpm", "revoke")}


class Bench(NamedTuple):
    """What runs."""

    urls: list[str]
    control: peers.FakeControl
    http: aiohttp.ClientSession


async def main() -> None:
    """Measure and print."""
    options = _options()
    async with _running() as bench:
        found = {**await _budget(bench), **await _rates(bench, options.minutes)}
        found |= await _revoke(bench, options.revocations, options.rate)
    for name, value in found.items():
        print(f"{name:<36}{value:>12.2f}")
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


async def _budget(bench: Bench) -> dict[str, float]:
    statuses = await asyncio.gather(*(_call(bench, "budget", number) for number in range(200)))
    accepted = statuses.count(200)
    await peers.until(lambda: _booked(bench, "budget") >= accepted, "what was accepted is booked", 30)
    spent = sum(r.completion_tokens for r in bench.control.booked.values() if r.key_id == "key-budget")
    return {"budget_accepted_of_10": accepted, "budget_overspent_tokens": max(0, spent - 30)}


async def _rates(bench: Bench, minutes: int) -> dict[str, float]:
    """Both at once, each on a key of its own."""
    counts = await asyncio.gather(*(_offer(bench, name, minutes) for name in ("rpm", "tpm")))
    wanted = {"rpm": RPM * minutes, "tpm": TPM * minutes / _CALL_TOKENS}
    return {
        f"{name}_accepted_percent": 100 * count / wanted[name]
        for name, count in zip(("rpm", "tpm"), counts, strict=True)
    }


async def _offer(bench: Bench, name: str, minutes: int) -> int:
    rate = 1.5 * (RPM if name == "rpm" else TPM / _CALL_TOKENS) / 60
    begin = asyncio.get_running_loop().time()
    calls: list[asyncio.Task[int]] = []
    for number in range(round(rate * 60 * minutes)):
        await asyncio.sleep(max(0.0, begin + number / rate - asyncio.get_running_loop().time()))
        calls.append(asyncio.create_task(_call(bench, name, number)))
    return (await asyncio.gather(*calls)).count(200)


async def _revoke(bench: Bench, times: int, rate: float) -> dict[str, float]:
    control, slowest, after, last = bench.control, 0.0, 0, 0.0
    for _ in range(times):
        control.table = _table(control.table.endpoints[0], control.table.generation + 1)
        await _acknowledged(control)
        accepted: list[float] = []  # when each accepted call was sent
        stop = asyncio.Event()
        hammering = asyncio.create_task(_hammer(bench, rate, accepted, stop))
        await peers.until(lambda: len(accepted) >= 10, "the key is used")  # noqa: B023 - awaited in this round
        revoked = time.perf_counter()
        control.table = _table(control.table.endpoints[0], control.table.generation + 1, without="revoke")
        await _acknowledged(control)
        acknowledged = time.perf_counter()
        slowest = max(slowest, acknowledged - revoked)
        await asyncio.sleep(0.3)  # the load goes on
        stop.set()
        await hammering
        late = [at - acknowledged for at in accepted if at > acknowledged]
        after += len(late)
        last = max([last, *late])
    return {
        "revoke_slowest_ack_ms": slowest * 1000,
        "revoke_accepted_after_ack": after,
        "revoke_last_accept_after_ack_ms": last * 1000,
    }


async def _hammer(bench: Bench, rate: float, accepted: list[float], stop: asyncio.Event) -> None:
    calls: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        sent = time.perf_counter()
        if await _call(bench, "revoke", number) == 200:
            accepted.append(sent)

    number = 0
    begin = asyncio.get_running_loop().time()
    while not stop.is_set():
        await asyncio.sleep(max(0.0, begin + number / rate - asyncio.get_running_loop().time()))
        task = asyncio.create_task(one(number))
        calls.add(task)
        task.add_done_callback(calls.discard)
        number += 1
    await asyncio.gather(*calls)


async def _acknowledged(control: peers.FakeControl) -> None:
    generation = control.table.generation
    control.hint(generation)
    await peers.until(lambda: _acks(control, generation) >= GATEWAYS, "every gateway acknowledges", 30)


def _acks(control: peers.FakeControl, generation: int) -> int:
    said = sum(applied >= generation for applied in control.acknowledged.values())
    return max(said, len({report.url for report in control.reports if report.applied_generation >= generation}))


async def _call(bench: Bench, name: str, number: int) -> int:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    url = bench.urls[number % len(bench.urls)] + "/v1/chat/completions"
    async with bench.http.post(url, json=body, headers={"authorization": f"Bearer {_KEYS[name]}"}) as response:
        await response.read()
        return response.status


def _booked(bench: Bench, name: str) -> int:
    return sum(record.key_id == f"key-{name}" for record in bench.control.booked.values())


# --- what runs ---


def _table(endpoint: EndpointEntry, generation: int, without: str = "") -> RouteTable:
    limits: dict[str, tuple[RateLimits, Budget | None]] = {
        # Only completions cost, so ten calls are worth exactly what ten calls may come to.
        "budget": (RateLimits(), Budget(limit=30, unit="cost", period="month")),
        "rpm": (RateLimits(requests_per_minute=RPM), None),
        "tpm": (RateLimits(tokens_per_minute=TPM), None),
        "revoke": (RateLimits(), None),
    }
    keys: list[KeyEntry] = []
    for name, (rates, budget) in limits.items():
        if name != without:
            entry = peers.a_key(_KEYS[name], "acme", limits=rates, budget=budget)
            keys.append(KeyEntry(**{**{f: getattr(entry, f) for f in entry.__struct_fields__}, "id": f"key-{name}"}))
    return peers.a_table(endpoint, keys=keys, generation=generation)


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[Bench]:
    """Three gateway processes, an engine, a Valkey; control plane and load in this process."""
    cores = sorted(os.sched_getaffinity(0))
    machine = Machine(cores[0], cores[0])
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = await stack.enter_async_context(peers.serving(peers.plain(FakeEngine())))
        limits_url = await stack.enter_async_context(valkey(folder, machine))
        price = TokenPrice(completion=1_000_000)
        endpoint = peers.an_endpoint("chat", peers.a_variant(peers.a_replica(engine)), price=price)
        control = peers.FakeControl(_table(endpoint, 1))
        control_url = await stack.enter_async_context(peers.serving(peers.plain(control)))
        urls: list[str] = []
        for number in range(GATEWAYS):
            home = folder / f"gateway-{number}"
            token = folder / f"token-{number}"
            token.write_text(control.issue())
            environment = {
                "MILLPOND_CONTROL_URL": control_url,
                "MILLPOND_GATEWAY_DIR": str(home),
                "MILLPOND_GATEWAY_PORT": "0",
                "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(token),
                "MILLPOND_GATEWAY_LIMITS_URL": limits_url,
            }
            arguments = [sys.executable, "-m", "runtime.gateway"]
            address = home / "address.json"
            await stack.enter_async_context(
                process(arguments, cores[number % len(cores)], ready=address, environment=environment)
            )
            urls.append(str(json.loads(address.read_text())["url"]))
        await peers.until(lambda: _acks(control, 1) >= GATEWAYS, "every gateway has a table", 60)
        await peers.until(lambda: control.listeners >= GATEWAYS, "every gateway listens", 60)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        yield Bench(urls, control, http)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=2, help="whole minutes at 150 %% of the limits")
    parser.add_argument("--revocations", type=int, default=50)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second while keys are revoked")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
