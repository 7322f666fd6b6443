"""Parts of a GPU through the whole platform: a real agent over a compiled stand-in for NVIDIA's library.

Everything below NVIDIA's binding is the stub, MPS's control program is a script, and stand-ins take the place of
engines; agent, control plane, gateway, command line and databases are real.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.acceptance.conftest import Stack, eventually, start, stop
from tests.build import nvml_stub
from tests.build.models import tiny_llama
from tests.build.nvml_stub import FakeDriver

_MPS = """#!/bin/sh
# Answers as nvidia-cuda-mps-control does; "running" says whether a daemon runs for this pipe folder.
mark="$CUDA_MPS_PIPE_DIRECTORY/running"
if [ "$1" = -d ]; then : > "$mark"; exit 0; fi
read -r words
case "$words" in quit) rm -f "$mark" ;; *) test -e "$mark" ;; esac
"""
_ENGINE = f"""#!/bin/sh
shift 2
exec {sys.executable} -m runtime.agent.simulated_engine "$@"
"""
GIB = 1024**3


class Rig(NamedTuple):
    """A platform on one machine whose driver is the stub."""

    stack: Stack
    driver: FakeDriver


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("driver")
    driver = FakeDriver(nvml_stub.build(folder), folder, "dgx-h100")
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("nvidia-cuda-mps-control", _MPS), ("engine-python", _ENGINE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    running = start(
        folder / "home",
        MILLPOND_CPU_DEVICE_MEMORY_GIB="0",
        MILLPOND_ENGINE_PYTHON=str(programs / "engine-python"),
        PATH=f"{programs}:{os.environ['PATH']}",
        **driver.env,
    )
    try:
        tiny_llama(folder / "tiny")
        running.cli("--tenant", "demo", "upload", str(folder / "tiny"), "--model", "tiny")
        yield Rig(running, driver)
    finally:
        stop(running)


class Admin:
    """What a platform admin sees and does."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.rest = stack.admin()
        self.secret = str(self.rest.headers["Authorization"]).removeprefix("Bearer ")

    def cli(self, *words: str) -> str:
        return self.stack.cli(*words, secret=self.secret)

    def gpu(self, uuid: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self.rest.get("/devices", params={"limit": 100}).json()["data"]
        return next(row for row in rows if row["uuid"] == uuid)

    def instances(self, uuid: str) -> list[dict[str, Any]]:
        return list((self.gpu(uuid)["facts"]["mig"] or {}).get("instances") or ())


def deployment(stack: Stack, endpoint: str) -> dict[str, Any]:
    rest = stack.rest(stack.credentials["manage_key"])
    rows = rest.get("/tenants/demo/deployments").json()["data"]
    row = next(row for row in rows if row["endpoint"] == endpoint)
    found: dict[str, Any] = rest.get(f"/tenants/demo/deployments/{row['id']}").json()
    return found


def ready(stack: Stack, endpoint: str) -> dict[str, Any] | None:
    return next((row for row in deployment(stack, endpoint)["replicas"] if row["state"] == "ready"), None)


def stand_ins(stack: Stack) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        try:
            words = each.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if "runtime.agent.simulated_engine" in words and any(str(stack.home) in word for word in words):
            found.append(each)
    return found


def test_a_mig_layout_from_what_waits_to_a_replica_on_a_slice_and_back(rig: Rig) -> None:
    stack, admin = rig.stack, Admin(rig.stack)
    words = ("--anyway", "--no-wait", "--set", "mig_profile=1g.10gb")
    stack.cli("--tenant", "demo", "deploy", "tiny", "--endpoint", "slice", *words)
    refused = eventually(
        lambda: [row for row in deployment(stack, "slice")["replicas"] if row["reason"] == "WrongProfile"],
        "it waits for an instance", 30,
    )  # fmt: skip
    assert "needs a MIG instance 1g.10gb" in refused[0]["message"]

    (proposal,) = admin.rest.get("/layouts/proposals").json()["proposals"]
    uuid = proposal["device_uuid"]
    assert proposal["applicable"]
    assert proposal["now"] == []
    assert [(each["endpoint"], each["profile"]) for each in proposal["serves"]] == [("slice", "1g.10gb")]
    assert "demo/slice" in admin.cli("layouts", "propose")
    assert "waiting" in admin.cli("layouts", "apply", uuid, "--proposed")

    placed = eventually(lambda: ready(stack, "slice"), "the replica is ready on a slice", 60)
    assert placed["isolation"] == "mig"
    assert placed["device"].startswith("MIG-")
    assert admin.gpu(uuid)["layout_phase"] == "applied"
    assert placed["device"] in {each["uuid"] for each in admin.instances(uuid)}
    (engine,) = stand_ins(stack)
    assert engine.environ()["CUDA_VISIBLE_DEVICES"] == placed["device"]
    answered = stack.openai().completions.create(model="slice", prompt="the", max_tokens=4)
    assert answered.choices[0].text

    busy = admin.rest.post(f"/devices/{proposal['device_id']}/layout", json={"placements": []})
    assert busy.status_code == 409, busy.text  # somebody holds a part of it

    before, instances = stack.pid_of("agent"), admin.instances(uuid)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: stack.pid_of("agent") not in (0, before), "the supervisor starts the agent again", 30)
    events = f"/devices/{proposal['device_id']}"
    eventually(
        lambda: "AgentRestarted" in {each["code"] for each in admin.rest.get(events).json()["health_events"]},
        "it reports again", 30,
    )  # fmt: skip
    assert [each.pid for each in stand_ins(stack)] == [engine.pid]  # adopted, not started again
    assert admin.instances(uuid) == instances
    assert ready(stack, "slice")

    rest = stack.rest(stack.credentials["manage_key"])
    assert rest.delete(f"/tenants/demo/deployments/{deployment(stack, 'slice')['id']}").is_success
    eventually(lambda: not stand_ins(stack), "the engine has ended", 60)
    eventually(
        lambda: admin.rest.post(f"/devices/{proposal['device_id']}/layout/rollback").status_code == 200,
        "nobody holds it any more", 30,
    )  # fmt: skip
    eventually(lambda: admin.gpu(uuid)["layout_phase"] == "applied", "the GPU is whole again", 30)
    assert admin.instances(uuid) == []


