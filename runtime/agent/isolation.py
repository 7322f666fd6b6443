"""What walls this host offers around an engine process, and those of one replica. Looked at once, never assumed.

Always: a session of its own, a private folder, its own devices, a token, no new privileges, limits on open files and
core dumps. Where the agent is root and has numbers to give out: a user of its own per replica. Where control groups
are the agent's to write: memory, processors and processes are limited, and killing reaches every descendant.
"""

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.agent import confine
from runtime.agent.errors import Fault, SettingsError
from runtime.agent.settings import AgentSettings
from runtime.base import logs
from runtime.wire.assignments import ReplicaAssignment
from runtime.wire.devices import DeviceKind, Wall

log = logs.get(__name__)
CGROUPS: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("memory", "cpu", "pids")
SUBGROUP: Final = "agent"
MAX_PIDS: Final = 4096
OPEN_FILES: Final = 65536
CPU_PERIOD_US: Final = 100_000
TRY_SECONDS: Final = 30.0
#: The limit on memory over what was promised: a promise is an estimate, and what is beyond it by half is a leak.
MEMORY_SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """What can be put up here. ``uids`` is the range to give out; its first number is the group that reads weights."""

    facts: tuple[Wall, ...]
    uids: range = range(0)
    cgroup: Path | None = None

    @property
    def weights_gid(self) -> int:
        """Group of the artifact store's files; 0 where engines run as the agent's user."""
        return self.uids[0] if self.uids else 0

    def free_uid(self, taken: Collection[int]) -> int:
        """A user number for one more replica; 0 where engines run as the agent's user.

        Raises:
            Fault: ``NoUserLeft``.
        """
        if not self.uids:
            return 0
        for uid in self.uids[1:]:
            if uid not in taken:
                return uid
        raise Fault("NoUserLeft", "every user number of MILLPOND_ENGINE_UIDS is taken by a replica: widen the range")


def survey(config: AgentSettings, *, cgroups: Path = CGROUPS, own_group: str | None = None) -> Walls:
    """Look at this host.

    Raises:
        SettingsError: the settings ask for a wall that cannot be put up.
    """
    uids = config.engine_uids
    if uids:
        _check_uids(config, uids)
        user = Wall(name="user", used=True, detail=f"a user of its own per replica, {uids[1]} to {uids[-1]}")
    else:
        who = "root" if os.geteuid() == 0 else "the agent's user"
        user = Wall(name="user", used=False, detail=f"engines run as {who}; set MILLPOND_ENGINE_UIDS to separate them")
    group, why = _cgroup(cgroups, _own_group() if own_group is None else own_group)
    facts = (
        Wall(name="process_group", used=True, detail="a session of its own"),
        Wall(name="folder", used=True, detail="private, mode 0700"),
        Wall(name="devices", used=True, detail="CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES by UUID"),
        Wall(name="token", used=True, detail="a token per replica on its port"),
        Wall(name="no_new_privileges", used=sys.platform == "linux", detail="set before the engine starts"),
        Wall(name="limits", used=True, detail=f"no core dumps, at most {OPEN_FILES} open files"),
        user,
        Wall(name="cgroup", used=group is not None, detail=why),
        Wall(name="network", used=False, detail="engines share the host's network"),
    )
    log.info("isolation", **{wall.name: wall.detail if wall.used else f"not used: {wall.detail}" for wall in facts})
    return Walls(facts=facts, uids=uids, cgroup=group)


def walls_of(walls: Walls, assignment: ReplicaAssignment, *, uid: int, device_kind: DeviceKind | str) -> dict[str, Any]:
    """The walls of one replica as ``confine`` takes them; makes its control group.

    Raises:
        Fault: ``IsolationFailed``.
    """
    found: dict[str, Any] = {
        "limits": {"core": 0, "nofile": OPEN_FILES},
        "no_new_privileges": sys.platform == "linux",
    }
    if uid:
        found |= {"uid": uid, "gid": uid, "groups": [walls.weights_gid]}
    if walls.cgroup is not None:
        found["cgroup"] = str(_make_group(walls.cgroup, assignment, device_kind))
    return found


