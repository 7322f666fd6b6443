"""Settings, launch, logs, link: the parts that need no process."""

import aiohttp
import msgspec
import pytest
from agent_rig import CREDENTIAL, TOKEN, mode
from aiohttp import web
from aiohttp.test_utils import TestServer

from runtime.agent import enginelog, files, identity, launch, settings
from runtime.agent.desired import DesiredKeeper
from runtime.agent.errors import Fault, Refused, Retry, SettingsError, Unreachable
from runtime.agent.link import ControlPlane as Link
from runtime.agent.link import Retrying
from runtime.agent.membership import Membership
from runtime.agent.records import Records
from runtime.agent.settings import GIB
from runtime.base.clock import SystemClock
from runtime.wire.assignments import (
    ArtifactRef,
    Desired,
    DeviceGrant,
    EngineConfig,
    NodeAssignments,
    ReplicaAssignment,
    Share,
    World,
)
from runtime.wire.devices import DeviceKind, DeviceReport
from runtime.wire.errors import ErrorCode
from runtime.wire.joining import JoinRequest
from runtime.wire.version import ProtocolVersion

ENV = {"MILLPOND_CONTROL_URL": "http://127.0.0.1:8100/", "MILLPOND_AGENT_DIR": "/tmp/agent"}


def test_settings_have_sensible_defaults():
    config = settings.from_env(ENV)
    assert config.control_url == "http://127.0.0.1:8100"
    assert config.node_name
    assert 0 < config.cpu_memory_bytes <= 8 * GIB
    assert (config.data_host, config.bind_host, config.stop_engines) == ("127.0.0.1", "127.0.0.1", False)
    assert settings.default_cpu_budget(10 * GIB) == 4 * GIB
    assert settings.default_cpu_budget(1000 * GIB) == 8 * GIB


