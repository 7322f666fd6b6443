"""Whole agents on simulated machines: GPUs are shown, made sick, cut, and run stand-ins where that is allowed."""

import json

import aiohttp
from agent_rig import ENGINE_TOKEN, eventually

from runtime.wire import inference
from runtime.wire.assignments import DeviceGrant, Share, World
from runtime.wire.devices import DeviceKind, HealthCode, MigLayout, MigLayoutPhase, MigPlacement
from runtime.wire.reports import Phase


async def started(rig, control, machine="dgx-h100", **settings):
    """An agent on the simulated machine; returns the UUIDs of its GPUs, in order."""
    await rig.start(simulate=machine, cpu_memory_bytes=0, **settings)
    report = await eventually(lambda: control.reports and control.reports[-1])
    return [device.uuid for device in report.devices]


def make_sick(rig, uuid, **facts):
    path = rig.folder / "simulated.yaml"
    path.with_suffix(".new").write_text(json.dumps({"devices": {uuid: facts}}))
    path.with_suffix(".new").replace(path)


def on(uuid, **fields):
    return [DeviceGrant(uuid=uuid, memory_bytes=1024**3, **fields)]


async def test_a_simulated_gpu_is_labelled_and_runs_nothing_unless_allowed(rig, control):
    uuids = await started(rig, control)
    report = control.reports[-1]
    assert {device.kind for device in report.devices} == {DeviceKind.SIMULATED}
    assert (report.host.cpus, len(report.host.rails)) == (224, 8)
    control.assign(rig.replica(devices=on(uuids[0])))
    await control.phase("r1", Phase.FAILED, reason="DeviceSimulated")
    assert not rig.engines()


async def test_an_xid_is_reported_soon_once_and_until_it_was_received(rig, control):
    uuids = await started(rig, control)
    control.interval = 30.0
    await eventually(lambda: len(control.reports) > 1)
    control.down = True
    make_sick(rig, uuids[3], lost=True, xids=[79])
    await eventually(lambda: (rig.folder / "health.json").exists())
    control.down = False

    def xids():
        return [fact for report in control.reports for fact in report.health if fact.code is HealthCode.XID]

    await eventually(xids)
    facts = await eventually(lambda: [fact for report in control.reports for fact in report.health])
    assert facts[0].code is HealthCode.XID, "what the driver says comes before what it leads to"
    first = xids()[0]
    assert (first.xid, first.device_uuid) == (79, uuids[3])
    await eventually(lambda: any(f.code is HealthCode.LOST for r in control.reports for f in r.health))
    sick = await eventually(
        lambda: next((d for d in control.reports[-1].devices if d.uuid == uuids[3] and d.problem), None)
    )
    assert "bus" in sick.problem
    make_sick(rig, uuids[3], xids=[79, 48])
    await eventually(lambda: any(f.code is HealthCode.RETURNED for r in control.reports for f in r.health))
    sequences = [fact.sequence for report in control.reports for fact in report.health]
    assert sequences == sorted(sequences)
    assert [fact.xid for fact in xids()] == [79, 48]  # received is received


async def test_a_stand_in_goes_through_every_phase_and_says_what_it_is(rig, control):
    uuids = await started(rig, control, simulate_engines=True)
    control.assign(rig.replica(devices=on(uuids[1])))
    seen = await control.ready("r1")
    phases = {item.phase for report in control.reports for item in report.replicas}
    assert {Phase.LOADING, Phase.READY} <= phases
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {ENGINE_TOKEN}"}) as session:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        async with session.post(f"{seen.address}/v1/chat/completions", json=body) as answer:
            said = await answer.json()
            assert answer.headers["x-millpond-simulated"] == "1"
        assert "simulated" in said["choices"][0]["message"]["content"]
        assert said["usage"]["completion_tokens"] == 8
        streamed = {"model": "tiny", "prompt": "hi", "max_tokens": 3, "stream": True}
        headers = {"x-millpond-metered": "1"}
        async with session.post(f"{seen.address}/v1/completions", json=streamed, headers=headers) as answer:
            text = await answer.text()
        assert text.count("data: ") == 4
        assert text.count(': usage {"prompt_tokens":1') == 3
        for bad in (b"{", b"[]", b'{"max_tokens": "many"}'):
            async with session.post(f"{seen.address}/v1/completions", data=bad) as answer:
                assert answer.status == 400
        async with session.post(f"{seen.address}/v1/completions", headers={"authorization": "Bearer x"}) as answer:
            assert answer.status == 401
    control.drop("r1")
    await eventually(lambda: not rig.engines())


