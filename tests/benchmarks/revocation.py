"""How long a key still works after the reply that revokes it: real gateways, under load, again and again.

Starts a web process, three gateways and a trivial engine. Each round makes a key, loads every gateway with it, revokes
it over REST, and goes on calling for a while. A request counts as accepted when it is answered 200; its time is when it
was sent. Prints one line per round (milliseconds after the reply; negative: before it) and, as its last line, one JSON
object: ``last_accept_after_reply_ms`` is the worst of all rounds, 0 when no request sent after the reply was accepted.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from typing import Any, NamedTuple

import aiohttp

from tests.build import plane
from tests.build.gateway_peers import ask

LINGER_SECONDS = 0.5
SETTLE_SECONDS = 15.0


class Call(NamedTuple):
    """When a request was sent (monotonic seconds), to which gateway, and its status."""

    sent: float
    gateway: int
    status: int


class Round(NamedTuple):
    """``accept_ms``: when the last accepted request was sent, after the reply; ``reply_ms``: how long that took."""

    accept_ms: float
    reply_ms: float
    calls: int
    refused: int
    acknowledged: int
    failures: int


async def main() -> None:
    """Measure and print."""
    options = _options()
    rounds: list[Round] = []
    async with plane.running(options.gateways) as stack, aiohttp.ClientSession() as http:
        for number in range(options.rounds):
            done = await one_round(http, stack, options.rate)
            rounds.append(done)
            print(
                f"{number + 1:>3}  last accept {done.accept_ms:>8.1f} ms after the reply ({done.reply_ms:.0f} ms, names"
                f" {done.acknowledged} gateways); {done.calls} calls, {done.refused} refused, {done.failures} failed",
                flush=True,
            )
    print(json.dumps(summary(rounds, options)))


def summary(rounds: list[Round], options: argparse.Namespace) -> dict[str, Any]:
    """The last line."""
    return {
        "rounds": len(rounds),
        "gateways": options.gateways,
        "rate": options.rate,
        "last_accept_after_reply_ms": round(max(0.0, *(one.accept_ms for one in rounds)), 1),
        "reply_ms_p50": round(statistics.median(one.reply_ms for one in rounds), 1),
        "reply_ms_max": round(max(one.reply_ms for one in rounds), 1),
        "complete_replies": sum(one.acknowledged == options.gateways for one in rounds),
        "failures": sum(one.failures for one in rounds),
    }


async def one_round(http: aiohttp.ClientSession, stack: plane.Plane, rate: float) -> Round:
    """Make a key, load all gateways with it, revoke it, look who still accepts it."""
    keys = f"{stack.web}/api/v1/tenants/acme/keys"
    mine = {"authorization": f"Bearer {stack.token}"}
    async with http.post(keys, json={"name": "bench"}, headers=mine) as answer:
        assert answer.status == 201, await answer.text()
        made = await answer.json()
    await _known_everywhere(http, stack, made["key"])
    calls: list[Call] = []
    load = [
        asyncio.create_task(_load(http, number, url, made["key"], rate / len(stack.gateways), calls))
        for number, url in enumerate(stack.gateways)
    ]
    try:
        await asyncio.sleep(LINGER_SECONDS)
        began = time.monotonic()
        async with http.post(f"{keys}/{made['id']}/revoke", json={}, headers=mine) as answer:
            assert answer.status == 200, await answer.text()
            known = (await answer.json())["revocation"]
        replied = time.monotonic()
        await asyncio.sleep(LINGER_SECONDS)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    accepted = [call.sent for call in calls if call.status == 200]
    return Round(
        accept_ms=(max(accepted, default=began) - replied) * 1000,
        reply_ms=(replied - began) * 1000,
        calls=len(calls),
        refused=sum(call.status == 401 for call in calls),
        acknowledged=len(known["acknowledged"]),
        failures=sum(call.status not in (200, 401) for call in calls),
    )


async def _known_everywhere(http: aiohttp.ClientSession, stack: plane.Plane, key: str) -> None:
    async with asyncio.timeout(SETTLE_SECONDS):
        for url in stack.gateways:
            while (await _call(http, url, key)) != 200:  # noqa: ASYNC110 - a gateway sets no event of ours
                await asyncio.sleep(0.05)


async def _load(http: aiohttp.ClientSession, number: int, url: str, key: str, rate: float, calls: list[Call]) -> None:
    """Start ``rate`` calls a second; starts are not held up by slow answers."""

    async def call() -> None:
        sent = time.monotonic()
        status = await _call(http, url, key)
        calls.append(Call(sent, number, status))

    begin, tick = time.monotonic(), 0
    async with asyncio.TaskGroup() as group:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(max(0.0, begin + tick / rate - time.monotonic()))
                group.create_task(call())
                tick += 1


async def _call(http: aiohttp.ClientSession, url: str, key: str) -> int:
    try:
        async with http.post(
            f"{url}/v1/chat/completions", json=ask(max_tokens=2), headers={"authorization": f"Bearer {key}"}
        ) as response:
            await response.read()
            return response.status
    except aiohttp.ClientError:
        return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second, over all gateways")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
