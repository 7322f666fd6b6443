"""Walls around engines: what is promised is there, and what a host lacks is said."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from agent_rig import mode
from test_agent_parts import assignment, gpu

from runtime.agent import cgroups, confine, files, isolation, settings
from runtime.agent.errors import Fault, SettingsError
from runtime.agent.isolation import Walls
from runtime.agent.mps import Mps
from runtime.agent.records import Records
from runtime.agent.replicas import Slot
from runtime.agent.starting import Starter
from runtime.wire.assignments import DeviceGrant
from runtime.wire.inference import EngineAddress
from runtime.wire.reports import Phase

ENV = {"MILLPOND_CONTROL_URL": "http://127.0.0.1:8100/", "MILLPOND_AGENT_DIR": "/tmp/agent"}
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def run(walls, script, **more):
    """Run a shell script behind the walls."""
    command = isolation.command(["/bin/sh", "-c", script], walls)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


def look(walls):
    """What the kernel says of a process behind the walls."""
    lines = run(walls, "cat /proc/self/status; ulimit -c; ulimit -n", cwd="/").stdout.splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return {key: value.strip() for key, value in status.items()} | {"core": lines[-2], "files": lines[-1]}


def survey(tmp_path, own="", group=None, **fields):
    config = settings.from_env(ENV)
    return isolation.survey(msgspec.structs.replace(config, **fields), root=group or tmp_path, own_groups=f"0::{own}\n")


def test_every_engine_is_without_new_privileges_and_core_dumps(tmp_path):
    walls = isolation.walls_of(survey(tmp_path), assignment(), uid=0, device_kind="cuda")
    seen = look(walls)
    assert (seen["NoNewPrivs"], seen["core"]) == ("1", "0")
    assert 0 < int(seen["files"]) <= isolation.OPEN_FILES


def test_an_engine_without_its_walls_does_not_run(tmp_path):
    done = run({"cgroups": [str(tmp_path / "nowhere")]}, "echo ran")
    assert done.returncode == confine.FAILED
    assert done.stdout == ""
    assert "isolation could not be set up" in done.stderr


def test_what_a_host_lacks_is_reported(tmp_path):
    facts = {wall.name: wall for wall in survey(tmp_path).facts}
    assert not facts["cgroup"].used
    assert "no unified control groups" in facts["cgroup"].detail
    assert not facts["user"].used
    assert "MILLPOND_ENGINE_UIDS" in facts["user"].detail
    assert not facts["network"].used


OWN = "/system.slice/agent.service/agent"


def group_tree(tmp_path, *, controllers="cpu io memory pids", processes=""):
    base = tmp_path / "system.slice" / "agent.service"
    (base / "agent").mkdir(parents=True)
    (base / "agent" / "cgroup.controllers").write_text("")
    (base / "cgroup.controllers").write_text(controllers + "\n")
    (base / "cgroup.procs").write_text(processes)
    (base / "cgroup.subtree_control").write_text("")
    return base


@pytest.mark.parametrize(
    ("tree", "own", "why"),
    [
        ({"controllers": "cpu io"}, OWN, "no memory, pids controller"),
        ({"processes": "1\n"}, OWN, "other processes"),
        ({}, "/system.slice/agent.service", "not in a subgroup"),
    ],
)
def test_a_control_group_that_cannot_be_used_is_not_claimed(tmp_path, tree, own, why):
    group_tree(tmp_path, **tree)
    walls = survey(tmp_path, own)
    [fact] = [wall for wall in walls.facts if wall.name == "cgroup"]
    assert (fact.used, walls.groups) == (False, None)
    assert why in fact.detail


def test_a_delegated_control_group_limits_each_replica(tmp_path):
    base = group_tree(tmp_path)
    walls = survey(tmp_path, OWN)
    assert walls.groups.of("r1") == (base / "engine-r1",)
    assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    wanted = assignment(
        host_memory_bytes=2_000, millicpus=1_500, devices=[DeviceGrant(uuid="CPU-1", memory_bytes=1_000)]
    )
    found = isolation.walls_of(walls, wanted, uid=0, device_kind="cpu")
    [group] = map(Path, found["cgroups"])
    assert group == base / "engine-r1"
    read = {name: (group / name).read_text() for name in ("memory.max", "cpu.max", "pids.max", "memory.oom.group")}
    assert read == {"memory.max": "4500", "cpu.max": "150000 100000", "pids.max": "4096", "memory.oom.group": "1"}
    isolation.walls_of(walls, wanted, uid=0, device_kind="cuda")
    assert (group / "memory.max").read_text() == "3000"  # a GPU's memory is not the host's
    isolation.walls_of(walls, assignment(), uid=0, device_kind="cuda")
    assert (group / "memory.max").read_text() == (group / "cpu.max").read_text() == "max"
    isolation.kill_group(walls, "r1")
    assert (group / "cgroup.kill").read_text() == "1"
    (group / "cgroup.procs").write_text("")
    assert run(found, "true").returncode == 0
    assert (group / "cgroup.procs").read_text() == "0"  # the engine entered by itself, before it was anything else


OLD = [Path("/sys/fs/cgroup") / name for name in cgroups.CONTROLLERS]


@pytest.fixture
def old_groups():
    """Groups as systemd delegates them to a service on hosts of the older kind; the lines that name them."""
    name = f"millpond-test-{os.getpid()}.service"
    made = [folder / name for folder in OLD]
    for folder in made:
        folder.mkdir()
    yield "".join(f"{number}:{folder.name}:/{name}\n" for number, folder in enumerate(OLD, 2)) + "0::/\n"
    for folder in made:
        folder.rmdir()


@root
@pytest.mark.skipif(not all((each / "cgroup.procs").exists() for each in OLD), reason="needs groups of version 1")
def test_groups_of_version_1_hold_an_engine_and_all_that_it_starts(tmp_path, old_groups):
    config = settings.from_env(ENV)
    walls = isolation.survey(config, own_groups=old_groups)
    assert "version 1" in next(wall.detail for wall in walls.facts if wall.name == "cgroup" and wall.used)
    wanted = assignment(host_memory_bytes=64 << 20, millicpus=1_500)
    found = isolation.walls_of(walls, wanted, uid=0, device_kind="cuda")
    memory, cpu, pids = map(Path, found["cgroups"])
    assert (memory / "memory.limit_in_bytes").read_text().strip() == str(96 << 20)
    assert (cpu / "cpu.cfs_quota_us").read_text().strip() == "150000"
    assert (pids / "pids.max").read_text().strip() == "4096"
    assert run(found, "echo ran; head -c 16m /dev/zero | tail >/dev/null").stdout == "ran\n"
    greedy = run(found, "exec python3 -c 'x = bytearray(256 << 20)'")
    assert greedy.returncode == -signal.SIGKILL, "more memory than it may have"
    (pids / "pids.max").write_text("2")
    assert "fork" in run(found, "sleep 0 & sleep 0 & sleep 0 & wait").stderr
    (pids / "pids.max").write_text("4096")
    command = isolation.command(["/bin/sh", "-c", "setsid sleep 60 & echo started; wait"], found)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as left:
        left.stdout.readline()
        isolation.kill_group(walls, "r1")  # the one that moved to a session of its own, too
        assert left.wait(20) == -signal.SIGKILL
    until = time.monotonic() + 20
    while memory.exists() and time.monotonic() < until:
        isolation.kill_group(walls, "r1")
        isolation.remove_group(walls, "r1")
    assert not any(folder.exists() for folder in (memory, cpu, pids))


def test_groups_of_version_1_that_are_not_the_agents_own_are_left_alone(tmp_path):
    for name in ("memory", "cpu,cpuacct", "pids"):
        (tmp_path / name / "user.slice").mkdir(parents=True)
    lines = "4:memory:/user.slice\n3:cpu,cpuacct:/user.slice\n2:pids:/user.slice\n1:name=systemd:/\n"
    groups, why = cgroups.find(tmp_path, lines)
    assert groups is None
    assert "Delegate=yes" in why
    for name in ("memory", "cpu,cpuacct", "pids"):
        (tmp_path / name / "agent.service").mkdir()
    groups, _how = cgroups.find(tmp_path, lines.replace("user.slice", "agent.service"))
    assert groups.of("r1")[1] == tmp_path / "cpu,cpuacct" / "agent.service" / "engine-r1"


# Users


@pytest.mark.parametrize("text", ["1000", "5-5", "0-9", "9-5", "a-b", "1-99999999999"])
def test_a_range_of_users_that_cannot_be_used_is_named(text):
    with pytest.raises(SettingsError, match="MILLPOND_ENGINE_UIDS"):
        settings.from_env(ENV | {"MILLPOND_ENGINE_UIDS": text})


def test_each_replica_gets_a_user_of_its_own():
    walls = Walls(facts=(), uids=range(200_000, 200_003))
    assert walls.weights_gid == 200_000
    assert walls.free_uid({0}) == 200_001
    assert walls.free_uid({0, 200_001}) == 200_002
    with pytest.raises(Fault, match="NoUserLeft"):
        walls.free_uid({200_001, 200_002})
    assert Walls(facts=()).free_uid({0}) == 0


@root
def test_an_engine_with_a_user_of_its_own_has_nothing_else(tmp_path):
    walls = Walls(facts=(), uids=range(200_000, 200_010))
    seen = look(isolation.walls_of(walls, assignment(), uid=200_004, device_kind="cuda"))
    assert set(seen["Uid"].split()) == set(seen["Gid"].split()) == {"200004"}
    assert seen["Groups"].split() == ["200000"]


@pytest.fixture
def open_folder():
    """A folder that every user can pass through, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-agent-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@root