@pytest.mark.parametrize(("host", "want"), [("10.0.0.5", "10.0.0.5"), ("localhost", "127.0.0.1"), ("gpu7", "0.0.0.0")])
def test_engines_bind_to_the_address_that_is_given(host, want):
    assert settings.from_env(ENV | {"MILLPOND_DATA_HOST": host}).bind_host == want


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"MILLPOND_CONTROL_URL": ""}, "MILLPOND_CONTROL_URL"),
        ({"MILLPOND_CONTROL_URL": "ftp://x"}, "MILLPOND_CONTROL_URL"),
        ({"MILLPOND_AGENT_DIR": ""}, "MILLPOND_AGENT_DIR"),
        ({"MILLPOND_CPU_DEVICE_MEMORY_GIB": "much"}, "MILLPOND_CPU_DEVICE_MEMORY_GIB"),
        ({"MILLPOND_CPU_DEVICE_MEMORY_GIB": "-1"}, "MILLPOND_CPU_DEVICE_MEMORY_GIB"),
        ({"MILLPOND_AGENT_STORE_GIB": "nan"}, "MILLPOND_AGENT_STORE_GIB"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(change, want):
    with pytest.raises(SettingsError, match=want):
        settings.from_env(ENV | change)


def test_the_cpu_can_be_no_device():
    assert settings.from_env(ENV | {"MILLPOND_CPU_DEVICE_MEMORY_GIB": "0"}).cpu_memory_bytes == 0


# Launch


def assignment(**fields):
    base = {
        "replica_id": "r1",
        "generation": 1,
        "desired": Desired.RUN,
        "deployment_id": "d",
        "revision_id": "v",
        "tenant_id": "t",
        "served_name": "m",
        "format": "huggingface",
        "artifacts": [],
        "devices": [DeviceGrant(uuid="GPU-1", memory_bytes=7)],
        "config": EngineConfig(),
        "token": "x",
    }
    return ReplicaAssignment(**(base | fields))


def gpu(**fields):
    return DeviceReport(**({"uuid": "GPU-1", "kind": DeviceKind.CUDA, "product": "H", "memory_bytes": 9} | fields))


@pytest.mark.parametrize(
    ("grants", "device", "want_reason", "want_retry"),
    [
        ([], gpu(), "UnsupportedPlacement", Retry.NEVER),
        (["GPU-1", "GPU-1"], gpu(), "UnsupportedPlacement", Retry.NEVER),
        (["GPU-1", "GPU-2"], gpu(kind=DeviceKind.SIMULATED), "DeviceSimulated", Retry.NEVER),
        (["GPU-2"], gpu(), "DeviceMissing", Retry.LATER),
        (["GPU-1"], gpu(problem="Xid 79"), "DeviceSick", Retry.LATER),
        (["GPU-1"], gpu(kind=DeviceKind.SIMULATED), "DeviceSimulated", Retry.NEVER),
    ],
)
def test_devices_that_cannot_carry_a_replica(grants, device, want_reason, want_retry):
    wanted = assignment(devices=[DeviceGrant(uuid=uuid, memory_bytes=1) for uuid in grants])
    with pytest.raises(Fault) as caught:
        launch.choose_device(wanted, {device.uuid: device})
    assert (caught.value.reason, caught.value.retry) == (want_reason, want_retry)


def pair(world=None, **grants):
    """An assignment of two GPUs, and the GPUs as the node reports them."""
    world = world or World(size=2, ranks=[0, 1], leader="n:29500", tensor=2)
    devices = [
        DeviceGrant(**({"uuid": uuid, "memory_bytes": size} | grants)) for uuid, size in (("GPU-2", 5), ("GPU-1", 4))
    ]
    return assignment(devices=devices, world=world), {uuid: gpu(uuid=uuid) for uuid in ("GPU-1", "GPU-2")}


def test_an_engine_of_two_ranks_sees_both_gpus_in_the_order_of_the_ranks(tmp_path):
    wanted, devices = pair()
    target = launch.choose_device(wanted, devices)
    spec = launch.build_spec(
        wanted, target, folder=tmp_path, address=tmp_path / "a", bind="127.0.0.1", advertise="127.0.0.1"
    )
    env = launch.environment(spec, work=tmp_path, inherited={})
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-2,GPU-1"
    assert (spec.world, spec.memory_bytes) == (wanted.world, 4)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"world": World(size=4, ranks=[0, 1], leader="n:1", tensor=4)}, "set MILLPOND_RANK_ADDRESS"),
        ({"world": World(size=4, ranks=[0, 1, 2], leader="n:1", tensor=4)}, "2 devices are granted for the ranks"),
        ({"world": World(size=2, ranks=[1, 0], leader="n:1", tensor=2)}, "2 devices are granted for the ranks"),
        ({"share": Share.MPS}, "not a MIG instance or MPS share"),
    ],
)
def test_ranks_that_no_engine_runs_are_refused(fields, want):
    wanted, devices = pair(**fields)
    with pytest.raises(Fault, match=want) as caught:
        launch.choose_device(wanted, devices)
    assert (caught.value.reason, caught.value.retry) == ("UnsupportedPlacement", Retry.NEVER)


def test_ranks_of_several_nodes_need_an_address_and_the_leader_is_called_at_its_own(tmp_path):
    first = World(size=4, ranks=[0, 1], leader="10.0.0.5:29500", tensor=4)
    wanted, devices = pair(first)
    target = launch.choose_device(wanted, devices, rank_address="10.0.0.5")
    paths = {"folder": tmp_path, "address": tmp_path / "a", "bind": "127.0.0.1", "advertise": "127.0.0.1"}
    assert launch.build_spec(wanted, target, rank_address="10.0.0.5", **paths).rank_address == "10.0.0.5"
    alone, _ = pair()
    assert launch.build_spec(alone, target, rank_address="10.0.0.5", **paths).rank_address == ""
    with pytest.raises(Fault, match=r"told to come to 10\.0\.0\.5") as caught:
        launch.choose_device(wanted, devices, rank_address="10.0.0.6")
    assert (caught.value.reason, caught.value.retry) == ("RankAddressChanged", Retry.LATER)
    others, _ = pair(World(size=4, ranks=[2, 3], leader="10.0.0.5:29500", tensor=4))
    launch.choose_device(others, devices, rank_address="10.0.0.6")  # who does not lead calls from its own


