"""A GPU dies under a replica: the whole way from the driver's word to a ready successor, on stand-ins.

The devices are simulated and so are the engines on them; agents, control plane, gateway and databases are real.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.conftest import Stack, eventually, start, stop
from tests.build.models import tiny_llama


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A platform with two simulated nodes of four GPUs and no other device."""
    home = tmp_path_factory.mktemp("simulated") / "home"
    running = start(home, "--simulate", "a30:2", MILLPOND_CPU_DEVICE_MEMORY_GIB="0")
    yield running
    stop(running)


def replicas(stack: Stack) -> list[dict[str, Any]]:
    rest = stack.rest(stack.credentials["manage_key"])
    (row,) = rest.get("/tenants/demo/deployments").json()["data"]
    found: list[dict[str, Any]] = rest.get(f"/tenants/demo/deployments/{row['id']}").json()["replicas"]
    return found


def told(stack: Stack, replica_id: str) -> str:
    """What the owner reads about a replica that had to go."""
    row = next(row for row in replicas(stack) if row["id"] == replica_id)
    return str(row["message"]) if row["reason"] == "DeviceFault" else ""


def device(admin: httpx2.Client, uuid: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = admin.get("/devices", params={"limit": 100}).json()["data"]
    return next(row for row in rows if row["uuid"] == uuid)


def answer(stack: Stack) -> str:
    done = stack.openai().with_options(max_retries=2).completions.create(model="tiny", prompt="the", max_tokens=4)
    return done.choices[0].text


def make_sick(stack: Stack, sick: dict[str, Any], yaml: str) -> None:
    folder = stack.home / "simulated" / sick["node"]
    (folder / "simulated.yaml").write_text(f"devices:\n  {sick['uuid']}: {yaml}\n")


def test_xid_79_to_a_ready_replacement_and_back_after_repair(simulated: Stack, tmp_path: Path) -> None:
    stack = simulated
    tiny_llama(tmp_path / "tiny")
    stack.cli("--tenant", "demo", "upload", str(tmp_path / "tiny"), "--model", "tiny")
    stack.cli("--tenant", "demo", "deploy", "tiny", "--endpoint", "tiny", "--wait")
    assert answer(stack)
    admin = stack.admin()
    rows = admin.get("/devices", params={"limit": 100}).json()["data"]
    assert {row["kind"] for row in rows} == {"simulated"}
    (held,) = [row for row in rows if row["partitions"]]
    (before,) = replicas(stack)

    began = time.monotonic()
    make_sick(stack, held, "{lost: true, xids: [79]}")
    eventually(lambda: device(admin, held["uuid"])["state"] == "quarantined", "the device is quarantined", 20)
    quarantined = time.monotonic() - began
    eventually(
        lambda: [row for row in replicas(stack) if row["id"] != before["id"] and row["state"] == "ready"],
        "the replacement is ready", 40,
    )  # fmt: skip
    ready = time.monotonic() - began
    print(f"\nXid 79: quarantined after {quarantined:.1f} s, the replacement ready after {ready:.1f} s")
    assert eventually(lambda: answer(stack), "the endpoint answers again", 20)
    sick = device(admin, held["uuid"])
    assert (sick["reason"], sick["repair"], sick["dead"]) == ("Xid79", "reboot", True)
    said = eventually(lambda: told(stack, before["id"]), "the tenant is told why", 20)
    assert said == "Its GPU has fallen off the bus (Xid 79), so this replica is replaced on another one."
    print(said)

    make_sick(stack, held, "{xids: [79]}")  # it answers again
    eventually(lambda: device(admin, held["uuid"])["state"] == "recovering", "the device recovers by itself", 20)
    words = stack.cli("devices", "show", held["uuid"], secret=admin.headers["Authorization"].removeprefix("Bearer "))
    assert "recovering" in words
    assert "Xid79" in words
