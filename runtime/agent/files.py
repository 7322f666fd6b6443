"""Small durable files: written whole or not at all, private to the agent."""

import os
import stat
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from runtime.base import logs
from runtime.wire import codec
from runtime.wire.errors import MalformedMessage

log = logs.get(__name__)
T = TypeVar("T", bound=msgspec.Struct)
MAX_FOREIGN_BYTES: Final = 64 * 1024


def private_folder(path: Path, mode: int = 0o700) -> Path:
    """Create ``path`` (and parents) readable by this user alone; returns it. Mode 0711 lets others pass through."""
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    path.chmod(mode)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Replace ``path`` with ``data`` (mode 0600) so that a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_struct(path: Path, kind: type[T]) -> T | None:
    """Read a file written with :func:`write_struct`; ``None`` when it is absent or damaged (which is logged)."""
    try:
        return codec.decode(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except (MalformedMessage, OSError) as exc:
        log.warning("state_file_unreadable", path=str(path), error=str(exc))
        return None


def read_foreign(path: Path, kind: type[T]) -> T | None:
    """Read a small file that another user may have put there; ``None`` when it is absent, damaged or no plain file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        try:
            return codec.decode(file.read(MAX_FOREIGN_BYTES), kind)
        except (MalformedMessage, OSError) as exc:
            log.warning("foreign_file_unreadable", path=str(path), error=str(exc))
            return None


def write_struct(path: Path, value: msgspec.Struct) -> None:
    """Write ``value`` as JSON, private and atomic."""
    write_private(path, codec.encode(value))
