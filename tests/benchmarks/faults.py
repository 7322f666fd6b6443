"""Seconds from a fault to what heals it: node kill, Xid 79 and agent restart, on simulated GPUs.

A whole platform as ``make run`` starts it, with simulated nodes and stand-ins for engines that load in half a second:
the figures are the platform's own part. Between ``placed`` and ``ready`` is the start of the stand-in's process; a
silent node is lost after its lease. The last line is one JSON object.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.acceptance.conftest import Stack, eventually, start, stop
from tests.build.models import tiny_llama

NODES = 3
WAIT_SECONDS = 180.0


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=1)
    rounds = options.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        stack = start(home, "--simulate", f"a30:{NODES}", MILLPOND_CPU_DEVICE_MEMORY_GIB="0")
        try:
            tiny_llama(Path(folder) / "tiny")
            stack.cli("--tenant", "demo", "upload", str(Path(folder) / "tiny"), "--model", "tiny")
            stack.cli("--tenant", "demo", "deploy", "tiny", "--endpoint", "tiny", "--wait")
            found = measure(Bench(stack), rounds)
        finally:
            stop(stack)
    print(
        json.dumps({name: round(statistics.median(values), 2) for name, values in found.items()} | {"rounds": rounds})
    )


class Bench:
    """The running platform, seen by its admin and by the tenant."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._rest = stack.rest(stack.credentials["manage_key"])
        self._admin = stack.admin()
        (row,) = self._rest.get("/tenants/demo/deployments").json()["data"]
        self._where = f"/tenants/demo/deployments/{row['id']}"

    def serving(self) -> dict[str, Any] | None:
        """The replica that is ready."""
        rows = self._rest.get(self._where).json()["replicas"]
        return next((row for row in rows if row["state"] == "ready"), None)

    def replacement(self, of: str) -> Any:
        """A ready replica other than ``of``."""
        row = self.serving()
        return row if row is not None and row["id"] != of else None

    def placed(self, of: str) -> bool:
        """Whether a replica other than ``of`` has a device."""
        rows = self._rest.get(self._where).json()["replicas"]
        return any(row["device"] and row["id"] != of and row["state"] != "stopped" for row in rows)

    def device(self, uuid: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self._admin.get("/devices", params={"limit": 100}).json()["data"]
        return next(row for row in rows if row["uuid"] == uuid)

    def node_of(self, uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = self._admin.get(f"/nodes/{self.device(uuid)['node_id']}").json()
        return found

    def agent_on(self, node: str) -> psutil.Process:
        """The agent's process on a simulated node, by its folder."""
        folder = str(self.stack.home / "simulated" / node)
        for process in self.stack.processes():
            words, env = process.cmdline(), process.environ()
            if words[-1:] == ["runtime.agent"] and env.get("MILLPOND_AGENT_DIR") == folder:
                return process
        raise AssertionError(f"no agent runs for {node}")


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Each kind ``rounds`` times."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for one in (restart, xid, kill):
            for key, seconds in one(bench).items():
                found.setdefault(key, []).append(seconds)
                print(f"{key:<30}{seconds:>8.1f} s", flush=True)
    return found


def restart(bench: Bench) -> dict[str, float]:
    """The agent is killed; its engine serves on, and the next agent takes it over."""
    before = held(bench)
    node = bench.node_of(before["device"])
    agent = bench.agent_on(node["name"])
    began = time.monotonic()
    agent.kill()
    agent.wait(10)
    # A restart is told at most once a minute; that the node is seen again is told always.
    silent = bench.node_of(before["device"])["last_seen_at"]
    until(lambda: bench.node_of(before["device"])["last_seen_at"] != silent, "the new agent reports")
    adopted = time.monotonic() - began
    now = bench.serving()
    if now is None or (now["id"], now["restarts"]) != (before["id"], before["restarts"]):
        raise AssertionError(f"the engine was not adopted: {now}")
    return {"agent_restart_to_adopted_s": adopted}


def xid(bench: Bench) -> dict[str, float]:
    """The GPU falls off the bus."""
    before = held(bench)
    folder = bench.stack.home / "simulated" / bench.device(before["device"])["node"]
    began = time.monotonic()
    (folder / "simulated.yaml").write_text(f"devices:\n  {before['device']}: {{lost: true, xids: [79]}}\n")
    until(lambda: bench.device(before["device"])["state"] == "quarantined", "the device is quarantined")
    found = {"xid79_to_quarantined_s": time.monotonic() - began}
    until(lambda: bench.placed(before["id"]), "the replacement has a device")
    found["xid79_to_placed_s"] = time.monotonic() - began
    until(lambda: bench.replacement(before["id"]), "the replacement is ready")
    return found | {"xid79_to_ready_s": time.monotonic() - began}


def kill(bench: Bench) -> dict[str, float]:
    """The whole machine goes: agent and engines, and nobody starts them again while it is measured."""
    before = held(bench)
    node = bench.node_of(before["device"])
    agent = bench.agent_on(node["name"])
    began = time.monotonic()
    agent.send_signal(signal.SIGSTOP)  # stopped, not ended: a supervisor would start an ended one again
    folder = str(bench.stack.home / "simulated" / node["name"])
    for process in psutil.process_iter():
        try:
            if "runtime.agent.simulated_engine" in process.cmdline() and any(folder in w for w in process.cmdline()):
                os.killpg(process.pid, signal.SIGKILL)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    try:
        until(lambda: bench.node_of(before["device"])["state"] == "lost", "the node is lost")
        found = {"node_kill_to_lost_s": time.monotonic() - began}
        until(lambda: bench.placed(before["id"]), "the replacement has a device")
        found["node_kill_to_placed_s"] = time.monotonic() - began
        until(lambda: bench.replacement(before["id"]), "the replacement is ready")
        return found | {"node_kill_to_ready_s": time.monotonic() - began}
    finally:
        agent.send_signal(signal.SIGCONT)


def held(bench: Bench) -> dict[str, Any]:
    """The one replica that serves."""
    found: dict[str, Any] = eventually(bench.serving, "a replica is ready", WAIT_SECONDS)
    return found


def until(check: Callable[[], Any], what: str) -> None:
    """Look again and again."""
    eventually(check, what, WAIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
