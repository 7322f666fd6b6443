"""A thousand simulated agents against the real control plane: what they cost it, and whether it still answers.

Starts the platform as `make run` does, on free ports and an empty folder, lets the agents join, and has each report as
a real one does: eight simulated GPUs whose readings drift, at the interval that the control plane asks for
(``--interval`` overrules it), reading its assignments when the generation moves, and saying that what it is to run is
ready. The agents live in a few processes. ``--deployments`` of ``--replicas`` each are placed on them. Meanwhile an
admin and a tenant read lists over REST. Prints a table, and one JSON object as its last line.
"""

import argparse
import asyncio
import collections
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, LiteralString

import aiohttp
import msgspec
import psutil
import psycopg

from runtime.agent.agent import FIRST_INTERVAL, REPORT_PAUSE
from runtime.agent.devices import description
from runtime.agent.devices.simulated import SimulatedSource
from runtime.agent.errors import LinkError
from runtime.agent.link import ControlPlane, Retrying
from runtime.embedded import places, processes
from runtime.embedded.postgres import Postgres
from runtime.embedded.valkey import Valkey
from runtime.wire.assignments import Desired, ReplicaAssignment
from runtime.wire.devices import DeviceReport, HostReport
from runtime.wire.joining import JoinRequest
from runtime.wire.reports import EngineStats, NodeReport, Phase, ReplicaReport
from tests.acceptance import conftest as platform
from tests.build.models import tiny_llama

MACHINE = "dgx-h100"
JOINING_AT_ONCE = 8
JOIN_SECONDS = 240.0
FIRST_REPORTS_SECONDS = 50.0
CONTROL = ("web", "worker", "beat", "postgres", "valkey")
#: Lists by name: who reads them, and where.
LISTS = {
    "nodes": ("admin", "/nodes?limit=100"),
    "devices": ("admin", "/devices?limit=100"),
    "deployments": ("tenant", "/tenants/demo/deployments?limit=100"),
    "replicas": ("tenant", "/tenants/demo/deployments/{deployment}/replicas?limit=100"),
}


@dataclasses.dataclass
class Tally:
    """What one process of agents has seen; times in seconds."""

    heartbeats: list[float] = dataclasses.field(default_factory=list)
    late: int = 0
    failed: int = 0
    reads: int = 0
    refusals: dict[str, int] = dataclasses.field(default_factory=dict)


