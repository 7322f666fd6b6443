"""Control groups of replicas: limits on memory, processors and processes, and killing that reaches every descendant.

Unified ones (version 2) where a group was delegated to the agent; on older hosts those of version 1, one folder per
controller below the groups of the agent's own service. Groups that belong to somebody else are never touched.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.base import logs

log = logs.get(__name__)
ROOT: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("memory", "cpu", "pids")
SUBGROUP: Final = "agent"
MAX_PIDS: Final = 4096
CPU_PERIOD_US: Final = 100_000
_KILL_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where groups of replicas are made: one folder, or where ``old`` one for each of :data:`CONTROLLERS`."""

    bases: tuple[Path, ...]
    old: bool = False

    def of(self, replica_id: str) -> tuple[Path, ...]:
        """The folders of a replica."""
        return tuple(base / f"engine-{replica_id}" for base in self.bases)

    def make(self, replica_id: str, *, memory_bytes: int, millicpus: int) -> tuple[Path, ...]:
        """Make them with their limits; 0: none of that kind.

        Raises:
            OSError: a limit could not be set.
        """
        folders = self.of(replica_id)
        quota = millicpus * CPU_PERIOD_US // 1000
        for folder in folders:
            folder.mkdir(exist_ok=True)
        memory, cpu, pids = folders if self.old else folders * len(CONTROLLERS)
        (pids / "pids.max").write_text(str(MAX_PIDS))
        if self.old:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes or -1))
            (cpu / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
            (cpu / "cpu.cfs_quota_us").write_text(str(quota or -1))
        else:
            (memory / "memory.max").write_text(str(memory_bytes or "max"))
            (cpu / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}" if quota else "max")
            _write(memory / "memory.oom.group", "1")  # all of an engine ends, or none of it
        return folders

    def kill(self, replica_id: str) -> None:
        """End everything in them, whatever session it has moved to."""
        for folder in self.of(replica_id):
            if folder.exists():
                _kill_each(folder) if self.old else _write(folder / "cgroup.kill", "1")

    def remove(self, replica_id: str) -> None:
        """Remove empty ones; one that still has processes stays and is used again."""
        for folder in self.of(replica_id):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError as exc:
                log.debug("cgroup_stays", group=folder.name, error=str(exc))


def own_lines() -> str:
    """The groups of this process, as the kernel lists them; "" where there are none."""
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def find(root: Path, lines: str) -> tuple[Groups | None, str]:
    """(where groups can be made, how or why not). ``lines`` are those of ``/proc/self/cgroup``."""
    own: dict[str, str] = {}
    for line in lines.splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        own |= {f"{names}/{name}": path for name in names.split(",")}
    groups, why = _old(root, own)
    return (groups, why) if groups is not None else _unified(root, own.get("/", ""), why)


def _old(root: Path, own: dict[str, str]) -> tuple[Groups | None, str]:
    """Version 1: systemd gives a service with ``Delegate=yes`` a group of its own under each controller."""
    named = {name: each for name in CONTROLLERS for each in own if each.split("/")[1] == name}
    if len(named) < len(CONTROLLERS):
        return None, ""
    bases = []
    for name in CONTROLLERS:
        mount = root / name if (root / name).exists() else root / named[name].split("/")[0]
        base = mount / own[named[name]].lstrip("/")
        if not base.name.endswith((".service", ".scope")) or not base.is_dir() or not os.access(base, os.W_OK):
            return None, f"the agent's service has no {name} control group that is delegated to it (Delegate=yes)"
        bases.append(base)
    return Groups(bases=tuple(bases), old=True), (
        "memory, processors and processes of each replica are limited (control groups of version 1)"
    )


def _unified(root: Path, own: str, otherwise: str) -> tuple[Groups | None, str]:
    """Version 2.

    The agent must have been started in a subgroup of the group that is delegated to it: a group with groups below it
    may hold no process, so that an agent in it could not be started a second time beside the engines of the first.
    """
    if not (root / own.lstrip("/") / "cgroup.controllers").exists():
        return None, otherwise or "this host has no unified control groups"
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
    return Groups(bases=(base,)), "memory, processors and processes of each replica are limited"


def _kill_each(folder: Path) -> None:
    """Version 1 has no file for it: again until nobody is left, since processes may start others meanwhile."""
    for _ in range(_KILL_ROUNDS):
        try:
            pids = [int(text) for text in (folder / "cgroup.procs").read_text().split()]
        except (OSError, ValueError) as exc:
            log.debug("cgroup_unreadable", group=folder.name, error=str(exc))
            return
        ours = [pid for pid in pids if pid > 1 and pid != os.getpid()]
        if not ours:
            return
        for pid in ours:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as exc:  # older kernels have fewer files
        log.debug("cgroup_file_unwritable", path=str(path), error=str(exc))
