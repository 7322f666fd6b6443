"""Files that must be whole, durable and private, and the hold of one process on its state folder."""

import fcntl
import os
from pathlib import Path


class FolderInUse(Exception):
    """Another gateway process works in this state folder."""


def write_private(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` atomically and durably, readable by its owner only."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def hold(folder: Path) -> int:
    """Take the folder for this process (until it ends, however it ends); return the descriptor that holds it.

    Raises:
        FolderInUse: another process has it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUse(f"another gateway works in {folder}; give each its own MILLPOND_GATEWAY_DIR") from None
    return descriptor
