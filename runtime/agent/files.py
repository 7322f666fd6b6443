"""Small durable files: written whole or not at all, private to the agent."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from runtime.base import logs
from runtime.wire import codec
from runtime.wire.errors import MalformedMessage

log = logs.get(__name__)
T = TypeVar("T", bound=msgspec.Struct)


def private_folder(path: Path) -> Path:
    """Create ``path`` (and parents) readable by this user alone; returns it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
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


def write_struct(path: Path, value: msgspec.Struct) -> None:
    """Write ``value`` as JSON, private and atomic."""
    write_private(path, codec.encode(value))
