"""Artifacts by SHA-256 on this node's disk, shared by all replicas through hard links.

A file enters only whole and verified (see :mod:`runtime.agent.fetch`), is never written to again (mode 0400), and
leaves when space is needed and no replica holds it, the longest unused first.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.agent import paths
from runtime.agent.errors import Fault, Retry
from runtime.agent.files import private_folder
from runtime.base import logs
from runtime.wire.assignments import ArtifactRef

log = logs.get(__name__)


def free_bytes(folder: Path) -> int:
    """Free space of the file system that holds ``folder``."""
    return shutil.disk_usage(folder).free


class ArtifactStore:
    """The store in ``root``. ``max_bytes`` 0 is bounded by the disk alone; ``reserve_bytes`` of it stay free."""

    def __init__(
        self, root: Path, *, max_bytes: int, reserve_bytes: int, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self.root = private_folder(root)
        self._whole = private_folder(root / "sha256")
        self._partial = private_folder(root / "partial")
        self._max = max_bytes
        self._reserve = reserve_bytes
        self._free = free
        self._holders: dict[str, frozenset[str]] = {}  # replica id -> digests

    def path(self, sha256: str) -> Path:
        """Where a whole file lies or would lie."""
        return self._whole / sha256[:2] / paths.safe_sha256(sha256)

    def partial(self, sha256: str) -> Path:
        """Where a file is collected until it is whole."""
        return self._partial / paths.safe_sha256(sha256)

    def has(self, artifact: ArtifactRef) -> bool:
        """True when the file is here, whole."""
        try:
            return self.path(artifact.sha256).stat().st_size == artifact.size
        except FileNotFoundError:
            return False

    def digests(self) -> list[str]:
        """Every whole file, sorted."""
        return sorted(path.name for path in self._whole.glob("*/*"))

    def hold(self, replica_id: str, artifacts: Iterable[ArtifactRef]) -> None:
        """Keep these files (whole or partial) while ``replica_id`` needs them; replaces what it held before."""
        self._holders[replica_id] = frozenset(artifact.sha256 for artifact in artifacts)

    def release(self, replica_id: str) -> None:
        """The replica needs nothing any more."""
        self._holders.pop(replica_id, None)

    def admit(self, artifact: ArtifactRef) -> None:
        """Make room for what is missing of ``artifact``, evicting unheld files.

        Raises:
            Fault: ``StoreFull`` (everything is held by replicas) or ``DiskFull``.
        """
        part = self.partial(artifact.sha256)
        missing = max(0, artifact.size - (part.stat().st_size if part.exists() else 0))
        for victim in self._victims():
            if self._shortage(missing) is None:
                break
            size = victim.stat().st_size
            victim.unlink()
            log.info("artifact_evicted", sha256=victim.name, bytes=size)
        shortage = self._shortage(missing)
        if shortage is not None:
            raise shortage

    def _shortage(self, missing: int) -> Fault | None:
        used = sum(path.stat().st_size for path in self._files())
        if self._max and used + missing > self._max:
            return Fault(
                "StoreFull",
                f"{missing} bytes more do not fit the artifact store ({used} of {self._max} bytes used, all by "
                "replicas of this node): stop one, or raise MILLPOND_AGENT_STORE_GIB",
            )
        free = self._free(self.root)
        if missing and free - missing < self._reserve:
            return Fault(
                "DiskFull",
                f"{missing} bytes more do not fit the disk of {self.root} ({free} bytes free, {self._reserve} kept "
                "in reserve): free some space",
            )
        return None

    def _files(self) -> list[Path]:
        return [*self._whole.glob("*/*"), *self._partial.glob("*")]

    def _victims(self) -> list[Path]:
        """Files nobody holds, longest unused first."""
        held = frozenset[str]().union(*self._holders.values())
        return sorted((p for p in self._files() if p.name not in held), key=lambda path: path.stat().st_mtime)

    def accept(self, artifact: ArtifactRef) -> None:
        """Turn the verified partial file into a whole one."""
        part = self.partial(artifact.sha256)
        target = self.path(artifact.sha256)
        private_folder(target.parent)
        part.chmod(0o400)
        part.replace(target)

    def assemble(self, artifacts: Iterable[ArtifactRef], folder: Path) -> None:
        """Build a model folder of hard links; ``folder`` is made anew.

        Raises:
            Fault: ``UnsafePath``, or ``ArtifactMissing`` when a file is not in the store.
        """
        shutil.rmtree(folder, ignore_errors=True)
        private_folder(folder)
        for artifact in artifacts:
            target = folder / paths.safe_relative(artifact.path)
            source = self.path(artifact.sha256)
            try:
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.link(source, target)
                os.utime(source)
            except (FileExistsError, NotADirectoryError):
                raise Fault(
                    "UnsafePath", f"two files of this version claim the name {artifact.path[:120]!r}", Retry.NEVER
                ) from None
            except FileNotFoundError:
                raise Fault("ArtifactMissing", f"{artifact.path} left the store; it is fetched again") from None

    def sweep_partials(self) -> None:
        """Drop partial files that no replica holds."""
        held = frozenset[str]().union(*self._holders.values())
        for part in self._partial.glob("*"):
            if part.name not in held:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