def test_two_replicas_cannot_read_each_other_nor_the_agent(open_folder):
    uids = range(200_000, 200_010)
    engine = open_folder / "engine"
    engine.write_text("#!/bin/sh\nexec sleep 60\n")
    engine.chmod(0o755)
    config = settings.from_env(ENV | {"MILLPOND_AGENT_DIR": str(open_folder / "agent")})
    config = msgspec.structs.replace(config, engine_uids=uids, engine_python=str(engine))
    files.private_folder(config.folder, config.folder_mode)
    records = Records(config.folder, config.folder_mode)
    walls = Walls(facts=(), uids=uids)
    starter = Starter(settings=config, boot_id="b", walls=walls, mps=Mps(config.folder / "mps"))
    weights = open_folder / "weights"
    weights.write_text("w")
    slots = []
    for name in ("r1", "r2"):
        slot = Slot(assignment=assignment(replica_id=name), folder=records.folder(name), phase=Phase.FETCHING, since=0)
        files.private_folder(slot.folder.model)
        (slot.folder.model / "weights").hardlink_to(weights)
        slots.append(slot)
        starter.start(slot, {"GPU-1": gpu()}, taken={item.uid for item in slots})
    try:
        first, second = slots
        assert (first.uid, second.uid) == (200_001, 200_002)
        walls_of_first = {"uid": 200_001, "gid": 200_001, "groups": [200_000]}

        def reads(path):
            return run(walls_of_first, f"cat {path}", cwd="/").returncode == 0

        eventually_uid(first)
        (second.folder.work / "secret").write_text("x")
        own, other = first.folder.path, second.folder.path
        assert [reads(own / name) for name in ("spec.json", "model/weights")] == [True, True]
        assert not any(reads(own / name) for name in ("record.json", "engine.log"))
        assert not any(reads(other / name) for name in ("spec.json", "model/weights", "record.json", "work/secret"))
        write = f"echo x > {own}/work/mine && ! echo x > {own}/spec.json && ! echo x > {own}/model/weights"
        assert run(walls_of_first, write, cwd="/").returncode == 0
        assert weights.read_text() == "w"
        # What an engine plants in its own folder is not followed by the agent when it starts the next one.
        os.kill(first.running.process.pid, signal.SIGKILL)
        shutil.rmtree(own / "work" / "tmp")
        (own / "work" / "tmp").symlink_to("/etc")
        before = mode(Path("/etc"))
        starter.start(first, {"GPU-1": gpu()}, taken=set())
        assert (mode(Path("/etc")), mode(own / "work" / "tmp")) == (before, 0o700)
        assert Records(config.folder, config.folder_mode).load()["r1"].uid in {0, 200_001}
    finally:
        for slot in slots:
            os.kill(slot.running.process.pid, signal.SIGKILL)
            while slot.running.process.poll() is None:
                time.sleep(0.01)


def eventually_uid(slot):
    """Wait until the engine runs as its user: the walls are put up by the process itself."""
    limit = time.monotonic() + 30
    while os.stat(f"/proc/{slot.running.process.pid}").st_uid != slot.uid:
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_what_an_engine_puts_in_place_of_its_address_is_not_followed(tmp_path):
    path = tmp_path / "address.json"
    secret = tmp_path / "secret.json"
    secret.write_text('{"url": "http://x", "pid": 1, "started": 1}')
    path.symlink_to(secret)
    assert files.read_foreign(path, EngineAddress) is None
    path.unlink()
    os.mkfifo(path)
    assert files.read_foreign(path, EngineAddress) is None  # and nobody waits for a writer
    path.unlink()
    path.write_text("not json")
    assert files.read_foreign(path, EngineAddress) is None
    path.unlink()
    path.write_bytes(secret.read_bytes())
    assert files.read_foreign(path, EngineAddress).url == "http://x"