def artifact(path):
    return ArtifactRef(path=path, sha256="0" * 64, size=1)


@pytest.mark.parametrize(
    ("form", "names", "want"),
    [
        ("huggingface", ["config.json"], "/m"),
        ("gguf", ["readme.md", "model.GGUF"], "/m/model.GGUF"),
        ("gguf", ["x-00002-of-00002.gguf", "x-00001-of-00002.gguf"], "/m/x-00001-of-00002.gguf"),
    ],
)
def test_what_the_engine_opens(form, names, want):
    from pathlib import Path

    wanted = assignment(format=form, artifacts=[artifact(name) for name in names])
    assert str(launch.model_path(wanted, Path("/m"))) == want


@pytest.mark.parametrize(("form", "want"), [("pickle", "UnsupportedFormat"), ("gguf", "MalformedAssignment")])
def test_what_no_engine_opens(form, want, tmp_path):
    with pytest.raises(Fault) as caught:
        launch.model_path(assignment(format=form), tmp_path)
    assert caught.value.reason == want


def test_an_engine_sees_its_own_gpu_by_uuid_and_no_secret(tmp_path):
    spec = launch.build_spec(
        assignment(),
        launch.choose_device(assignment(), {"GPU-1": gpu()}),
        folder=tmp_path,
        address=tmp_path / "work" / "address.json",
        bind="10.0.0.5",
        advertise="gpu7",
    )
    assert (spec.device_kind, spec.device_uuid, spec.memory_bytes) == ("cuda", "GPU-1", 7)
    assert (spec.host, spec.port, spec.advertise_host) == ("10.0.0.5", 0, "gpu7")
    inherited = {
        "PATH": "/bin",
        "MILLPOND_LIFELINE_FD": "5",
        "MILLPOND_AGENT_JOIN_TOKEN_FILE": "/secret",
        "DATABASE_URL": "postgres://u:p@h/d",
        "OMP_WAIT_POLICY": "active",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_CLIENT_PRIORITY": "1",
    }
    env = launch.environment(spec, work=tmp_path, inherited=inherited)
    assert "CUDA_MPS_CLIENT_PRIORITY" not in env
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "no-mps"), "where no daemon of the machine's is"
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("GPU-1", "GPU-1")
    assert (env["PATH"], env["MILLPOND_LIFELINE_FD"], env["OMP_WAIT_POLICY"]) == ("/bin", "5", "passive")
    assert not {"MILLPOND_AGENT_JOIN_TOKEN_FILE", "DATABASE_URL"} & set(env)


# Files and logs


def test_an_engine_log_is_bounded_while_it_is_written(tmp_path):
    path = tmp_path / "engine.log"
    with path.open("a") as engine:
        engine.write("x" * 50 + "\n")
        engine.flush()
        assert enginelog.bound(path, 40)
        engine.write("after\n")
        engine.flush()
    assert path.read_text() == "after\n"
    assert (tmp_path / "engine.log.1").read_text().startswith("xxx")
    assert not enginelog.bound(path, 40)
    assert not enginelog.bound(tmp_path / "none", 40)


def test_the_tail_of_a_log_is_bounded_and_masked(tmp_path):
    path = tmp_path / "engine.log"
    assert enginelog.tail(path) == []
    assert enginelog.last_line(path) == ""
    path.write_text("\n".join(f"line {index} " + "y" * 500 for index in range(200)) + f"\nkey {TOKEN}\n\n")
    tail = enginelog.tail(path)
    assert len(tail) <= enginelog.TAIL_LINES
    assert max(len(line) for line in tail) <= enginelog.LINE_CHARS
    assert enginelog.last_line(path) == "key mpj_[masked]"


def test_private_files_are_whole_or_absent(tmp_path):
    path = tmp_path / "x.json"
    files.write_struct(path, identity.Identity(machine_id="m", cpu_uuid="c"))
    assert mode(path) == 0o600
    assert files.read_struct(path, identity.Identity).machine_id == "m"
    path.write_text('{"machine_id": ')
    assert files.read_struct(path, identity.Identity) is None


