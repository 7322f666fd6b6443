"""Clients that leave at any moment: what they held is free again, and what was computed is booked.

A real engine process (a tiny model on the CPU) behind a real gateway. Each client opens a connection and closes or
resets it at a random phase: within the head, within the body, right after it, while the answer is prepared, or after
some of its events. Measured is the time from the last of them until the engine runs and holds nothing, the gateway has
nothing under way and no limit is held. Prints what was left where, and one JSON object as its last line.
"""

import argparse
import asyncio
import collections
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from runtime.base import logs
from runtime.gateway.core import Core
from runtime.wire.reports import EngineStats
from runtime.wire.routes import RateLimits, ReplicaRoute
from tests.build.engines import EngineHandle, engine_process
from tests.build.gateway_peers import ACME_KEY, a_table, a_variant, an_endpoint, until
from tests.build.gateway_whole import whole_gateway
from tests.build.models import tiny_llama

PHASES: Final = ("within the head", "within the body", "after the body", "while waiting", "within the answer")
ALLOWED_SECONDS: Final = 1.0


class Crowd:
    """Clients with one seed."""

    def __init__(self, port: int, options: argparse.Namespace) -> None:
        self._port = port
        self._tokens = options.tokens
        self._at_once = asyncio.Semaphore(options.at_once)
        self._random = random.Random(options.seed)
        self.left: collections.Counter[str] = collections.Counter()

    async def all(self, count: int) -> None:
        """Let ``count`` clients come and go."""
        await asyncio.gather(*(self._one(self._random.choice(PHASES)) for _ in range(count)))

    async def _one(self, phase: str) -> None:
        async with self._at_once:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await self._talk(phase, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                phase = "answered before it left"
            finally:
                self.left[phase] += 1
                if self._random.random() < 0.5:
                    writer.transport.abort()
                else:
                    writer.close()

    async def _talk(self, phase: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = phase == "within the answer" or self._random.random() < 0.5
        prompt = "once upon a time " * self._random.randint(1, 8)
        asked = {"model": "chat", "prompt": prompt, "max_tokens": self._tokens, "stream": stream, "ignore_eos": True}
        body = json.dumps(asked).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {ACME_KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        if phase == "within the head":
            writer.write(head[: self._random.randint(1, len(head) - 1)])
        elif phase == "within the body":
            writer.write(head + body[: self._random.randint(0, len(body) - 1)])
        else:
            writer.write(head + body)
        await writer.drain()
        if phase == "while waiting":
            await asyncio.sleep(self._random.uniform(0, 0.3))
        elif phase == "within the answer":
            for _ in range(self._random.randint(1, 12)):
                await reader.readuntil(b"\n")


async def main() -> None:
    """Measure and print."""
    options = _options()
    logs.configure(process="benchmark", level="ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny_llama(folder / "model")
        with engine_process(model, served_name="chat") as engine:
            await asyncio.to_thread(engine.wait_ready)
            await _measure(options, folder, engine)


async def _measure(options: argparse.Namespace, folder: Path, engine: EngineHandle) -> None:
    route = ReplicaRoute(replica_id="replica-1", generation=1, url=engine.url, token=engine.token)
    limits = RateLimits(max_parallel_requests=10_000, requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
    table = a_table(an_endpoint("chat", a_variant(route), max_model_len=256), acme_limits=limits)
    async with whole_gateway(folder, table) as (url, core, control):
        crowd = Crowd(int(url.rsplit(":", 1)[1]), options)
        before = (await _stats(engine), await _blocks(engine))
        began = time.monotonic()
        await crowd.all(options.clients)
        over = time.monotonic()
        left = await _until_free(core, engine, before[1], over)
        took = time.monotonic() - over
        await until(lambda: not core.journal.pending, "all usage is booked")
        after = await _stats(engine)
        computed = after.completion_tokens_total - before[0].completion_tokens_total
        booked = sum(record.completion_tokens for record in control.booked.values())
        aborted = sum(record.status == 499 for record in control.booked.values())
    print(f"{options.clients} clients came and went in {over - began:.1f} s, {aborted} of them while the engine worked")
    for phase, count in sorted(crowd.left.items()):
        print(f"  {count:>5} left {phase}")
    print(f"after the last: {', '.join(left) or 'nothing left'}; free again after {took:.2f} s")
    print(f"completion tokens: {computed} computed, {booked} booked")
    figures = {
        "clients": options.clients,
        "baseline_seconds": round(took, 3),
        "left": len(left),
        "computed_tokens": computed,
        "booked_tokens": booked,
        "within_limit": not left and took <= ALLOWED_SECONDS,
    }
    print(json.dumps(figures))


async def _until_free(core: Core, engine: EngineHandle, blocks: int, since: float) -> list[str]:
    """Wait until nothing is held; return what still is after ten seconds."""
    while True:
        stats = await _stats(engine)
        held = {
            "requests running at the engine": stats.num_requests_running,
            "requests waiting at the engine": stats.num_requests_waiting,
            "KV blocks in use": await _blocks(engine) - blocks,
            "requests at the gateway": len(core.running),
            "slots": core.traffic.outstanding("replica-1"),
            "held requests": core.traffic.held,
            "leases of limits": len(core.limiter._live),
        }
        left = [f"{count} {name}" for name, count in held.items() if count]
        if not left or time.monotonic() - since > 10:
            return left
        await asyncio.sleep(0.02)


async def _stats(engine: EngineHandle) -> EngineStats:
    return (await asyncio.to_thread(engine.state)).stats


async def _blocks(engine: EngineHandle) -> int:
    ledger = (await asyncio.to_thread(engine.state)).ledger
    return ledger.kv_blocks_used if ledger else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64, help="max_tokens of each request")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
