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

from runtime.agent import cgroups, confine
from runtime.agent.cgroups import Groups
from runtime.agent.errors import Fault, SettingsError
from runtime.agent.settings import AgentSettings
from runtime.base import logs
from runtime.wire.assignments import ReplicaAssignment
from runtime.wire.devices import DeviceKind, Wall

log = logs.get(__name__)
OPEN_FILES: Final = 65536
TRY_SECONDS: Final = 30.0
#: The limit on memory over what was promised: a promise is an estimate, and what is beyond it by half is a leak.
MEMORY_SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """What can be put up here. ``uids`` is the range to give out; its first number is the group that reads weights."""

    facts: tuple[Wall, ...]
    uids: range = range(0)
    groups: Groups | None = None

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


def survey(config: AgentSettings, *, root: Path = cgroups.ROOT, own_groups: str | None = None) -> Walls:
    """Look at this host. ``own_groups`` are the lines of ``/proc/self/cgroup``, as control groups stand under ``root``.

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
    groups, why = cgroups.find(root, cgroups.own_lines() if own_groups is None else own_groups)
    facts = (
        Wall(name="process_group", used=True, detail="a session of its own"),
        Wall(name="folder", used=True, detail="private, mode 0700"),
        Wall(name="devices", used=True, detail="CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES by UUID"),
        Wall(name="token", used=True, detail="a token per replica on its port"),
        Wall(name="no_new_privileges", used=sys.platform == "linux", detail="set before the engine starts"),
        Wall(name="limits", used=True, detail=f"no core dumps, at most {OPEN_FILES} open files"),
        user,
        Wall(name="cgroup", used=groups is not None, detail=why),
        Wall(name="network", used=False, detail="engines share the host's network"),
    )
    log.info("isolation", **{wall.name: wall.detail if wall.used else f"not used: {wall.detail}" for wall in facts})
    return Walls(facts=facts, uids=uids, groups=groups)


def walls_of(walls: Walls, assignment: ReplicaAssignment, *, uid: int, device_kind: DeviceKind | str) -> dict[str, Any]:
    """The walls of one replica as ``confine`` takes them; makes its control groups.

    Raises:
        Fault: ``IsolationFailed``.
    """
    found: dict[str, Any] = {
        "limits": {"core": 0, "nofile": OPEN_FILES},
        "no_new_privileges": sys.platform == "linux",
    }
    if uid:
        found |= {"uid": uid, "gid": uid, "groups": [walls.weights_gid]}
    if walls.groups is not None:
        found["cgroups"] = [str(folder) for folder in _make_groups(walls.groups, assignment, device_kind)]
    return found


def command(words: list[str], walls: dict[str, Any]) -> list[str]:
    """``words`` behind the walls."""
    script = str(Path(confine.__file__))
    return [sys.executable, "-I", "-S", script, msgspec.json.encode(walls).decode(), *words]


def kill_group(walls: Walls, replica_id: str) -> None:
    """End everything in the control group of a replica, where there are any, whatever session it has moved to."""
    if walls.groups is not None:
        walls.groups.kill(replica_id)


def remove_group(walls: Walls, replica_id: str) -> None:
    """Remove the control group of a replica unless something is left in it."""
    if walls.groups is not None:
        walls.groups.remove(replica_id)


def _make_groups(groups: Groups, assignment: ReplicaAssignment, device_kind: DeviceKind | str) -> tuple[Path, ...]:
    memory = assignment.host_memory_bytes
    if memory and device_kind == DeviceKind.CPU:  # the "device" is memory of this machine
        memory += sum(grant.memory_bytes for grant in assignment.devices)
    try:
        return groups.make(
            assignment.replica_id, memory_bytes=int(memory * MEMORY_SLACK), millicpus=assignment.millicpus
        )
    except OSError as exc:
        raise Fault("IsolationFailed", f"the control group of this replica cannot be made: {exc}") from exc


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