def test_what_the_driver_refuses_half_way_is_put_back_and_said(rig: Rig) -> None:
    admin = Admin(rig.stack)
    uuid = rig.driver.uuids[5]
    ident = admin.gpu(uuid)["id"]
    good = {"placements": [{"profile_id": 9, "start": 0}]}
    assert admin.rest.post(f"/devices/{ident}/layout", json=good).is_success
    eventually(lambda: admin.gpu(uuid)["layout_phase"] == "applied", "it is cut", 30)

    rig.driver.say(5, refuse__14__4=23)
    wanted = {"placements": [{"profile_id": 14, "start": 0}, {"profile_id": 14, "start": 4}]}
    assert admin.rest.post(f"/devices/{ident}/layout", json=wanted).is_success
    eventually(lambda: admin.gpu(uuid)["layout_phase"] == "failed", "the driver refuses", 30)
    assert "the former layout is there again" in admin.gpu(uuid)["layout_message"]
    eventually(
        lambda: [(each["profile_id"], each["start"]) for each in admin.instances(uuid)] == [(9, 0)],
        "the former layout is reported", 30,
    )  # fmt: skip
    assert "failed" in admin.cli("layouts", "list")
    assert admin.rest.post(f"/devices/{ident}/layout/rollback").is_success
    eventually(lambda: admin.gpu(uuid)["layout_phase"] == "applied", "what is wanted is what is there", 30)


def test_an_mps_share_has_the_limits_that_were_asked_for_and_no_other_neighbours(rig: Rig) -> None:
    stack, admin = rig.stack, Admin(rig.stack)
    wishes = ("isolation=mps", "memory_limit_gib=4", "thread_percentage=30")
    words = [word for wish in wishes for word in ("--set", wish)]
    stack.cli("--tenant", "demo", "deploy", "tiny", "--endpoint", "share", *words)
    share = eventually(lambda: ready(stack, "share"), "the share is ready", 60)
    assert (share["isolation"], share["memory_bytes"]) == ("mps", 4 * GIB)
    (engine,) = stand_ins(stack)
    env = engine.environ()
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert (Path(env["CUDA_MPS_PIPE_DIRECTORY"]) / "running").exists()
    gpu = admin.gpu(share["device"])
    assert (gpu["held_percent"], [each["isolation"] for each in gpu["partitions"]]) == (30, ["mps"])
    assert "yes" in admin.cli("nodes", "show", gpu["node"])

    rest = stack.rest(stack.credentials["manage_key"])
    body = {"model": "tiny", "version": "1", "config": {}, "replicas": 1}
    answer = rest.post("/tenants/demo/fit", json=body).json()
    here = next(each for each in answer["devices"] if each["device_uuid"] == share["device"])
    assert here["reason"] == "IsolationMixed"
    assert answer["fits"]  # on another GPU, as what it is
    whole = [each for each in answer["devices"] if each["fits"] and not each["device_uuid"].startswith("MIG-")]
    assert {each["isolation"] for each in whole} == {"cooperative"}
    greedy = {**body, "config": {"isolation": "mps", "thread_percentage": 80}}
    found = rest.post("/tenants/demo/fit", json=greedy).json()["devices"]
    assert next(each for each in found if each["device_uuid"] == share["device"])["reason"] == "InsufficientCompute"


def test_a_policy_of_the_tenant_binds_every_later_replica(rig: Rig) -> None:
    stack, admin = rig.stack, Admin(rig.stack)
    assert "hardware" in admin.cli("--tenant", "demo", "isolation", "hardware")
    rest = stack.rest(stack.credentials["manage_key"])
    assert rest.put("/tenants/demo/isolation", json={"isolation": "any"}).status_code == 403  # owners alone
    body = {"model": "tiny", "version": "1", "config": {}, "replicas": 1}
    answer = rest.post("/tenants/demo/fit", json=body).json()
    assert answer["need"]["isolation"] == "hardware"
    assert {each["isolation"] for each in answer["devices"] if each["fits"]} <= {"exclusive", "mig"}
    small = rest.post("/tenants/demo/fit", json={**body, "config": {"memory_limit_bytes": 1000}})
    assert (small.status_code, small.json()["code"]) == (422, "need_unknown")
    assert "too small" in small.json()["detail"]
