"""Rollouts and experiments as a person types them."""

import time

import pytest

from tests.build import onnx
from tests.build.machines import GIB


@pytest.fixture
def two_versions(signed_in, shell, folder):
    """``demo`` with two versions, the first behind the endpoint ``demo``, and room for more."""
    signed_in.worker.join_agent(memory_bytes=32 * GIB, cpus=64, host_bytes=256 * GIB)
    shell("upload", folder, "-m", "demo")
    shell("deploy", "demo:1")
    shell("upload", folder, "-m", "demo")
    return signed_in


def until(look, done):
    deadline = time.monotonic() + 20
    while not done(row := look()):
        assert time.monotonic() < deadline, row
        time.sleep(0.1)
    return row


def test_a_rollout_from_preview_to_promotion_and_back(two_versions, shell):
    said = shell("rollouts", "preview", "demo:2", "-e", "demo")
    assert "1 replica more than now" in said.out
    assert "demo does not answer while the candidate loads" in said.out
    shell("rollouts", "start", "demo:2", "-e", "demo", "--shares", "10,100", "--hold", "3600")
    row = until(lambda: shell("rollouts", "status", "demo", "-o", "json").json, lambda row: row["step_began_at"])
    assert (row["state"], row["step"]) == ("running", 0)
    assert "10 %" in shell("rollouts", "status", "demo").out
    refused = shell("rollouts", "start", "demo:2", "-e", "demo", want=1)
    assert "end it first" in refused.err
    shell("rollouts", "pause", row["id"][-6:])
    assert "Paused by" in shell("rollouts", "log", "demo").out
    shell("rollouts", "promote", "demo")
    until(lambda: shell("rollouts", "status", "demo", "-o", "json").json, lambda row: row["state"] == "promoted")
    assert "rolled_back" in shell("rollouts", "roll-back", "demo").out
    assert shell("rollouts", "list", "-o", "json").json[0]["state"] == "rolled_back"


def test_what_no_engine_runs_is_refused_by_preview_and_start_alike(two_versions, shell, tmp_path):
    (tmp_path / "sight.onnx").write_bytes(onnx.model())
    shell("upload", tmp_path / "sight.onnx")
    for verb in ("preview", "start"):
        refused = shell("rollouts", verb, "sight:1", "-e", "demo", want=1)
        assert "No engine here runs ONNX models." in refused.err
        assert "devices" not in refused.out


def test_mistakes_say_what_to_do(two_versions, shell):
    assert "no rollout 'demo'" in shell("rollouts", "status", "demo", want=2).err
    assert "5,25,50,100" in shell("rollouts", "start", "demo:2", "-e", "demo", "--shares", "a,b", want=2).err
    gap = shell("rollouts", "start", "demo:2", "-e", "demo", "--capacity", "in_place", want=1)
    assert "does not answer while the candidate loads" in gap.err


def test_an_experiment(two_versions, shell):
    other = shell("deploy", "demo:2", "-e", "demo", "--weight", "0", "-o", "json").json["id"]
    shell("experiments", "start", "two or one", "-e", "demo", "--candidate", other, "--percent", "5")
    row = shell("experiments", "list", "-o", "json").json[0]
    assert (row["share"], row["state"]) == (50, "running")
    assert "ttft_p95" in shell("experiments", "show", row["id"][-6:]).out
    shell("experiments", "end", row["id"])
    assert shell("experiments", "list", "-o", "json").json[0]["state"] == "ended"
