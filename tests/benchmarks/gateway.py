"""What the gateway costs: one process on one core before a trivial backend, with keys, limits and metering on.

The gateway (or its peer) has a core of its own; backend, load, Valkey and control plane share another. Measured are
requests/s over 32 connections, CPU per request and per streamed event, and the latency added at 500 requests/s: the
backend and the gateway are asked in turn, and what is added is the difference within one round. Everything is measured
in short rounds; figures are medians over rounds, ``best`` stands beside them. A round counts as disturbed when what is
measured stood in line for its core for more than a hundredth of the time, or the host took the machine away. Such
rounds are repeated, up to ``_PATIENCE`` times as many as asked for, and the least disturbed count (``waited_percent``
says how much they were). A machine with other work on it needs priority (``chrt -r 5``, or a session whose
``/proc/self/autogroup`` is low), which all that is started here inherits.

Beside it stand nginx as a plain proxy and, with ``LITELLM`` naming its virtual environment, LiteLLM's proxy with one
worker and a master key. Prints a table, and one JSON object as its last line.

    make bench-gateway LITELLM=/path/to/venv
    LITELLM=/path/to/venv python -m tests.benchmarks.gateway --seconds 10
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from runtime.embedded.valkey import Valkey
from runtime.wire.routes import Budget, RateLimits, TenantEntry, TokenPrice
from tests.benchmarks.trivial_backend import ANSWER
from tests.benchmarks.wire_load import Plan
from tests.build import gateway_peers as peers

ROOT: Final = Path(__file__).parents[2]
_PATIENCE: Final = 3
_CALM: Final = 0.01


class Row(NamedTuple):
    """One contender. Microseconds of its own CPU; ``None`` where it was not measured."""

    name: str
    rps: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    best_rps: float
    chunk_us: float | None = None


class Round(NamedTuple):
    """``waited`` is the share of the round for which what is measured could not run; ``result`` is by target."""

    waited: float
    result: dict[str, Any]


class Machine(NamedTuple):
    """Which cores: one for what is measured, one for the rest."""

    measured: int
    rest: int


async def main() -> None:
    """Measure and print."""
    options = _options()
    cores = sorted(os.sched_getaffinity(0))
    machine = Machine(cores[-1], cores[0])
    os.sched_setaffinity(0, {machine.rest})
    rows: list[Row] = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _backends(folder, machine) as (plain, chunks):
            async with _gateway(folder, machine, plain, chunks, options.profile) as (url, pid):
                rows.append(await _measure(options, machine, "millpond", url, peers.ACME_KEY, pid))
                figures |= await _added(options, machine, plain, url, pid)
            if shutil.which("nginx"):
                async with _nginx_proxy(folder, machine, plain) as (url, pid):
                    rows.append(await _measure(options, machine, "nginx", url, "x", pid, stream=False))
            if venv := os.environ.get("LITELLM", ""):
                async with _litellm(folder, machine, Path(venv), plain) as (url, pid, key):
                    rows.append(await _measure(options, machine, "litellm", url, key, pid, stream=False))
    _print(rows, figures)


def _print(rows: list[Row], figures: dict[str, float]) -> None:
    print(f"{'':<10}{'requests/s':>12}{'CPU us/req':>12}{'p50 ms':>9}{'p99 ms':>9}{'CPU us/chunk':>14}")
    for row in rows:
        chunk = f"{row.chunk_us:>14.1f}" if row.chunk_us is not None else f"{'':>14}"
        print(f"{row.name:<10}{row.rps:>12.0f}{row.cpu_us:>12.1f}{row.p50_ms:>9.2f}{row.p99_ms:>9.2f}{chunk}")
    print("added at 500 requests/s, ms:", ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    by_name = {row.name: row for row in rows}
    own = by_name["millpond"]
    last: dict[str, float] = {
        "rps": round(own.rps, 1),
        "rps_best": round(own.best_rps, 1),
        "cpu_us_per_request": round(own.cpu_us, 1),
        "chunk_us": round(own.chunk_us or 0.0, 1),
        **{name: round(value, 3) for name, value in figures.items()},
    }
    for name in ("nginx", "litellm"):
        if name in by_name:
            last[f"rps_{name}"] = round(by_name[name].rps, 1)
    if "litellm" in by_name:
        last["times_litellm"] = round(own.rps / by_name["litellm"].rps, 1)
    print(json.dumps(last))


# --- measuring ---


async def _measure(
    options: argparse.Namespace, machine: Machine, name: str, url: str, key: str, pid: int, *, stream: bool = True
) -> Row:
    plan = Plan([(name, url, key)], "chat", options.connections, options.warm_up)
    await _load(machine, plan)
    rounds = [each.result[name] for each in await _calmest(options, machine, plan, pid)]
    rates = [result["requests"] / result["seconds"] for result in rounds]
    row = Row(
        name,
        statistics.median(rates),
        statistics.median(result["cpu"] / result["requests"] for result in rounds) * 1e6,
        statistics.median(result["latencies"]["p50"] for result in rounds),
        statistics.median(result["latencies"]["p99"] for result in rounds),
        max(rates),
    )
    if not stream:
        return row
    rounds = [
        each.result[name] for each in await _calmest(options, machine, plan._replace(model="stream", stream=True), pid)
    ]
    # What a stream costs beside its events is what a request costs.
    chunks = [(result["cpu"] * 1e6 - result["requests"] * row.cpu_us) / result["events"] for result in rounds]
    return row._replace(chunk_us=statistics.median(chunks))


async def _added(options: argparse.Namespace, machine: Machine, plain: str, url: str, pid: int) -> dict[str, float]:
    """The same requests at a steady rate, in turn to the backend and through the gateway."""
    targets = [("direct", plain, peers.ENGINE_TOKEN), ("gateway", url, peers.ACME_KEY)]
    plan = Plan(targets, "chat", options.connections, 0, options.rate)
    rounds = await _calmest(options, machine, plan, pid)
    figures = {"waited_percent": 100 * statistics.median(each.waited for each in rounds)}
    for quantile in ("p50", "p99"):
        direct, gateway = (
            [each.result[name]["latencies"][quantile] for each in rounds] for name in ("direct", "gateway")
        )
        added = [through - straight for through, straight in zip(gateway, direct, strict=True)]
        name = f"added_{quantile}_ms_at_{options.rate:g}"
        figures |= {
            name: statistics.median(added),
            f"{name}_best": min(added),
            f"direct_{quantile}_ms": statistics.median(direct),
        }
    return figures


async def _calmest(options: argparse.Namespace, machine: Machine, plan: Plan, pid: int) -> list[Round]:
    """``plan`` in rounds that together take the measurement's time: those in which ``pid`` waited least for its core.

    Chosen by the scheduler's account alone, whatever their results.
    """
    plan = plan._replace(seconds=options.seconds / options.rounds)
    rounds: list[Round] = []
    while len(rounds) < options.rounds * _PATIENCE:
        waited, used, begin = _waited(pid), _cpu(pid), time.monotonic()
        result = await _load(machine, plan)
        share = (_waited(pid) - waited) / (time.monotonic() - begin)
        for each in result.values():
            each["cpu"] = _cpu(pid) - used
        rounds.append(Round(share, result))
        if sum(each.waited <= _CALM for each in rounds) >= options.rounds:
            break
    return sorted(rounds, key=lambda each: each.waited)[: options.rounds]


def _waited(pid: int) -> float:
    """Seconds for which ``pid`` stood in line for a core, and for which the host let this machine wait."""
    delay = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    stolen = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]
    return delay + int(stolen) / os.sysconf("SC_CLK_TCK")


async def _load(machine: Machine, plan: Plan) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *("taskset", "-c", str(machine.rest), sys.executable, "-m", "tests.benchmarks.wire_load"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(json.dumps(plan._asdict()).encode())
    if process.returncode:
        raise SystemExit(f"the load ended with {process.returncode}")
    loaded: dict[str, Any] = json.loads(out)
    for name, result in loaded.items():
        if result["failures"]:
            raise SystemExit(
                f"{name} failed {result['failures']} of {result['requests']} requests: {result['failure']}"
            )
    return loaded


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process and its children have used."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


# --- what stands around ---


@contextlib.asynccontextmanager
async def _backends(folder: Path, machine: Machine) -> AsyncIterator[tuple[str, str]]:
    """A backend with one fixed answer (nginx where it is installed), and one that streams."""
    chunk_file = folder / "chunks.json"
    arguments = [sys.executable, "-m", "tests.benchmarks.trivial_backend", str(chunk_file)]
    async with process(arguments, machine.rest, ready=chunk_file) as _:
        chunks = str(json.loads(chunk_file.read_text())["url"])
        if not shutil.which("nginx"):
            yield chunks, chunks
            return
        location = "location / { default_type application/json; return 200 '" + ANSWER.replace("\\", "\\\\") + "'; }\n"
        async with _nginx(folder / "plain", machine.rest, location) as (url, _):
            yield url, chunks


@contextlib.asynccontextmanager
async def _gateway(
    folder: Path, machine: Machine, plain: str, chunks: str, profile: str
) -> AsyncIterator[tuple[str, int]]:
    (folder / "token").write_text(peers.JOIN_TOKEN)
    async with (
        valkey(folder, machine) as limits_url,
        peers.serving(peers.plain(_control(plain, chunks))) as control_url,
    ):
        environment = {
            "MILLPOND_CONTROL_URL": control_url,
            "MILLPOND_GATEWAY_DIR": str(folder / "gateway"),
            "MILLPOND_GATEWAY_PORT": "0",
            "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(folder / "token"),
            "MILLPOND_GATEWAY_LIMITS_URL": limits_url,
        }
        address = folder / "gateway" / "address.json"
        profiler = ["-m", "cProfile", "-o", profile] if profile else []
        arguments = [sys.executable, *profiler, "-m", "runtime.gateway"]
        async with process(arguments, machine.measured, ready=address, environment=environment) as pid:
            url = str(json.loads(address.read_text())["url"])
            await _answers(url, peers.ACME_KEY)
            yield url, pid


def _control(plain: str, chunks: str) -> peers.FakeControl:
    """Every kind of limit, on the key and on its tenant."""
    limits = RateLimits(requests_per_minute=10**9, tokens_per_minute=10**12, max_parallel_requests=10**6)
    budget = Budget(limit=10**12, unit="cost", period="month")
    tenant = TenantEntry(id="acme", slug="acme-corp", prefix_salt="salt", limits=limits, budget=budget)
    key = peers.a_key(peers.ACME_KEY, "acme", limits=limits, budget=budget)
    price = TokenPrice(prompt=100, completion=400)
    endpoints = [
        peers.an_endpoint(name, peers.a_variant(peers.a_replica(url, number), version=number), price=price)
        for number, (name, url) in enumerate((("chat", plain), ("stream", chunks)), 1)
    ]
    return peers.FakeControl(peers.a_table(*endpoints, tenants=[tenant], keys=[key]))


@contextlib.asynccontextmanager
async def valkey(folder: Path, machine: Machine) -> AsyncIterator[str]:
    server = Valkey(home=folder / "valkey", sockets_in=folder / "run")
    server.create()
    async with process(server.command(), machine.rest):
        await peers.until(server.ready_now, "Valkey answers", 20)
        yield server.url()


@contextlib.asynccontextmanager
async def _nginx_proxy(folder: Path, machine: Machine, plain: str) -> AsyncIterator[tuple[str, int]]:
    address = plain.removeprefix("http://")
    location = "location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ''; }\n"
    upstream = f"upstream up {{ server {address}; keepalive 64; keepalive_requests 100000000; }}\n"
    async with _nginx(folder / "proxy", machine.measured, location, upstream) as running:
        yield running


@contextlib.asynccontextmanager
async def _nginx(folder: Path, core: int, location: str, upstream: str = "") -> AsyncIterator[tuple[str, int]]:
    port = _free_port()
    _write_nginx(folder, port, location, upstream)
    command = ["nginx", "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    async with process(command, core) as pid:
        url = f"http://127.0.0.1:{port}"
        await _answers(url, "x")
        yield url, pid


def _write_nginx(folder: Path, port: int, location: str, upstream: str) -> None:
    folder.mkdir()
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log crit;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/temp;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"keepalive_requests 100000000; keepalive_timeout 600s; {upstream}"
        f"server {{ listen 127.0.0.1:{port}; {location} }} }}\n"
    )


@contextlib.asynccontextmanager
async def _litellm(folder: Path, machine: Machine, venv: Path, plain: str) -> AsyncIterator[tuple[str, int, str]]:
    port, key = _free_port(), f"sk-{secrets.token_hex(8)}"
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: chat\n    litellm_params:\n      model: openai/chat\n"
        f"      api_base: {plain}/v1\n      api_key: x\ngeneral_settings:\n  master_key: {key}\n"
    )
    command = [str(venv / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    async with process([*command, "--num_workers", "1"], machine.measured, environment=environment) as pid:
        url = f"http://127.0.0.1:{port}"
        await _answers(url, key, seconds=240)
        yield url, pid, key


@contextlib.asynccontextmanager
async def process(
    arguments: list[str], core: int, *, ready: Path | None = None, environment: dict[str, str] | None = None
) -> AsyncIterator[int]:
    """Run a command on one core; yield its process id once ``ready`` exists."""
    process = await asyncio.create_subprocess_exec(
        *("taskset", "-c", str(core), *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        process_group=0,  # of its own, to be ended whole; in the same session, whose scheduling priority it shares
    )
    try:
        if ready is not None:
            await peers.until(lambda: ready.exists() or process.returncode is not None, "the process listens", 60)
        if process.returncode is not None:
            raise SystemExit(f"{arguments[0]} ended with {process.returncode}")
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _answers(url: str, key: str, seconds: float = 30) -> None:
    """Return as soon as a completion comes back whole."""
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    address = url.removeprefix("http://").split(":")
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(address[0], int(address[1]))
                writer.write(head.encode() + body)
                answer = await reader.read()
                writer.close()
                if answer.startswith(b"HTTP/1.1 200"):
                    return
            await asyncio.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement, all rounds together")
    parser.add_argument("--rounds", type=int, default=10, help="how many rounds that is spread over")
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second for the added latency")
    parser.add_argument("--profile", default="", help="write the gateway's cProfile statistics to this file")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
