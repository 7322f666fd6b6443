"""Shares of a GPU by MPS: an agent over the compiled stand-in for NVIDIA's library, a script as control program."""

import shutil
from pathlib import Path

import psutil
import pytest
from agent_rig import GIB, eventually

from runtime.wire.assignments import DeviceGrant, Share
from runtime.wire.devices import DeviceKind
from runtime.wire.reports import Phase
from tests.build.nvml_stub import FakeDriver

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

# A daemon is a file in its pipe folder. Every call is logged with what it was to see, and its words.
_CONTROL = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $*" >> {folder}/mps.log
if [ "$1" = -d ]; then
    [ -e {folder}/broken ] && {{ echo no luck; exit 1; }}
    touch "$CUDA_MPS_PIPE_DIRECTORY/alive"; exit 0
fi
read word
[ -e "$CUDA_MPS_PIPE_DIRECTORY/alive" ] || exit 1
echo "$CUDA_VISIBLE_DEVICES $word" >> {folder}/mps.log
[ "$word" = quit ] && rm "$CUDA_MPS_PIPE_DIRECTORY/alive"
exit 0
"""


@pytest.fixture
def launch(rig, control, library, tmp_path):
    """Start the agent on the stub's machine; ``mps`` says whether the host has the control program."""
    driver = FakeDriver(library, tmp_path, "dgx-h100")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "nvidia-cuda-mps-control"
    program.write_text(_CONTROL.format(folder=tmp_path))
    program.chmod(0o755)

    async def start(*, mps):
        path = f"{programs}:/usr/bin:/bin" if mps else "/usr/bin:/bin"
        rig.launch(MILLPOND_CPU_DEVICE_MEMORY_GIB="0", PATH=path, **driver.env)
        report = await eventually(lambda: control.reports and control.reports[-1])
        assert {device.kind for device in report.devices} == {DeviceKind.CUDA}
        return driver.uuids, {wall.name: wall for wall in report.host.walls}["mps"]

    return start


def on(uuid, **fields):
    return [DeviceGrant(uuid=uuid, memory_bytes=GIB, share=Share.MPS, **fields)]


async def test_a_share_by_mps_is_limited_by_the_driver_and_its_daemon_goes_when_unused(rig, control, launch, tmp_path):
    uuids, wall = await launch(mps=True)
    assert wall.used
    assert "simulated" not in wall.detail
    control.assign(rig.replica("r1", devices=on(uuids[0], thread_percentage=40)))
    control.assign(rig.replica("r2", devices=on(uuids[0])))
    seen = {name: psutil.Process((await control.ready(name)).pid).environ() for name in ("r1", "r2")}
    env = seen["r1"]
    assert env["CUDA_VISIBLE_DEVICES"] == uuids[0]
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in seen["r2"]
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == seen["r2"]["CUDA_MPS_PIPE_DIRECTORY"]
    assert env["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(rig.folder))
    pipe = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipe / "alive").exists()

    def calls(words):
        return (tmp_path / "mps.log").read_text().splitlines().count(f"{uuids[0]} {words}")

    assert calls("-d") == 1  # two clients, one daemon
    control.drop("r1")
    await eventually(lambda: len(rig.engines()) == 1)
    assert calls("quit") == 0
    control.drop("r2")
    await eventually(lambda: calls("quit") == 1)
    await eventually(lambda: not pipe.exists())
    (tmp_path / "broken").touch()
    control.assign(rig.replica("r3", devices=on(uuids[1])))
    failed = await control.phase("r3", Phase.FAILED, reason="MpsUnavailable")
    assert "no luck" in failed.message


async def test_without_mps_a_share_that_needs_it_is_refused_and_the_host_says_so(rig, control, launch, tmp_path):
    (rig.folder / "mps" / "GPU-of-before").mkdir(parents=True)  # left by an agent that still had the program
    uuids, wall = await launch(mps=False)
    assert not wall.used
    assert "not installed" in wall.detail
    control.assign(rig.replica(devices=on(uuids[0])))
    await control.phase("r1", Phase.FAILED, reason="MpsUnavailable")
    assert not rig.engines()
    control.assign(rig.replica("r2", devices=[DeviceGrant(uuid=uuids[1], memory_bytes=GIB)]))
    await control.ready("r2")  # the rounds go on
    assert "Traceback" not in rig.agent_log()
