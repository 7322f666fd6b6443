"""Prefix hits and balance of the gateway's choice of replica, on a recorded trace of conversations.

The trace (``--traces``: ``conversation_trace.jsonl``, its folder, or the folder of all public traces) names each
prompt's blocks of 512 tokens. From them request bodies are made, and every request enters through the pool that the
gateway itself takes its slots from. The replicas are simulated: an LRU cache of blocks each, and a server that works
off what was not cached. Round robin and a single unlimited cache are shown from the same run. Prints a table, and one
JSON object as its last line.
"""

import argparse
import collections
import heapq
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from runtime.base.clock import FakeClock
from runtime.gateway.asks import Ask, Outcome, Slot
from runtime.gateway.metrics import Metrics
from runtime.gateway.pool import Pool
from runtime.gateway.settings import Settings
from tests.build.gateway_peers import a_replica, a_variant, an_endpoint

BLOCK_TOKENS = 512
BYTES_PER_TOKEN = 4
TRACE = "conversation_trace.jsonl"
STEP_MS = 3000  # the trace's times come in steps of about this


class Request(NamedTuple):
    """One line of the trace. Seconds and tokens."""

    at: float
    prompt: int
    answer: int
    blocks: list[int]


class Cache:
    """A replica's blocks, least recently used out first."""

    def __init__(self, blocks: int | None) -> None:
        self._most = blocks
        self._blocks: collections.OrderedDict[int, None] = collections.OrderedDict()

    def use(self, blocks: list[int]) -> int:
        """Return how many of ``blocks`` from the start were there; all are there afterwards, the first the newest."""
        hit = 0
        while hit < len(blocks) and blocks[hit] in self._blocks:
            hit += 1
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self._most is not None and len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return hit


class Result(NamedTuple):
    """``load`` is what the fullest replica had to compute, over the mean; ``prompts`` the same of all prompt tokens."""

    hit: float
    load: float
    prompts: float


class Replay:
    """One pass over the trace."""

    def __init__(self, replicas: int, blocks: int | None, speed: float) -> None:
        self.caches = [Cache(blocks) for _ in range(replicas)]
        self.computed = [0.0] * replicas
        self.prompts = [0.0] * replicas
        self.free_at = [0.0] * replicas
        self.speed = speed
        self.hits = self.blocks = 0

    def serve(self, at: int, request: Request) -> float:
        """Let replica ``at`` serve ``request``; return when it is done."""
        hit = self.caches[at].use(request.blocks)
        self.hits += hit
        self.blocks += len(request.blocks)
        work = max(0, request.prompt - hit * BLOCK_TOKENS)
        self.computed[at] += work
        self.prompts[at] += request.prompt
        self.free_at[at] = max(self.free_at[at], request.at) + (work + request.answer) / self.speed
        return self.free_at[at]

    def result(self) -> Result:
        """The figures of the whole pass."""
        return Result(self.hits / self.blocks, _imbalance(self.computed), _imbalance(self.prompts))


def _imbalance(loads: list[float]) -> float:
    return max(loads) * len(loads) / sum(loads)


