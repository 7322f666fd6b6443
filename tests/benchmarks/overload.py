"""Ten times more than a deployment can take, in three criticalities: goodput, the top class, how fast a refusal is.

A real gateway over HTTP before an engine that grants credits and needs a fixed time for each request. First the peak is
measured with as many callers as there are credits; then callers come at a steady rate of ``--times`` the peak, most of
them sheddable, with requests of the top class below the peak. Goodput counts complete answers. Prints a table, and one
JSON object as its last line.
"""

import argparse
import asyncio
import collections
import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from runtime.base import asgi, logs
from runtime.gateway.auth import HEADER_CRITICALITY
from runtime.wire.inference import PRIORITIES
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import ACME_KEY, a_key, a_replica, a_table, a_variant, an_endpoint, ask, plain, serving
from tests.build.gateway_whole import whole_gateway

TOP_SHARE_OF_PEAK: Final = 0.5
SHEDDABLE_SHARE: Final = 0.6  # of what is not of the top class


class SlowEngine(FakeEngine):
    """Needs ``seconds`` for each request, up to ``credits`` at one time."""

    def __init__(self, seconds: float, credits: int) -> None:
        super().__init__(tokens=1)
        self.seconds = seconds
        self.credits = credits

    async def _whole(self, request: asgi.Request, request_id: str) -> None:
        await asyncio.sleep(self.seconds)
        await super()._whole(request, request_id)
        self.requests.clear()


class Tally:
    """What came of the requests of one phase. Milliseconds."""

    def __init__(self) -> None:
        self.offered: collections.Counter[str] = collections.Counter()
        self.answered: dict[str, list[float]] = {name: [] for name in PRIORITIES}
        self.refused: dict[str, list[float]] = {name: [] for name in PRIORITIES}
        self.retry_after: list[float] = []
        self.odd: collections.Counter[int] = collections.Counter()

    async def call(self, http: aiohttp.ClientSession, url: str, priority: str) -> None:
        """One request of a class."""
        self.offered[priority] += 1
        headers = {"authorization": f"Bearer {ACME_KEY}", HEADER_CRITICALITY: priority}
        began = time.perf_counter()
        async with http.post(f"{url}/v1/chat/completions", json=ask(), headers=headers) as response:
            await response.read()
            took = (time.perf_counter() - began) * 1000
            if response.status == 200:
                self.answered[priority].append(took)
            elif response.status == 503 and "retry-after" in response.headers:
                self.refused[priority].append(took)
                self.retry_after.append(float(response.headers["retry-after"]))
            else:
                self.odd[response.status] += 1

    @property
    def good(self) -> int:
        """Complete answers."""
        return sum(map(len, self.answered.values()))


async def main() -> None:
    """Measure and print."""
    options = _options()
    logs.configure(process="benchmark", level="ERROR")
    engine = SlowEngine(options.engine_ms / 1000, options.credits)
    with tempfile.TemporaryDirectory() as name:
        async with serving(plain(engine)) as engine_url:
            key = a_key(ACME_KEY, "acme", criticalities=["critical"])
            table = a_table(an_endpoint("chat", a_variant(a_replica(engine_url))), keys=[key])
            async with (
                whole_gateway(Path(name), table, hold_seconds=options.hold_seconds) as (url, _, _),
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
            ):
                await Tally().call(http, url, "default")  # hears of the credits
                peak = await _peak(options, http, url)
                tally, seconds = await _overload(options, http, url, peak)
    _print(options, peak, tally, seconds)


async def _peak(options: argparse.Namespace, http: aiohttp.ClientSession, url: str) -> float:
    """Answers per second with as many callers as credits."""
    tally, end = Tally(), time.perf_counter() + options.peak_seconds

    async def caller() -> None:
        while time.perf_counter() < end:
            await tally.call(http, url, "default")

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(options.credits)))
    return tally.good / (time.perf_counter() - began)


async def _overload(
    options: argparse.Namespace, http: aiohttp.ClientSession, url: str, peak: float
) -> tuple[Tally, float]:
    """Offer ``times`` the peak; answers count only while it lasts."""
    tally, draw = Tally(), random.Random(options.seed)
    gap = 1 / (peak * options.times)
    calls: list[asyncio.Task[None]] = []
    began = time.perf_counter()
    for number in range(int(options.seconds / gap)):
        await asyncio.sleep(max(0.0, began + number * gap - time.perf_counter()))
        priority = "sheddable" if draw.random() < SHEDDABLE_SHARE else "default"
        if draw.random() < TOP_SHARE_OF_PEAK / options.times:
            priority = "critical"
        calls.append(asyncio.create_task(tally.call(http, url, priority)))
    good, seconds = tally.good, time.perf_counter() - began
    await asyncio.gather(*calls)
    tally.answered["in time"] = [0.0] * good
    return tally, seconds


def _print(options: argparse.Namespace, peak: float, tally: Tally, seconds: float) -> None:
    goodput = len(tally.answered.pop("in time")) / seconds
    offered = sum(tally.offered.values()) / seconds
    print(f"peak {peak:.1f} answers/s; offered {offered:.1f}/s for {seconds:.1f} s; goodput {goodput:.1f}/s")
    print(f"{'':<12}{'offered':>9}{'answered':>10}{'share':>8}{'p50 ms':>9}{'p99 ms':>9}{'refused p99 ms':>16}")
    for name in reversed(PRIORITIES):
        answers, refusals = tally.answered[name], tally.refused[name]
        share = len(answers) / max(1, tally.offered[name])
        print(
            f"{name:<12}{tally.offered[name]:>9}{len(answers):>10}{share:>8.1%}{_at(answers, 0.5):>9.1f}"
            f"{_at(answers, 0.99):>9.1f}{_at(refusals, 0.99):>16.1f}"
        )
    refused = [took for each in tally.refused.values() for took in each]
    figures: dict[str, Any] = {
        "offered_over_peak": round(offered / peak, 2),
        "goodput_over_peak": round(goodput / peak, 3),
        "top_class_success": round(len(tally.answered["critical"]) / max(1, tally.offered["critical"]), 4),
        "refusal_p50_ms": round(_at(refused, 0.5), 1),
        "refusal_p99_ms": round(_at(refused, 0.99), 1),
        "retry_after_p50_s": _at(tally.retry_after, 0.5),
        "other_answers": dict(tally.odd),
    }
    print(json.dumps(figures))


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--peak-seconds", type=float, default=5.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--credits", type=int, default=8)
    parser.add_argument("--engine-ms", type=float, default=200.0, help="what the engine needs for a request")
    parser.add_argument("--hold-seconds", type=float, default=5.0, help="how long the gateway lets a request wait")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