def test_identity_is_made_once(tmp_path):
    assert identity.load(tmp_path) == identity.load(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    assert identity.load(other).cpu_uuid != identity.load(tmp_path).cpu_uuid


# Desired state


def node(generation, *, node_id="n", replicas=(), **fields):
    return NodeAssignments(node_id=node_id, generation=generation, replicas=list(replicas), **fields)


def test_desired_state_only_moves_forward_and_outlives_the_agent(tmp_path):
    keeper = DesiredKeeper(Records(tmp_path))
    assert keeper.generation == 0
    assert keeper.accept(node(5, replicas=[assignment(generation=7)]), "n")
    assert not keeper.accept(node(5), "n")
    assert not keeper.accept(node(4), "n")
    assert not keeper.accept(node(6, node_id="other"), "n")
    assert not keeper.accept(node(6, protocol=ProtocolVersion(major=9)), "n")
    assert keeper.accept(node(6, replicas=[assignment(generation=2)]), "n")
    again = DesiredKeeper(Records(tmp_path))
    again.load("n")
    assert again.current == keeper.current
    assert again.highest == {"r1": 7}  # the newest ever seen, not the newest offered
    stranger = DesiredKeeper(Records(tmp_path))
    stranger.load("somebody else")
    assert stranger.current is None
    keeper.reset("new identity")
    assert (keeper.current, dict(keeper.highest)) == (None, {})


# Link


@pytest.fixture
async def link(control):
    async with aiohttp.ClientSession() as session:
        yield Link(session, control.url)


def join(token=TOKEN):
    return JoinRequest(token=token, name="n", machine_id="m", version="1")


async def test_joining_is_refused_with_the_reason(link):
    with pytest.raises(Refused) as caught:
        await link.join(join("mpj_wrong"))
    assert caught.value.code is ErrorCode.TOKEN_USED


async def test_errors_are_told_apart(link, control):
    link.credential = CREDENTIAL
    assert (await link.assignments()).node_id == control.node_id
    link.credential = "mpn_wrong"
    with pytest.raises(Refused) as caught:
        await link.assignments()
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    control.down = True
    with pytest.raises(Unreachable, match="503"):
        await link.assignments()


async def test_nobody_there_is_unreachable():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unreachable):
            await Link(session, "http://127.0.0.1:9").assignments()


def test_pauses_grow_with_jitter_and_start_over():
    low, high = Retrying(first=1, limit=8, jitter=lambda: 0.0), Retrying(first=1, limit=8, jitter=lambda: 1.0)
    assert [low.pause() for _ in range(5)] == [0.5, 1, 2, 4, 4]
    assert [high.pause() for _ in range(5)] == [1, 2, 4, 8, 8]
    high.succeeded()
    assert high.pause() == 1
    assert high.pause(at_least=30) == 30
    assert high.pause(at_least=3600) == 60, "no answer silences a node for longer"


async def test_a_refusal_says_when_to_come_back():
    async def busy(_request):
        return web.json_response({}, status=503, headers={"Retry-After": "17"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", busy)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with pytest.raises(Unreachable) as refused:
            await Link(session, str(server.make_url("")).rstrip("/")).assignments()
    assert refused.value.retry_after == 17


async def test_a_credential_is_given_up_only_for_a_new_token(link, control, tmp_path, rig):
    member = Membership(settings=rig.settings(), identity=identity.load(rig.folder), control=link, clock=SystemClock())
    assert not member.load()
    assert await member.ensure() == control.node_id
    assert mode(rig.folder / "credential.json") == 0o600
    assert control.joins[0].machine_id == identity.load(rig.folder).machine_id
    refusal = Refused(401, ErrorCode.UNAUTHENTICATED, "no")
    assert not member.rejected(refusal)
    assert link.credential == CREDENTIAL
    rig.token_file.write_text("mpj_new")
    assert member.rejected(refusal)
    assert link.credential == ""


def test_messages_survive_the_round_trip_of_a_newer_peer():
    """Unknown fields of a newer control plane are ignored."""
    plain = msgspec.to_builtins(node(1)) | {"colour": "green"}
    assert msgspec.convert(plain, type=NodeAssignments) == node(1)
