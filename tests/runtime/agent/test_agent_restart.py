"""The agent as a process of its own: killed, stopped, started twice; engines are adopted or ended, never doubled."""

import os
import signal
import subprocess
import sys

import pytest
from agent_rig import ROOT, eventually

from runtime.agent import processes
from runtime.agent.records import Records, ReplicaRecord
from runtime.wire import codec
from runtime.wire.assignments import Desired
from runtime.wire.reports import Phase


def phases_since(control, start, replica_id="r1"):
    return [
        item.phase for report in control.reports[start:] for item in report.replicas if item.replica_id == replica_id
    ]


def sleeping_process():
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def run_agent(**env):
    return subprocess.run(
        [sys.executable, "-m", "runtime.agent"],
        env={"PATH": os.environ["PATH"]} | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


async def test_a_killed_agent_leaves_engines_running_and_the_next_one_adopts_them(rig, control):
    rig.launch()
    control.assign(rig.replica("r1"))
    control.assign(rig.replica("r2"))
    first = {name: (await control.ready(name)).pid for name in ("r1", "r2")}
    agents = {control.reports[-1].agent_id}
    rig.kill()
    assert rig.engines() == set(first.values())
    start = len(control.reports)
    rig.launch()
    await eventually(lambda: len(control.reports) > start + 2)
    assert {name: (await control.ready(name)).pid for name in ("r1", "r2")} == first
    assert set(phases_since(control, start)) == {Phase.READY}  # not one report that would take the traffic away
    assert rig.engines() == set(first.values())
    assert control.reports[-1].agent_id not in agents
    assert len(control.joins) == 1
    # What was adopted is really looked after: its death is seen, though it is nobody's child here.
    os.kill(first["r1"], signal.SIGKILL)
    failed = await control.phase("r1", Phase.FAILED, reason="EngineExited")
    assert "exit status unknown" in failed.message
    again = await control.ready("r1")
    assert again.restarts == 1
    assert rig.engines() == {again.pid, first["r2"]}


async def test_what_listens_at_an_address_that_the_node_has_left_is_started_again_at_the_new_one(rig, control):
    rig.launch()
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.kill()
    control.reports.clear()
    rig.launch(MILLPOND_DATA_HOST="127.0.0.2")
    again = await control.ready("r1")
    assert (control.reports[-1].data_address, len(control.joins)) == ("127.0.0.2", 1)
    assert (again.pid != first.pid, again.restarts, again.address.split(":")[1]) == (True, 0, "//127.0.0.2")
    assert rig.engines() == {again.pid}


async def test_a_loading_engine_is_adopted_too(rig, control):
    rig.launch()
    control.assign(rig.replica(behave={"load_seconds": 4}))
    loading = await control.phase("r1", Phase.LOADING)
    await eventually(rig.engines)
    rig.kill()
    rig.launch()
    ready = await control.ready("r1")
    assert ready.pid == loading.pid
    assert ready.restarts == 0


async def test_an_engine_that_died_while_no_agent_watched_is_started_again(rig, control):
    rig.launch()
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.kill()
    os.killpg(first.pid, signal.SIGKILL)
    control.reports.clear()
    rig.launch()
    again = await control.ready("r1")
    assert (again.pid != first.pid, again.restarts) == (True, 1)
    assert rig.engines() == {again.pid}


async def test_engines_are_adopted_and_healed_without_a_control_plane(rig, control):
    rig.launch()
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.kill()
    control.down = True
    rig.launch()
    await eventually(lambda: "engine_adopted" in rig.agent_log())
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: rig.engines() - {first.pid})
    assert len(rig.engines()) == 1


async def test_what_was_unassigned_while_the_agent_was_away_is_ended(rig, control):
    rig.launch()
    control.assign(rig.replica())
    await control.ready("r1")
    rig.kill()
    control.drop("r1")
    rig.launch()
    await eventually(lambda: not rig.engines())
    await eventually(lambda: not rig.engine_folder().exists())