def command(words: list[str], walls: dict[str, Any]) -> list[str]:
    """``words`` behind the walls."""
    script = str(Path(confine.__file__))
    return [sys.executable, "-I", "-S", script, msgspec.json.encode(walls).decode(), *words]


def group_of(walls: Walls, replica_id: str) -> Path | None:
    """The control group of a replica, where there are any."""
    return None if walls.cgroup is None else walls.cgroup / f"engine-{replica_id}"


def kill_group(group: Path | None) -> None:
    """End everything in the group, whatever session it has moved to."""
    if group is not None and group.exists():
        _write(group / "cgroup.kill", "1")


def remove_group(group: Path | None) -> None:
    """Remove an empty group; one that still has processes stays and is used again."""
    if group is not None and group.exists():
        try:
            group.rmdir()
        except OSError as exc:
            log.debug("cgroup_stays", group=group.name, error=str(exc))


def _make_group(base: Path, assignment: ReplicaAssignment, device_kind: DeviceKind | str) -> Path:
    group = base / f"engine-{assignment.replica_id}"
    memory = assignment.host_memory_bytes
    if memory and device_kind == DeviceKind.CPU:  # the "device" is memory of this machine
        memory += sum(grant.memory_bytes for grant in assignment.devices)
    processors = f"{assignment.millicpus * CPU_PERIOD_US // 1000} {CPU_PERIOD_US}" if assignment.millicpus else "max"
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(int(memory * MEMORY_SLACK)) if memory else "max")
        (group / "cpu.max").write_text(processors)
        (group / "pids.max").write_text(str(MAX_PIDS))
    except OSError as exc:
        raise Fault("IsolationFailed", f"the control group of this replica cannot be made: {exc}") from exc
    _write(group / "memory.oom.group", "1")  # all of an engine ends, or none of it
    return group


def _own_group() -> str:
    """This process's group in the unified hierarchy, like ``/system.slice/millpond-agent.service``; "" without one."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    except OSError:
        pass  # no control groups here
    return ""


def _cgroup(root: Path, own: str) -> tuple[Path | None, str]:
    """(folder under which groups can be made, how or why not).

    The agent must have been started in a subgroup of the group that is delegated to it: a group with groups below it
    may hold no process, so that an agent in it could not be started a second time beside the engines of the first.
    """
    if not (root / own.lstrip("/") / "cgroup.controllers").exists():
        return None, "this host has no unified control groups"
    if not own.endswith(f"/{SUBGROUP}"):
        return (
            None,
            f"the agent is not in a subgroup of its own (systemd 254: Delegate=yes, DelegateSubgroup={SUBGROUP})",
        )
    base = (root / own.lstrip("/")).parent
    try:
        offered = set((base / "cgroup.controllers").read_text().split())
        missing = [name for name in CONTROLLERS if name not in offered]
        if missing:
            return None, f"the agent's control group has no {', '.join(missing)} controller"
        if (base / "cgroup.procs").read_text().split():
            return None, "other processes are in the control group above the agent's"
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as exc:
        return None, f"control groups cannot be made: {exc}"
    return base, "memory, processors and processes of each replica are limited"


def _check_uids(config: AgentSettings, uids: range) -> None:
    """Try once as such a user: engines must reach the interpreter, the code and the state folder."""
    if os.geteuid() != 0:
        raise SettingsError("MILLPOND_ENGINE_UIDS needs the agent to run as root: only root can become another user")
    walls = {"uid": uids[1], "gid": uids[1], "groups": [uids[0]]}
    source = Path(confine.__file__).resolve().parents[2]
    program = (
        f"import os, sys; sys.path.insert(0, {str(source)!r}); import runtime.wire; os.stat({str(config.folder)!r})"
    )
    done = subprocess.run(
        command([config.engine_python, "-c", program], walls),
        capture_output=True,
        timeout=TRY_SECONDS,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        cwd="/",
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SettingsError(
            f"MILLPOND_ENGINE_UIDS: user {uids[1]} cannot run an engine ({lines[-1] if lines else 'no message'}): the "
            "interpreter, Millpond's code and the state folder must be reachable for every user"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as exc:  # older kernels have fewer files
        log.debug("cgroup_file_unwritable", path=str(path), error=str(exc))
