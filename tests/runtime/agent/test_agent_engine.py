"""The agent with the real engine and a tiny model."""

import sys

import pytest

from runtime.agent.views import Policy
from runtime.wire.assignments import Desired, DeviceGrant
from runtime.wire.reports import Phase

pytestmark = pytest.mark.engine


async def test_the_real_engine_gets_ready_is_adopted_drains_and_says_why_it_cannot(rig, control, tmp_path):
    from tests.build.models import tiny_llama

    folder = tiny_llama(tmp_path / "model")
    artifacts = [
        control.artifact(str(path.relative_to(folder)), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    ]
    await rig.start(policy=Policy(), engine_python=sys.executable)
    control.assign(rig.replica(artifacts=artifacts))
    first = await control.ready("r1", seconds=120)
    assert first.ledger.weights_bytes > 0
    assert first.ledger.kv_total_bytes > 0
    await rig.stop()
    control.reports.clear()
    await rig.start(policy=Policy(), engine_python=sys.executable)
    assert (await control.ready("r1")).pid == first.pid
    control.change("r1", desired=Desired.DRAIN)
    stopped = await control.phase("r1", Phase.STOPPED)
    assert stopped.reason in {"Drained", "Draining"}
    assert not rig.engines()
    control.assign(rig.replica("r2", artifacts=artifacts, devices=[DeviceGrant(uuid=rig.cpu_uuid, memory_bytes=1000)]))
    failed = await control.phase("r2", Phase.FAILED, seconds=120)
    assert failed.reason not in {"", "EngineExited"}  # the engine's own words
    assert failed.message