async def test_an_engine_nobody_wrote_down_is_found_by_its_spec_or_ended(rig, control):
    rig.launch()
    control.assign(rig.replica("r1"))
    control.assign(rig.replica("r2"))
    first = await control.ready("r1")
    second = await control.ready("r2")
    rig.kill()
    # As if the agent had died between starting the engine and writing its process id down.
    record_file = rig.engine_folder("r1") / "record.json"
    record = codec.decode(record_file.read_bytes(), ReplicaRecord)
    intent = {"generation": 1, "boot_id": record.process.boot_id}
    folder = Records(rig.folder).folder("r1")
    folder.write(codec.from_plain(codec.to_plain(record) | {"process": intent}, ReplicaRecord))
    # And as if the record of the other had been lost altogether.
    (rig.engine_folder("r2") / "record.json").unlink()
    control.reports.clear()
    rig.launch()
    assert (await control.ready("r1")).pid == first.pid
    replaced = await control.ready("r2")
    assert replaced.pid != second.pid
    assert rig.engines() == {first.pid, replaced.pid}


async def test_a_reused_process_id_is_not_taken_for_the_engine(rig, control):
    rig.launch()
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.kill()
    os.killpg(first.pid, signal.SIGKILL)
    await eventually(lambda: not rig.engines())
    bystander = sleeping_process()
    try:
        folder = Records(rig.folder).folder("r1")
        record = codec.decode(folder.record.read_bytes(), ReplicaRecord)
        forged = codec.to_plain(record)
        forged["process"] |= {"pid": bystander.pid}
        folder.write(codec.from_plain(forged, ReplicaRecord))
        control.reports.clear()
        rig.launch()
        again = await control.ready("r1")
        control.change("r1", desired=Desired.STOP)
        await control.phase("r1", Phase.STOPPED)
        assert again.pid != bystander.pid
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_sigterm_leaves_engines_running_unless_told_otherwise(rig, control):
    rig.launch()
    control.assign(rig.replica())
    first = await control.ready("r1")
    assert rig.kill(signal.SIGTERM) == 0
    assert rig.engines() == {first.pid}
    control.reports.clear()
    rig.launch(MILLPOND_AGENT_STOP_ENGINES="1")
    assert (await control.ready("r1")).pid == first.pid
    assert rig.kill(signal.SIGTERM) == 0
    assert not rig.engines()


async def test_a_second_agent_on_the_folder_is_refused(rig, control):
    process = rig.launch()
    await eventually(lambda: control.reports)
    second = run_agent(MILLPOND_CONTROL_URL=control.url, MILLPOND_AGENT_DIR=str(rig.folder))
    assert second.returncode == 3
    assert f"process id {process.pid}" in second.stderr


async def test_engines_die_with_the_supervisor_and_not_with_the_agent(rig, control):
    read, write = os.pipe()
    try:
        rig.launch(pass_fds=(read,), MILLPOND_LIFELINE_FD=str(read))
        control.assign(rig.replica())
        first = await control.ready("r1")
        rig.kill()
        assert rig.engines() == {first.pid}
        os.close(write)  # the supervisor is gone
        write = -1
        await eventually(lambda: processes.start_ticks(first.pid) is None)
        control.reports.clear()
        rig.launch()
        again = await control.ready("r1")
        assert again.restarts == 0  # that was no crash
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({}, "MILLPOND_CONTROL_URL"),
        ({"MILLPOND_SIMULATE": "/nowhere.yaml"}, "shipped description"),
        ({"MILLPOND_AGENT_DIR": "/proc/agent"}, "state folder"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_process_with_a_sentence(tmp_path, env, want):
    base = {"MILLPOND_CONTROL_URL": "http://127.0.0.1:9", "MILLPOND_AGENT_DIR": str(tmp_path)} if env else {}
    ended = run_agent(**(base | env))
    assert ended.returncode == 2
    assert want in ended.stderr
    assert "Traceback" not in ended.stderr
