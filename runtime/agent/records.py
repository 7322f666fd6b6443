"""What this agent started, on disk, so that the next agent knows: one folder per replica, one record in it.

Layout under the state folder::

    replicas/<replica id>/record.json      0600: the assignment acted on, the process, how often it crashed
    replicas/<replica id>/spec.json        0600: what the engine reads (holds its token)
    replicas/<replica id>/work/            the engine's own: home, temporary files, address.json when it listens
    replicas/<replica id>/engine.log(.1)   bounded
    replicas/<replica id>/model/           hard links into the artifact store
    desired.json                           0600: the newest assignments, and the highest generation per replica

The record is written before the process starts (without a pid) and again after it, so that no crash of the agent can
leave an engine that nobody knows.
"""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from runtime.agent import files, paths
from runtime.wire.assignments import NodeAssignments, ReplicaAssignment

MAX_REMEMBERED: Final = 4096


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One started engine. ``pid`` 0: the start was intended, its outcome unknown.

    ``tied``: it ends with the supervisor that held its lifeline, so that its absence later is no crash.
    """

    generation: int
    boot_id: str
    pid: int = 0
    ticks: int = 0
    tied: bool = False


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a replica that must outlive this agent. ``crashes`` counts since the last long ready time.

    ``uid`` is the user number that its engine runs as; 0: the agent's.
    """

    assignment: ReplicaAssignment
    process: ProcessRecord | None = None
    verified: bool = False
    restarts: int = 0
    crashes: int = 0
    uid: int = 0


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest assignments accepted, and the highest generation ever seen of each replica (bounded)."""

    assignments: NodeAssignments
    highest: dict[str, int] = {}


class ReplicaFolder:
    """Paths of one replica."""

    def __init__(self, root: Path, replica_id: str) -> None:
        self.path = root / paths.safe_id(replica_id)
        self.record = self.path / "record.json"
        self.spec = self.path / "spec.json"
        self.work = self.path / "work"
        self.address = self.work / "address.json"
        self.log = self.path / "engine.log"
        self.model = self.path / "model"

    def write(self, record: ReplicaRecord) -> None:
        """Make ``record`` durable."""
        if not self.path.is_dir():  # one that is there may have been opened to the engine's user
            files.private_folder(self.path)
        files.write_struct(self.record, record)

    def remove(self) -> None:
        """Forget the replica: everything about it goes."""
        shutil.rmtree(self.path, ignore_errors=True)


class Records:
    """All records of this agent under ``folder``; ``mode`` 0711 where engines are other users that must pass."""

    def __init__(self, folder: Path, mode: int = 0o700) -> None:
        self.root = files.private_folder(folder / "replicas", mode)
        self._desired = folder / "desired.json"

    def folder(self, replica_id: str) -> ReplicaFolder:
        """The folder of one replica (it may not exist yet)."""
        return ReplicaFolder(self.root, replica_id)

    def load(self) -> dict[str, ReplicaRecord]:
        """Every readable record; a folder without one is skipped (its engine, if any, is found as an orphan)."""
        found: dict[str, ReplicaRecord] = {}
        for path in sorted(self.root.iterdir()):
            record = files.read_struct(path / "record.json", ReplicaRecord)
            if record is not None and record.assignment.replica_id == path.name:
                found[path.name] = record
        return found

    def load_desired(self) -> DesiredState | None:
        """The desired state as the last agent knew it."""
        return files.read_struct(self._desired, DesiredState)

    def save_desired(self, state: DesiredState) -> None:
        """Make ``state`` durable; forgets the oldest generations beyond the bound."""
        highest = dict(list(state.highest.items())[-MAX_REMEMBERED:])
        files.write_struct(self._desired, msgspec.structs.replace(state, highest=highest))

    def drop_desired(self) -> None:
        """Forget the desired state: it belongs to another node identity."""
        self._desired.unlink(missing_ok=True)