async def test_one_stand_in_takes_the_ranks_of_its_node_and_says_which(rig, control):
    uuids = await started(rig, control, simulate_engines=True)
    world = World(size=4, ranks=[2, 3], leader="10.0.0.7:29500", tensor=2, pipeline=2)
    grants = [DeviceGrant(uuid=uuid, memory_bytes=1024**3) for uuid in uuids[:2]]
    control.assign(rig.replica(devices=grants, world=world))
    seen = await control.ready("r1")
    headers = {"authorization": f"Bearer {ENGINE_TOKEN}"}
    async with aiohttp.request("GET", f"{seen.address}{inference.PATH_STATE}", headers=headers) as answer:
        said = (await answer.json())["message"]
    assert "ranks 2, 3 of 4, which meet at 10.0.0.7:29500" in said
    assert len(rig.engines()) == 1


async def test_a_layout_waits_for_the_replica_on_the_gpu_and_outlives_the_agent(rig, control):
    uuids = await started(rig, control, simulate_engines=True)
    control.assign(rig.replica(devices=on(uuids[0])))
    await control.ready("r1")
    wanted = MigLayout(
        device_uuid=uuids[0],
        generation=1,
        placements=[MigPlacement(profile_id=9, start=0), MigPlacement(profile_id=9, start=4)],
    )
    control.layouts.append(wanted)
    control.generation += 1

    def layout_phase(phase):
        found = control.reports[-1].layouts
        return found[0] if found and found[0].phase is phase else None

    waiting = await eventually(lambda: layout_phase(MigLayoutPhase.WAITING))
    assert (waiting.reason, "r1" in waiting.message) == ("DeviceInUse", True)
    control.drop("r1")
    await eventually(lambda: layout_phase(MigLayoutPhase.APPLIED))
    [device] = [device for device in control.reports[-1].devices if device.uuid == uuids[0]]
    first, second = device.mig.instances
    assert (first.profile, device.mig.enabled) == ("3g.40gb", True)
    # A replica gets an instance by its UUID, and a whole grant of a GPU that is cut is refused.
    control.assign(rig.replica("r2", devices=on(uuids[0], share=Share.MIG, mig_uuid=second.uuid)))
    control.assign(rig.replica("r3", devices=on(uuids[0])))
    control.assign(rig.replica("r4", devices=on(uuids[0], share=Share.MIG, mig_uuid="MIG-gone")))
    await control.ready("r2")
    await control.phase("r3", Phase.FAILED, reason="DeviceCut")
    await control.phase("r4", Phase.FAILED, reason="InstanceMissing")
    spec = json.loads((rig.engine_folder("r2") / "spec.json").read_text())
    assert spec["device_uuid"] == second.uuid
    await rig.stop()
    control.reports.clear()
    await rig.start(simulate="dgx-h100", cpu_memory_bytes=0, simulate_engines=True)
    seen = await control.ready("r2")
    assert seen.restarts == 0
    found = await eventually(lambda: layout_phase(MigLayoutPhase.APPLIED))
    assert found.generation == 1
    [device] = [device for device in control.reports[-1].devices if device.uuid == uuids[0]]
    assert device.mig.instances == [first, second]


async def test_a_share_by_mps_is_pretended_with_no_daemon_and_the_host_says_so(rig, control, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    uuids = await started(rig, control, simulate_engines=True)
    (wall,) = [wall for wall in control.reports[-1].host.walls if wall.name == "mps"]
    assert wall.used
    assert wall.detail.startswith("simulated:")
    control.assign(rig.replica(devices=on(uuids[0], share=Share.MPS, thread_percentage=40)))
    await control.ready("r1")
    control.drop("r1")
    await eventually(lambda: not rig.engines())
    assert not (tmp_path / "called").exists()  # no daemon could serve a GPU that is not there


async def test_where_nothing_runs_on_simulated_gpus_no_share_is_pretended_either(rig, control, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    await started(rig, control)
    (wall,) = [wall for wall in control.reports[-1].host.walls if wall.name == "mps"]
    assert not wall.used
