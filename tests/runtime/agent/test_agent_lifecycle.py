"""The agent with real engine processes, against a small control plane."""

import json
import os
import signal
from dataclasses import replace

import psutil
from agent_rig import CREDENTIAL, ENGINE_TOKEN, FAST, TOKEN, eventually, mode

from runtime.wire.assignments import Desired, DeviceGrant
from runtime.wire.devices import DeviceKind
from runtime.wire.reports import Phase


async def test_joins_reports_its_cpu_and_serves_a_replica_after_a_real_inference(rig, control):
    await rig.start()
    await eventually(lambda: control.reports)
    report = control.reports[-1]
    assert [device.kind for device in report.devices] == [DeviceKind.CPU]
    assert report.devices[0].uuid == rig.cpu_uuid
    assert report.host.cpus >= 1
    control.assign(rig.replica(artifacts=[control.artifact("sub/weights.bin", b"w" * 100_000)]))
    seen = await control.ready("r1")
    assert seen.address.startswith("http://127.0.0.1:")
    assert {seen.pid} == rig.engines()
    assert seen.ledger.weights_bytes == 1000
    await eventually(lambda: control.seen("r1").stats.requests_total >= 1, what="the trial inference")
    assert (rig.engine_folder() / "model" / "sub" / "weights.bin").read_bytes() == b"w" * 100_000
    await eventually(lambda: control.reports[-1].applied_generation == control.generation)
    assert set(control.reports[-1].stored_sha256) == set(control.artifacts)


async def test_phases_are_reported_in_order(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"load_seconds": 1.0}))
    await control.ready("r1")
    phases = [item.phase for report in control.reports for item in report.replicas]
    order = [Phase.FETCHING, Phase.LOADING, Phase.WARMING, Phase.READY]
    assert {Phase.LOADING, Phase.READY} <= set(phases) <= set(order)  # short phases may fall between two reports
    assert phases == sorted(phases, key=order.index)


async def test_an_engine_that_calls_itself_ready_without_answering_is_not_ready(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"no_inference": True}))
    seen = await control.phase("r1", Phase.FAILED, reason="InferenceFailed")
    assert "the runner is broken" in seen.message
    assert not any(item.phase is Phase.READY for report in control.reports for item in report.replicas)


async def test_secrets_stay_in_private_files_and_out_of_environment_and_arguments(rig, control, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "do not pass on")
    await rig.start()
    control.assign(rig.replica())
    seen = await control.ready("r1")
    folder = rig.engine_folder()
    assert mode(folder) == 0o700
    assert {mode(folder / name) for name in ("spec.json", "record.json")} == {0o600}
    assert {mode(rig.folder / name) for name in ("credential.json", "desired.json")} == {0o600}
    environ = json.loads((folder / "work" / "environ.json").read_text())
    assert "SECRET_OF_THE_AGENT" not in environ
    assert (environ["CUDA_VISIBLE_DEVICES"], environ["HF_HUB_OFFLINE"]) == ("", "1")
    assert environ["OMP_WAIT_POLICY"] == "passive"
    told = " ".join(psutil.Process(seen.pid).cmdline()) + json.dumps(environ)
    assert not [secret for secret in (ENGINE_TOKEN, CREDENTIAL, TOKEN) if secret in told]


async def test_a_killed_engine_starts_again_after_a_pause_and_says_so(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"child": True}))
    first = await control.ready("r1")
    child = int((rig.engine_folder() / "work" / "child.pid").read_text())
    os.kill(first.pid, signal.SIGKILL)
    failed = await control.phase("r1", Phase.FAILED, reason="EngineExited")
    assert failed.message == "the engine ended (killed by SIGKILL): listening"
    assert failed.restarts == 1
    again = await control.ready("r1")
    assert again.pid != first.pid
    assert again.restarts == 1
    assert rig.engines() == {again.pid}
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


async def test_a_crash_loop_is_slowed_down_and_shows_exit_code_and_last_line(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"crash": 7}))
    await eventually(lambda: (seen := control.seen("r1")) and seen.restarts >= 3)
    failed = await control.phase("r1", Phase.FAILED, reason="EngineExited")
    assert failed.message.startswith("the engine ended (exit code 7): out of luck")
    tails = [item.log_tail for report in control.reports for item in report.replicas if item.log_tail]
    assert tails
    assert not rig.engines()


