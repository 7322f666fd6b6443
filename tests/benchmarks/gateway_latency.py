"""What the gateway adds to a request: the same calls at a steady rate, directly to the backend and through a gateway.

With ``--direct``, ``--gateway``, ``--key`` and ``--model`` it measures what is running. Without them it starts its own:
a trivial backend in one process, a gateway (authentication, limits and metering on) in another, and a control plane
that hands out the table. Both ways are called in turn, request by request, so that both see the same machine.
Prints a table, and one JSON object as its last line. Milliseconds.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.build import gateway_peers as peers
from tests.build.gateway_engine import FakeEngine

ROOT = Path(__file__).parents[2]


class Target(NamedTuple):
    """Where to send a request, as whom, and what."""

    url: str
    token: str
    model: str


async def main() -> None:
    """Measure and print."""
    options = _options()
    if options.direct:
        direct = Target(options.direct, options.direct_token, options.direct_model or options.model)
        await _compare(options, direct, Target(options.gateway, options.key, options.model))
        return
    async with _own_stack() as (direct, gateway):
        await _compare(options, direct, gateway)


async def _compare(options: argparse.Namespace, direct: Target, gateway: Target) -> None:
    results: dict[str, dict[str, float]] = {}
    for stream in (False, True):
        times = await _measure(options, direct, gateway, stream=stream)
        for way, seconds in times.items():
            results[f"{way} {'stream' if stream else 'plain'}"] = _summary(seconds)
    print(f"{options.rate:g} requests/s for {options.seconds:g} s each way; time to the whole answer, ms")
    print(f"{'':<16}{'count':>8}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}")
    for name, row in results.items():
        print(f"{name:<16}{row['count']:>8.0f}{row['p50']:>9.2f}{row['p90']:>9.2f}{row['p99']:>9.2f}{row['max']:>9.2f}")
    added = {
        f"added_{quantile}_ms{suffix}": round(
            results[f"gateway {kind}"][quantile] - results[f"direct {kind}"][quantile], 3
        )
        for kind, suffix in (("plain", ""), ("stream", "_stream"))
        for quantile in ("p50", "p99")
    }
    print(json.dumps({"rate": options.rate, **added}))


async def _measure(
    options: argparse.Namespace, direct: Target, gateway: Target, *, stream: bool
) -> dict[str, list[float]]:
    """Seconds of every call. One call of each way per tick; starts are not held up by slow answers."""
    times: dict[str, list[float]] = {"direct": [], "gateway": []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for target in (direct, gateway):
            for _ in range(20):
                await _call(http, target, options, stream=stream, into=[])
        calls: list[asyncio.Task[None]] = []
        begin, gap = time.perf_counter(), 1 / options.rate
        for tick in range(round(options.seconds * options.rate)):
            for offset, (name, target) in enumerate((("direct", direct), ("gateway", gateway))):
                due = begin + (tick + offset / 2) * gap
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                calls.append(asyncio.create_task(_call(http, target, options, stream=stream, into=times[name])))
        await asyncio.gather(*calls)
    return times


async def _call(
    http: aiohttp.ClientSession, target: Target, options: argparse.Namespace, *, stream: bool, into: list[float]
) -> None:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "Say one word."}],
        "max_tokens": options.max_tokens,
        "stream": stream,
    }
    began = time.perf_counter()
    async with http.post(
        target.url.rstrip("/") + "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {target.token}"}
    ) as response:
        await response.read()
        if response.status != 200:
            raise SystemExit(f"{target.url} answered {response.status}: {(await response.text())[:300]}")
    into.append(time.perf_counter() - began)


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(second * 1000 for second in seconds)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return {
        "count": len(ordered),
        "p50": quantile(0.5),
        "p90": quantile(0.9),
        "p99": quantile(0.99),
        "max": ordered[-1],
    }


@contextlib.asynccontextmanager
async def _own_stack() -> AsyncIterator[tuple[Target, Target]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "token").write_text(peers.JOIN_TOKEN)
        async with _process([__file__, "--backend", str(folder / "backend")], {}, folder / "backend") as backend:
            endpoint = peers.an_endpoint("chat", peers.a_variant(peers.a_replica(backend)))
            control = peers.FakeControl(
                peers.a_table(endpoint, acme_limits=peers.RateLimits(requests_per_minute=10**6))
            )
            async with peers.serving(peers.plain(control)) as control_url:
                environment = {
                    "MILLPOND_CONTROL_URL": control_url,
                    "MILLPOND_GATEWAY_DIR": str(folder / "gateway"),
                    "MILLPOND_GATEWAY_PORT": "0",
                    "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(folder / "token"),
                }
                address = folder / "gateway" / "address.json"
                async with _process(["-m", "runtime.gateway"], environment, address) as gateway:
                    await peers.until(lambda: any(report.applied_generation for report in control.reports), "a table")
                    yield Target(backend, peers.ENGINE_TOKEN, "chat"), Target(gateway, peers.ACME_KEY, "chat")


@contextlib.asynccontextmanager
async def _process(arguments: list[str], environment: dict[str, str], address: Path) -> AsyncIterator[str]:
    """Run a Python process; yield the URL that it writes to ``address``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await peers.until(lambda: address.exists() or process.returncode is not None, "the process listens", 30)
        yield _url_in(address)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _url_in(address: Path) -> str:
    return str(json.loads(address.read_text())["url"])


async def _serve_backend(address: Path) -> None:
    async with peers.serving(peers.plain(FakeEngine(tokens=8))) as url:
        temporary = address.with_suffix(".new")
        temporary.write_text(json.dumps({"url": url}))
        temporary.rename(address)
        await asyncio.Event().wait()


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direct", default="", help="base URL of the backend, without /v1")
    parser.add_argument("--direct-token", default="", help="bearer token of the backend")
    parser.add_argument("--direct-model", default="", help="model name at the backend, where it differs")
    parser.add_argument("--gateway", default="", help="base URL of the gateway, without /v1")
    parser.add_argument("--key", default="", help="API key at the gateway")
    parser.add_argument("--model", default="chat", help="model name at the gateway")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second each way")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each of the two measurements")
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--backend", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if bool(options.direct) != bool(options.gateway):
        parser.error("give both --direct and --gateway, or neither")
    return options


if __name__ == "__main__":
    if _backend := _options().backend:
        asyncio.run(_serve_backend(Path(_backend)))
    else:
        asyncio.run(main())
