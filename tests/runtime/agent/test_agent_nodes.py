"""Two agents with real engines: a replica whose ranks are on both nodes, from the assignment to its end."""

import os
import signal
import socket
import sys

import pytest
from agent_rig import FAST, ControlPlane, Rig, eventually

from runtime.agent import settings
from runtime.agent.errors import SettingsError
from runtime.agent.views import Policy
from runtime.wire.assignments import Desired, EngineConfig, World
from runtime.wire.reports import Phase

ADDRESSES = ("127.0.0.1", "127.0.0.2")
SLOW = Policy(term_grace=20.0)


@pytest.fixture
async def pair(tmp_path, control, rig):
    """Two nodes, each with a control plane of its own; the first is to lead."""
    other = await ControlPlane().start()
    second = Rig(tmp_path / "second", other)
    yield (rig, control), (second, other)
    await second.close()
    await other.stop()


async def started(pair, artifacts_of, *, policy=SLOW):
    with socket.create_server((ADDRESSES[0], 0)) as found:
        port = found.getsockname()[1]
    for rank, ((rig, control), address) in enumerate(zip(pair, ADDRESSES, strict=True)):
        await rig.start(policy=policy, engine_python=sys.executable, rank_address=address)
        world = World(size=2, ranks=[rank], leader=f"{ADDRESSES[0]}:{port}", pipeline=2)
        config = EngineConfig(kv_cache_bytes=1 << 20, num_threads=1, max_num_batched_tokens=64)
        control.assign(rig.replica(artifacts=artifacts_of(control), world=world, config=config))


@pytest.fixture
def artifacts_of(tmp_path):
    from tests.build.models import tiny_llama

    folder = tiny_llama(tmp_path / "model")
    files = [path for path in folder.rglob("*") if path.is_file()]
    return lambda control: [control.artifact(str(path.relative_to(folder)), path.read_bytes()) for path in files]


@pytest.mark.engine
async def test_ranks_on_two_nodes_get_ready_are_adopted_fail_together_and_drain(pair, artifacts_of):
    (first, leading), (second, following) = pair
    await started(pair, artifacts_of)
    lead = await leading.ready("r1", seconds=120)
    follow = await following.ready("r1", seconds=30)
    assert lead.ledger.weights_bytes > 0
    assert following.reports[-1].rank_address == ADDRESSES[1]

    await second.stop()  # an agent that restarts finds its ranks as they were
    following.reports.clear()
    await second.start(policy=SLOW, engine_python=sys.executable, rank_address=ADDRESSES[1])
    adopted = await following.ready("r1")
    assert (adopted.pid, adopted.reason) == (follow.pid, "Adopted")

    os.killpg(follow.pid, signal.SIGKILL)  # one node's ranks end: so does the replica, and both begin again
    failed = await leading.phase("r1", Phase.FAILED, seconds=30)
    assert failed.message.startswith(f"Rank 1 at {ADDRESSES[1]} is gone.")
    await eventually(lambda: (s := following.seen("r1")) and s.pid not in (None, follow.pid), what="another start")
    again = await leading.ready("r1", seconds=120)
    assert again.pid != lead.pid
    await following.ready("r1", seconds=60)

    following.change("r1", desired=Desired.DRAIN)  # who follows waits for who leads
    await following.phase("r1", Phase.DRAINING)
    assert leading.seen("r1").phase is Phase.READY
    leading.change("r1", desired=Desired.DRAIN)
    await leading.phase("r1", Phase.STOPPED, seconds=30)
    await following.phase("r1", Phase.STOPPED, seconds=30)
    assert not first.engines() | second.engines()


@pytest.mark.engine
async def test_a_node_whose_rank_address_changed_does_not_keep_its_ranks(pair, artifacts_of):
    _, (second, following) = pair
    await started(pair, artifacts_of)
    follow = await following.ready("r1", seconds=120)
    await second.stop()
    following.reports.clear()
    await second.start(policy=FAST, engine_python=sys.executable, rank_address="127.0.0.3")
    await eventually(lambda: follow.pid not in second.engines(), what="the old ranks end")
    fresh = await following.ready("r1", seconds=120)  # the leader starts again, and they come from there
    assert fresh.pid != follow.pid


async def test_a_node_without_a_rank_address_refuses_and_says_what_to_set(rig, control):
    await rig.start()
    world = World(size=2, ranks=[1], leader="10.0.0.5:29500", pipeline=2)
    control.assign(rig.replica(world=world))
    failed = await control.phase("r1", Phase.FAILED)
    assert failed.reason == "UnsupportedPlacement"
    assert "set MILLPOND_RANK_ADDRESS" in failed.message
    assert control.reports[-1].rank_address == ""


ENV = {"MILLPOND_CONTROL_URL": "http://127.0.0.1:1", "MILLPOND_AGENT_DIR": "/nowhere"}


@pytest.mark.parametrize("text", ["0.0.0.0", "node-7", "fe80::1", "224.0.0.1", "192.0.2.77"])
def test_a_rank_address_that_cannot_be_is_refused_by_name(text):
    with pytest.raises(SettingsError, match="MILLPOND_RANK_ADDRESS"):
        settings.from_env(ENV | {"MILLPOND_RANK_ADDRESS": text})


def test_a_rank_address_is_off_unless_set_and_a_simulated_machine_may_claim_any():
    assert settings.from_env(ENV).rank_address == ""
    assert settings.from_env(ENV | {"MILLPOND_RANK_ADDRESS": "127.0.0.1"}).rank_address == "127.0.0.1"
    claimed = {"MILLPOND_RANK_ADDRESS": "192.0.2.77", "MILLPOND_SIMULATE": "dgx-h100"}
    assert settings.from_env(ENV | claimed).rank_address == "192.0.2.77"