def main() -> None:
    """Run and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="millpond-bench-agents-") as folder:
        stack = platform.start(Path(folder) / "home", MILLPOND_CPU_DEVICE_MEMORY_GIB="0")
        try:
            if options.deployments:
                tiny_llama(Path(folder) / "tiny")
                _lift_quota(stack)
                stack.cli("--tenant", "demo", "upload", str(Path(folder) / "tiny"), "--model", "tiny")
            result = _measure(stack, options)
        finally:
            stack.process.send_signal(signal.SIGINT)
            stack.process.wait(timeout=120)
    _print(result)


def _measure(stack: platform.Stack, options: argparse.Namespace) -> dict[str, Any]:
    database, headers = _database(stack), _signed_in(stack)
    tokens = _tokens(stack, options.agents)
    shares = [tokens[index :: options.processes] for index in range(options.processes)]
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for share in shares:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_agents, args=(theirs, stack.web, share, options.interval), daemon=True)
        worker.start()
        pipes.append(ours)
        workers.append(worker)
    began = time.monotonic()
    for pipe in pipes:
        if not pipe.poll(max(0.0, began + JOIN_SECONDS - time.monotonic())):
            raise SystemExit(f"{options.agents} agents have not joined within {JOIN_SECONDS:g} s.")
        pipe.recv()
    joined_seconds = time.monotonic() - began
    deployed = [_deploy(stack, number, options) for number in range(options.deployments)]
    time.sleep(options.settle)
    for pipe in pipes:
        pipe.send("count")
    before, cpu_before, counted = _writes(database), _cpu(stack), time.monotonic()
    rest, rest_failed = asyncio.run(_read_lists(stack, headers, deployed, options.seconds))
    seconds = time.monotonic() - counted
    after, cpu_after = _writes(database), _cpu(stack)
    for pipe in pipes:
        pipe.send("stop")
    tallies = [Tally(**pipe.recv()) for pipe in pipes]
    for worker in workers:
        worker.join(timeout=30)
    beats = [value for tally in tallies for value in tally.heartbeats]
    return {
        "agents": options.agents,
        "gpus": options.agents * len(description.load(description.locate(MACHINE), seed="x").devices),
        "seconds": round(seconds, 1),
        "join_seconds": round(joined_seconds, 1),
        "heartbeats_per_s": round(len(beats) / seconds, 1),
        "heartbeat_p50_ms": _quantile(beats, 0.5),
        "heartbeat_p99_ms": _quantile(beats, 0.99),
        "heartbeats_failed": sum(tally.failed for tally in tallies),
        "heartbeats_late": sum(tally.late for tally in tallies),
        "refusals": dict(sum((collections.Counter(tally.refusals) for tally in tallies), collections.Counter())),
        "rest_failed": rest_failed,
        "assignment_reads": sum(tally.reads for tally in tallies),
        **{f"rest_{name}_p99_ms": _quantile(times, 0.99) for name, times in rest.items()},
        "cpu_cores": {name: round((cpu_after[name] - cpu_before[name]) / seconds, 3) for name in CONTROL},
        "cpu_cores_total": round(sum(cpu_after[name] - cpu_before[name] for name in CONTROL) / seconds, 3),
        "db_rows_written_per_s": round((after[0] - before[0]) / seconds, 1),
        "db_commits_per_s": round((after[1] - before[1]) / seconds, 1),
        "nodes_lost": _count(stack, "SELECT count(*) FROM fleet_node WHERE state = 'lost'"),
        "replicas_ready": _count(stack, "SELECT count(*) FROM serving_replica WHERE state = 'ready'"),
    }


# The agents, in processes of their own


def _agents(pipe: Connection, url: str, tokens: list[tuple[str, str]], interval: float) -> None:
    asyncio.run(_serve(pipe, url, tokens, interval))


async def _serve(pipe: Connection, url: str, tokens: list[tuple[str, str]], interval: float) -> None:
    tally, counting = Tally(), asyncio.Event()
    gate = asyncio.Semaphore(JOINING_AT_ONCE)
    connector = aiohttp.TCPConnector(limit=0)  # as many as there are machines
    async with aiohttp.ClientSession(connector=connector) as session:
        nodes = [Node(session, url, name, token, interval) for name, token in tokens]
        await asyncio.gather(*(node.join(gate) for node in nodes))
        tasks = [asyncio.create_task(node.live(tally, counting)) for node in nodes]
        pipe.send("joined")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, pipe.recv)
        counting.set()
        await loop.run_in_executor(None, pipe.recv)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pipe.send(dataclasses.asdict(tally))


class Node:
    """One agent without a machine: it reports what a simulated machine shows, and runs nothing but says it does."""

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str, token: str, interval: float) -> None:
        self._link = ControlPlane(session, url)
        self._name = name
        self._token = token
        self._fixed = interval
        self._interval = interval or FIRST_INTERVAL
        self._applied = 0
        self._runs: list[ReplicaReport] = []
        source = SimulatedSource(description.locate(MACHINE), seed=name, stand_ins=True)
        host = HostReport(hostname=name, os="simulated", cpus=64, memory_bytes=1 << 40, memory_available_bytes=1 << 39)
        self._report = NodeReport(
            agent_version="0.1.0", boot_id="boot", agent_id=name, sequence=0, data_address="127.0.0.1",
            applied_generation=0, host=source.host(host), devices=source.scan(), replicas=[],
        )  # fmt: skip

    async def join(self, gate: asyncio.Semaphore) -> None:
        """Trade the token for a credential, again and again as a real agent does."""
        asked = JoinRequest(token=self._token, name=self._name, machine_id=self._name, version="0.1.0")
        retrying = Retrying(limit=REPORT_PAUSE)
        while not self._link.credential:
            async with gate:
                try:
                    self._link.credential = (await self._link.join(asked)).credential
                except LinkError:
                    await asyncio.sleep(retrying.pause())

    async def live(self, tally: Tally, counting: asyncio.Event) -> None:
        """Report for ever, spread as a fleet is; after a failure with the pauses of a real agent."""
        await asyncio.sleep(random.random() * FIRST_REPORTS_SECONDS)
        sequence, retrying = 0, Retrying(limit=REPORT_PAUSE)
        while True:
            sequence += 1
            began = time.perf_counter()
            report = msgspec.structs.replace(
                self._report, sequence=sequence, applied_generation=self._applied, devices=self._drifted(),
                replicas=self._runs,
            )  # fmt: skip
            try:
                reply = await self._link.report(report)
                pause = None
                retrying.succeeded()
                if reply.generation > self._applied:
                    table = await self._link.assignments()
                    self._applied, self._runs = table.generation, [_running(one) for one in table.replicas]
                    tally.reads += counting.is_set()
                self._interval = self._fixed or reply.interval_seconds
            except LinkError as exc:
                tally.failed += counting.is_set()
                if counting.is_set():
                    tally.refusals[str(exc)] = tally.refusals.get(str(exc), 0) + 1
                pause = retrying.pause(exc.retry_after)
            passed = time.perf_counter() - began
            if counting.is_set():
                tally.heartbeats.append(passed)
                tally.late += passed > self._interval
            await asyncio.sleep(max(0.0, self._interval - passed) if pause is None else pause)

    def _drifted(self) -> list[DeviceReport]:
        """The devices as a real machine would show them: what drifts has drifted."""
        return [
            msgspec.structs.replace(
                device, utilization=random.random(), temperature_c=random.uniform(30, 80),
                power_w=random.uniform(80, 600), memory_used_bytes=random.randrange(device.memory_bytes),
            )
            for device in self._report.devices
        ]  # fmt: skip


def _running(wanted: ReplicaAssignment) -> ReplicaReport:
    """The replica as an engine without callers shows it, at an address where nobody listens."""
    phase = Phase.READY if wanted.desired is Desired.RUN else Phase.STOPPED
    return ReplicaReport(
        replica_id=wanted.replica_id, generation=wanted.generation, phase=phase, address="http://127.0.0.1:9",
        stats=EngineStats(max_num_seqs=32),
    )  # fmt: skip


# The control plane, from outside


def _places(stack: platform.Stack) -> places.Places:
    return places.read(stack.env)


def _urls(stack: platform.Stack) -> tuple[str, str]:
    here = _places(stack)
    return (
        Postgres(home=here.postgres, sockets_in=here.run).url(),
        Valkey(home=here.valkey, sockets_in=here.run).url(),
    )


def _database(stack: platform.Stack) -> psycopg.Connection[Any]:
    return psycopg.connect(_urls(stack)[0], autocommit=True)


def _tokens(stack: platform.Stack, count: int) -> list[tuple[str, str]]:
    """Join tokens for the agents, made by the management command."""
    database, valkey = _urls(stack)
    env = processes.environments(_places(stack), database_url=database, valkey_url=valkey, base=os.environ).control
    target = stack.home / "bench-tokens.json"
    names = [f"agent-{number:04}" for number in range(count)]
    command = processes.manage("join_tokens", "--write", str(target), *names)
    subprocess.run(command, env=dict(env), cwd=platform.ROOT, check=True, timeout=300, stdout=subprocess.DEVNULL)
    return list(json.loads(target.read_text()).items())


def _writes(database: psycopg.Connection[Any]) -> tuple[int, int]:
    row = database.execute(
        "SELECT sum(tup_inserted + tup_updated + tup_deleted), sum(xact_commit) FROM pg_stat_database"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _count(stack: platform.Stack, query: LiteralString) -> int:
    with _database(stack) as database:
        row = database.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def _lift_quota(stack: platform.Stack) -> None:
    """A new tenant may have 32 replicas."""
    with stack.admin() as client:
        answer = client.put("/admin/tenants/demo/quota", json={"replicas": -1, "gpu_millis": -1, "hbm_bytes": -1})
        assert answer.status_code == 200, answer.text


def _deploy(stack: platform.Stack, number: int, options: argparse.Namespace) -> str:
    """Deploy the tiny model once more; its id."""
    rest = stack.rest(stack.credentials["manage_key"])
    wanted = {
        "endpoint": f"chat-{number}", "model": "tiny", "version": "1", "replicas": options.replicas,
        "config": {"isolation": options.isolation},
    }  # fmt: skip
    answer = rest.post("/tenants/demo/deployments", json=wanted)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _cpu(stack: platform.Stack) -> dict[str, float]:
    """CPU seconds of each part with its children, ended ones included."""
    found: dict[str, float] = {}
    for name in CONTROL:
        process = psutil.Process(stack.pid_of(name))
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        found[name] = sum(t.user + t.system for t in times) + times[0].children_user + times[0].children_system
    return found


def _signed_in(stack: platform.Stack) -> dict[str, str]:
    """Headers of an admin, who signs in while nobody else asks for anything."""
    with stack.admin() as client:
        return {"Authorization": client.headers["Authorization"]}


async def _read_lists(
    stack: platform.Stack, admin: dict[str, str], deployed: list[str], seconds: float
) -> tuple[dict[str, list[float]], int]:
    """People who read the lists again and again: seconds each, and how many were refused."""
    failed = 0
    readers = {"admin": admin, "tenant": {"Authorization": f"Bearer {stack.credentials['manage_key']}"}}
    shown = {name: where for name, where in LISTS.items() if deployed or where[0] == "admin"}
    times: dict[str, list[float]] = {name: [] for name in shown}
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            for name, (reader, path) in shown.items():
                url = f"{stack.web}/api/v1{path.format(deployment=random.choice(deployed or ['']))}"
                began = time.perf_counter()
                async with session.get(url, headers=readers[reader]) as answer:
                    await answer.read()
                    failed += answer.status != 200
                times[name].append(time.perf_counter() - began)
            await asyncio.sleep(1.0)
    return times, failed


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000, 1) if ordered else float("nan")


def _print(result: dict[str, Any]) -> None:
    for name, value in result.items():
        print(f"{name:<26}{value}")
    print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--settle", type=float, default=120.0, help="seconds between the last join and the measurement")
    parser.add_argument("--processes", type=int, default=2, help="how many processes hold the agents")
    parser.add_argument("--deployments", type=int, default=4, help="how many are placed on them")
    parser.add_argument("--replicas", type=int, default=8, help="of each deployment, at most 64")
    parser.add_argument("--isolation", default="any", help="exclusive: each replica has a GPU for itself")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between reports; 0: as the server asks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
