"""Writing an upload's bytes to disk: one writer at a time, durable up to every checkpoint, hashed on the way.

The lock is the kernel's on the open file, so it holds between processes and goes with a process that dies. Bytes behind
the last noted offset (from a crash) are cut off when the next writer starts.
"""

import collections
import contextlib
import fcntl
import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from catalog.errors import UploadLocked

_READ_BYTES: Final = 4 * 1024**2
_WARM_LIMIT: Final = 256
_warm: "collections.OrderedDict[uuid.UUID, tuple[int, Any]]" = collections.OrderedDict()
_warm_guard = threading.Lock()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[bytes]]:
    """The file at ``path`` (made when missing), open for reading and writing, with nobody else in it.

    Raises:
        UploadLocked: somebody else holds it.
    """
    handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640), "r+b", buffering=0)
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UploadLocked(
                "Another request is sending bytes to this upload. Wait until it ends, then ask for the offset again.",
                data={"retry_after": 2},
            ) from None
        yield handle


class Appender:
    """Appends to a locked upload from ``offset`` on and keeps the SHA-256 of the whole file where it can.

    The running hash survives between requests in this process only; after a restart, or in another process, ``digest``
    is unknown and the file is read again when it is complete.
    """

    def __init__(self, handle: IO[bytes], upload_id: uuid.UUID, offset: int, checksum: str = "") -> None:
        self._handle = handle
        self._id = upload_id
        self.offset = offset
        self._hash = _take_warm(upload_id, offset)
        self._checksum = hashlib.new(checksum, usedforsecurity=False) if checksum else None
        handle.truncate(offset)
        handle.seek(offset)

    def write(self, data: bytes) -> None:
        """Append ``data``; it is not durable yet."""
        view = memoryview(data)
        while view:
            view = view[self._handle.write(view) or 0 :]
        if self._hash is not None:
            self._hash.update(data)
        if self._checksum is not None:
            self._checksum.update(data)
        self.offset += len(data)

    def sync(self) -> int:
        """Make everything written durable and return the offset."""
        os.fsync(self._handle.fileno())
        return self.offset

    def checksum(self) -> bytes:
        """Digest of what this request has sent, in the algorithm it named."""
        return bytes(self._checksum.digest()) if self._checksum is not None else b""

    def rewind(self, offset: int) -> None:
        """Forget everything behind ``offset``."""
        self._handle.truncate(offset)
        self._handle.seek(offset)
        self.offset, self._hash = offset, None

    def park(self) -> None:
        """Keep the running hash for the next request of the same upload."""
        if self._hash is not None:
            _keep_warm(self._id, self.offset, self._hash)

    def digest(self) -> str:
        """SHA-256 of the whole file, or "" when its beginning was written elsewhere."""
        return self._hash.hexdigest() if self._hash is not None else ""


def digest_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, read piece by piece."""
    with path.open("rb") as handle:
        result = hashlib.sha256()
        while piece := handle.read(_READ_BYTES):
            result.update(piece)
    return result.hexdigest()


def _take_warm(upload_id: uuid.UUID, offset: int) -> Any:
    with _warm_guard:
        known_offset, running = _warm.pop(upload_id, (-1, None))
    if offset == 0:
        return hashlib.sha256()
    return running if known_offset == offset else None


def _keep_warm(upload_id: uuid.UUID, offset: int, running: Any) -> None:
    with _warm_guard:
        _warm[upload_id] = (offset, running)
        while len(_warm) > _WARM_LIMIT:
            _warm.popitem(last=False)