async def test_drain_waits_for_what_runs_and_then_stops(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"running": 1}, drain_seconds=60))
    await control.ready("r1")
    control.change("r1", desired=Desired.DRAIN)
    await control.hint()
    draining = await control.phase("r1", Phase.DRAINING)
    before = len(control.reports)
    await eventually(lambda: len(control.reports) > before + 3)
    assert rig.engines() == {draining.pid}
    rig.engine_control(running=0)
    stopped = await control.phase("r1", Phase.STOPPED)
    assert stopped.reason == "Drained"
    assert not rig.engines()
    control.drop("r1")
    await eventually(lambda: control.seen("r1") is None)
    await eventually(lambda: not rig.engine_folder().exists())


async def test_drain_ends_when_its_time_is_over(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"running": 1}, drain_seconds=1))
    await control.ready("r1")
    control.change("r1", desired=Desired.DRAIN)
    stopped = await control.phase("r1", Phase.STOPPED)
    assert stopped.reason == "DrainTimeout"


async def test_stop_kills_an_engine_that_ignores_the_request(rig, control):
    await rig.start()
    control.assign(rig.replica(behave={"ignore_term": True}))
    await control.ready("r1")
    control.change("r1", desired=Desired.STOP)
    await control.phase("r1", Phase.STOPPED)
    assert not rig.engines()


async def test_a_replica_that_is_no_longer_assigned_is_ended_and_forgotten(rig, control):
    await rig.start()
    control.assign(rig.replica())
    await control.ready("r1")
    control.drop("r1")
    await eventually(lambda: control.seen("r1") is None)
    assert not rig.engines()


async def test_a_newer_generation_replaces_the_engine(rig, control):
    await rig.start()
    control.assign(rig.replica())
    first = await control.ready("r1")
    control.change("r1", generation=2, token="another-secret")
    second = await control.ready("r1", generation=2)
    assert second.pid != first.pid
    assert rig.engines() == {second.pid}


async def test_older_generations_of_node_and_replica_are_refused(rig, control):
    await rig.start()
    control.assign(rig.replica(generation=5))
    first = await control.ready("r1")
    control.change("r1", generation=4, desired=Desired.STOP)
    await eventually(lambda: control.reports[-1].applied_generation == control.generation)
    applied = control.generation
    control.generation = 1  # a control plane set back in time
    control.replicas.clear()
    await control.hint()
    before = len(control.reports)
    await eventually(lambda: len(control.reports) > before + 5)
    assert control.reports[-1].applied_generation == applied
    assert control.seen("r1").pid == first.pid
    assert control.seen("r1").phase is Phase.READY


async def test_a_silent_engine_is_degraded_then_proves_itself_again(rig, control):
    await rig.start()
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.engine_control(silent=True)
    await control.phase("r1", Phase.DEGRADED, reason="EngineSilent")
    rig.engine_control()
    again = await control.ready("r1")
    assert again.pid == first.pid
    await eventually(lambda: control.seen("r1").stats.requests_total >= 2, what="a second trial inference")


async def test_an_engine_that_stays_silent_is_started_again(rig, control):
    await rig.start(policy=replace(FAST, silent_limit=2.0))
    control.assign(rig.replica())
    first = await control.ready("r1")
    rig.engine_control(silent=True)
    failed = await control.phase("r1", Phase.FAILED, reason="EngineSilent")
    assert failed.restarts == 1
    rig.engine_control()
    again = await control.ready("r1")
    assert again.pid != first.pid


async def test_what_the_engine_says_about_itself_is_passed_on(rig, control):
    await rig.start()
    control.assign(rig.replica())
    await control.ready("r1")
    rig.engine_control(phase="degraded", reason="KvPoolLow", message="blocks are short")
    seen = await control.phase("r1", Phase.DEGRADED, reason="KvPoolLow")
    assert seen.message == "blocks are short"
    rig.engine_control(phase="asleep")
    await control.phase("r1", Phase.ASLEEP)
    rig.engine_control()
    await control.ready("r1")


async def test_engines_go_on_and_come_back_while_the_control_plane_is_gone(rig, control):
    await rig.start()
    control.assign(rig.replica())
    first = await control.ready("r1")
    port = int(control.url.rsplit(":", 1)[1])
    await control.stop()
    os.kill(first.pid, signal.SIGKILL)
    # The files are in the store, so that a crash heals with nobody to ask.
    second = (await eventually(lambda: rig.engines() - {first.pid})).pop()
    count = len(control.reports)
    await control.start(port)
    await eventually(lambda: len(control.reports) > count, seconds=60)
    seen = await control.ready("r1")
    assert seen.pid == second


