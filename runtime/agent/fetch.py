"""Getting artifacts into the store: resumable, verified, a few at a time."""

import asyncio
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

from runtime.agent.errors import Fault, Retry
from runtime.agent.store import ArtifactStore
from runtime.base import logs
from runtime.wire.assignments import ArtifactRef

log = logs.get(__name__)
PIECE_BYTES: Final = 1024 * 1024
PARALLEL: Final = 2


class Body(Protocol):
    """A download under way. ``offset`` is where its first byte belongs in the file."""

    offset: int

    def pieces(self, size: int) -> AsyncIterator[bytes]:
        """The bytes, at most ``size`` at a time.

        Raises:
            errors.Unreachable: the connection broke.
        """


class Source(Protocol):
    """Where artifacts come from."""

    def open_artifact(self, sha256: str, offset: int) -> AbstractAsyncContextManager[Body]:
        """Ask for the file from ``offset`` on; the answer may start at 0 all the same.

        Raises:
            errors.Unreachable, errors.Refused
        """


class Fetcher:
    """Fetches into one store; two replicas that need the same file share one download."""

    def __init__(self, store: ArtifactStore, source: Source) -> None:
        self._store = store
        self._source = source
        self._slots = asyncio.Semaphore(PARALLEL)
        self._locks: dict[str, asyncio.Lock] = {}

    async def fetch_all(self, artifacts: Iterable[ArtifactRef], progress: Callable[[float], None]) -> None:
        """Bring every file into the store; ``progress`` gets the fraction of bytes that are here.

        Raises:
            Fault: ``DigestMismatch``, ``SizeMismatch``, ``StoreFull``, ``DiskFull``, ``MalformedAssignment``.
            errors.LinkError: the control plane did not deliver; what came is kept for the next try.
        """
        wanted = {artifact.sha256: artifact for artifact in artifacts}
        total = sum(artifact.size for artifact in wanted.values()) or 1
        here = 0
        for artifact in wanted.values():
            await self._fetch(artifact, functools.partial(_advance, progress, here, total))
            here += artifact.size
            progress(min(1.0, here / total))

    async def _fetch(self, artifact: ArtifactRef, progress: Callable[[int], None]) -> None:
        lock = self._locks.setdefault(artifact.sha256, asyncio.Lock())
        try:
            async with lock, self._slots:
                if not self._store.has(artifact):
                    await self._download(artifact, progress)
        finally:
            if not lock.locked():
                self._locks.pop(artifact.sha256, None)

    async def _download(self, artifact: ArtifactRef, progress: Callable[[int], None]) -> None:
        self._store.admit(artifact)
        part = self._store.partial(artifact.sha256)
        digest = hashlib.sha256()
        offset = await asyncio.to_thread(_resume, part, artifact.size, digest)
        if offset < artifact.size:
            async with self._source.open_artifact(artifact.sha256, offset) as body:
                if body.offset != offset:  # the server does not resume: start over
                    part.unlink(missing_ok=True)
                    digest, offset = hashlib.sha256(), 0
                    if body.offset != 0:
                        raise Fault("ArtifactRange", "the control plane answered with another range than asked for")
                async for piece in body.pieces(PIECE_BYTES):
                    offset += len(piece)
                    if offset > artifact.size:
                        part.unlink(missing_ok=True)
                        raise Fault(
                            "SizeMismatch", f"{artifact.path} is longer than the {artifact.size} bytes assigned"
                        )
                    await asyncio.to_thread(_append, part, piece, digest)
                    progress(offset)
        elif not part.exists():
            part.touch(mode=0o600)  # an empty file is a file
        self._finish(artifact, part, digest.hexdigest(), offset)

    def _finish(self, artifact: ArtifactRef, part: Path, found: str, size: int) -> None:
        if size < artifact.size:
            raise Fault("ArtifactCut", f"{artifact.path} ended after {size} of {artifact.size} bytes", Retry.SOON)
        if found != artifact.sha256:
            part.unlink(missing_ok=True)
            log.error("artifact_digest_mismatch", path=artifact.path, expected=artifact.sha256, found=found)
            raise Fault("DigestMismatch", f"{artifact.path} arrived damaged: its SHA-256 is not the one assigned")
        self._store.accept(artifact)


def _advance(progress: Callable[[float], None], base: int, total: int, done: int) -> None:
    progress(min(1.0, (base + done) / total))


def _resume(part: Path, size: int, digest: "hashlib._Hash") -> int:
    """Hash what an earlier try left; a file longer than it may be is dropped. Returns its length."""
    try:
        if part.stat().st_size > size:
            part.unlink()
            return 0
        with part.open("rb") as file:
            length = 0
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                length += len(piece)
            return length
    except FileNotFoundError:
        return 0


def _append(part: Path, piece: bytes, digest: "hashlib._Hash") -> None:
    with part.open("ab") as file:
        file.write(piece)
    digest.update(piece)