def read(path: Path) -> list[Request]:
    """Read the trace in its order; those of one time are spread evenly over the step to the next."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    sizes = collections.Counter(row["timestamp"] for row in rows)
    seen: collections.Counter[int] = collections.Counter()
    requests: list[Request] = []
    for row in rows:
        time = row["timestamp"]
        at = (time + STEP_MS * seen[time] / sizes[time]) / 1000
        seen[time] += 1
        requests.append(Request(at, row["input_length"], row["output_length"], row["hash_ids"]))
    return sorted(requests, key=lambda request: request.at)


def body_of(request: Request) -> bytes:
    """A chat request whose text has the trace's blocks: the same text for the same block, four bytes a token."""
    size = BLOCK_TOKENS * BYTES_PER_TOKEN
    text = b"".join((b"%x " % block).ljust(16, b".") * (size // 16) for block in request.blocks)
    text = text[: request.prompt * BYTES_PER_TOKEN]
    return b'{"model":"chat","messages":[{"role":"user","content":"' + text + b'"}]}'


def through_the_gateway(requests: list[Request], replay: Replay) -> None:
    """Serve every request where the gateway's pool puts it; slots go back when the replica is done."""
    clock = FakeClock(0.0)
    names = {f"replica-{number}": number for number in range(len(replay.caches))}
    endpoint = an_endpoint("chat", a_variant(*(a_replica("http://engine", number) for number in names.values())))
    settings = Settings(control_url="http://control", directory=Path("/nonexistent"))
    pool = Pool(settings, clock, Metrics(), snapshot=lambda: None, wake=lambda _: None)
    ends: list[tuple[float, int, Slot, Request]] = []
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.at:
            end, _, slot, done = heapq.heappop(ends)
            clock.advance(max(0.0, end - clock.monotonic()))
            pool.give_back(slot, Outcome(e2e_ms=1.0, completion=done.answer))
        clock.advance(max(0.0, request.at - clock.monotonic()))
        ask = Ask(endpoint, body_of(request), tenant_id="acme", salt="salt", since=request.at, until=request.at + 3600)
        slot = pool.take(ask)
        assert isinstance(slot, Slot), slot
        end = replay.serve(names[slot.choice.replica.replica_id], request)
        heapq.heappush(ends, (end, number, slot, request))


def main() -> None:
    """Replay and print."""
    options = _options()
    requests = read(_trace_in(options.traces))[: options.requests]
    blocks = int(options.cache_tokens // BLOCK_TOKENS)
    results: dict[str, Result] = {}
    for name, replicas, most in (
        ("gateway", options.replicas, blocks),
        ("round robin", options.replicas, blocks),
        ("unlimited", 1, None),
    ):
        replay = Replay(replicas, most, options.speed)
        if name == "gateway":
            through_the_gateway(requests, replay)
        else:
            for number, request in enumerate(requests):
                replay.serve(number % replicas, request)
        results[name] = replay.result()
    print(f"{len(requests)} requests, {options.replicas} simulated replicas of {options.cache_tokens:g} cached tokens")
    print(f"{'':<14}{'block hit':>10}{'computed max/mean':>20}{'prompts max/mean':>20}")
    for name, row in results.items():
        print(f"{name:<14}{row.hit:>9.1%}{row.load:>20.3f}{row.prompts:>20.3f}")
    print(json.dumps(_figures(results)))


def _trace_in(given: Path) -> Path:
    """The trace's file, where ``given`` is the file, the folder, or the folder of all public traces."""
    for path in (given, given / TRACE, given / "mooncake" / TRACE):
        if path.is_file():
            return path
    raise SystemExit(f"no {TRACE} in {given} or {given / 'mooncake'}: name the file or its folder (TRACES=...)")


def _figures(results: dict[str, Result]) -> dict[str, Any]:
    return {
        "block_hit": round(results["gateway"].hit, 4),
        "load_max_over_mean": round(results["gateway"].load, 4),
        "round_robin_hit": round(results["round robin"].hit, 4),
        "unlimited_hit": round(results["unlimited"].hit, 4),
        "prompt_tokens_max_over_mean": round(results["gateway"].prompts, 4),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, default=os.environ.get("TRACES") or None, help="default: $TRACES")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--cache-tokens", type=float, default=3.2e6)
    parser.add_argument("--speed", type=float, default=20_000.0, help="tokens/s that a simulated replica computes")
    parser.add_argument("--requests", type=int, default=None, help="only so many from the start")
    options = parser.parse_args()
    if options.traces is None:
        parser.error(f"name the folder with {TRACE}: --traces FOLDER, or TRACES=FOLDER")
    return options


if __name__ == "__main__":
    main()