async def test_a_control_plane_that_answers_errors_stops_nothing(rig, control):
    await rig.start()
    control.assign(rig.replica())
    first = await control.ready("r1")
    control.down = True
    before = len(control.requests)
    await eventually(lambda: len(control.requests) > before + 2)
    control.down = False
    before = len(control.reports)
    await eventually(lambda: len(control.reports) > before)
    assert control.seen("r1").pid == first.pid


async def test_a_removed_node_ends_its_engines(rig, control):
    from runtime.wire.errors import ErrorCode

    await rig.start()
    control.assign(rig.replica())
    await control.ready("r1")
    control.refusal = ErrorCode.REMOVED
    await eventually(lambda: not rig.engines())


async def test_an_unaccepted_credential_stops_nothing(rig, control):
    from runtime.wire.errors import ErrorCode

    await rig.start()
    control.assign(rig.replica())
    first = await control.ready("r1")
    control.refusal = ErrorCode.UNAUTHENTICATED
    before = len(control.requests)
    await eventually(lambda: len(control.requests) > before + 2)
    assert rig.engines() == {first.pid}
    control.refusal = None
    before = len(control.reports)
    await eventually(lambda: len(control.reports) > before)
    assert len(control.joins) == 1


async def test_two_replicas_share_one_download(rig, control):
    await rig.start()
    weights = control.artifact("weights.bin", b"w" * 3_000_000)
    control.assign(rig.replica("r1", artifacts=[weights]))
    control.assign(rig.replica("r2", artifacts=[weights]))
    await control.ready("r1")
    await control.ready("r2")
    assert len(rig.engines()) == 2
    asked = [path for path, _ in control.requests if path.endswith(weights.sha256)]
    assert len(asked) == 1


async def test_stop_with_engines_ends_them_and_the_next_agent_starts_them(rig, control):
    await rig.start(stop_engines=True)
    control.assign(rig.replica())
    first = await control.ready("r1")
    await rig.stop()
    assert not rig.engines()
    assert control.seen("r1").phase is Phase.STOPPED  # said goodbye
    control.reports.clear()
    await rig.start()
    again = await control.ready("r1")
    assert again.pid != first.pid
    assert again.restarts == 0


async def test_a_broken_download_goes_on_and_nothing_is_called_failed(rig, control):
    await rig.start()
    weights = control.artifact("weights.bin", b"w" * 5_000_000)
    control.cuts[weights.sha256] = 2_000_000
    control.assign(rig.replica(artifacts=[weights]))
    await control.ready("r1")
    seen = [item for report in control.reports for item in report.replicas]
    broken = [item for item in seen if item.reason == "ArtifactUnavailable"]
    assert broken
    assert {item.phase for item in broken} == {Phase.FETCHING}
    assert [asked for path, asked in control.requests if path.endswith(weights.sha256)][-1] is not None


async def test_a_full_store_is_a_failure_that_says_what_to_do_and_heals(rig, control):
    await rig.start(store_max_bytes=1_000_000)
    control.assign(rig.replica("r1", artifacts=[control.artifact("a.bin", b"a" * 700_000)]))
    await control.ready("r1")
    control.assign(rig.replica("r2", artifacts=[control.artifact("b.bin", b"b" * 700_000)]))
    failed = await control.phase("r2", Phase.FAILED, reason="StoreFull")
    assert "MILLPOND_AGENT_STORE_GIB" in failed.message
    control.drop("r1")
    await control.ready("r2")


async def test_a_report_never_claims_assignments_it_has_not_acted_on(rig, control):
    elsewhere = [DeviceGrant(uuid="GPU-elsewhere", memory_bytes=1)]
    await rig.start()
    at = {}
    for index in range(12):
        control.assign(rig.replica(f"r{index}", devices=elsewhere))
        at[f"r{index}"] = control.generation
        await control.hint()
        before = len(control.reports)
        await eventually(lambda before=before: len(control.reports) > before)
    await control.phase("r11", Phase.FAILED, reason="DeviceMissing")
    for report in control.reports:
        present = {item.replica_id for item in report.replicas}
        assert present >= {name for name, generation in at.items() if generation <= report.applied_generation}
