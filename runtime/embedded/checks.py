"""What must be true of this machine before anything is started. Each refusal says what to do."""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

from runtime.embedded.errors import EmbeddedError
from runtime.embedded.places import Places

MIB: Final = 1024 * 1024
# A first start: a database of 60 MiB, the sample model three times (as fetched, stored, and in the agent's cache).
FIRST_START_BYTES: Final = 1024 * MIB
LATER_START_BYTES: Final = 256 * MIB
_NEEDED: Final = ("django", "celery", "uvicorn", "channels", "psycopg", "aiohttp")


class Lock:
    """Held for as long as Millpond runs on a state folder. The system releases it with the process."""

    def __init__(self, places: Places) -> None:
        self._path = places.lock
        self._descriptor = -1

    def take(self) -> None:
        """Take the lock.

        Raises:
            EmbeddedError: another process holds it.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise EmbeddedError(
                f"Millpond already runs on {self._path.parent} (process {holder(self._path) or 'unknown'}). "
                "Stop it with Ctrl-C there or with `make stop`, or set MILLPOND_HOME to another folder, "
                "and MILLPOND_WEB_PORT and MILLPOND_GATEWAY_PORT to free ports."
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def holder(lock: Path) -> int | None:
    """Return the process that holds the lock now, or None."""
    try:
        with lock.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read().strip()
                return int(text) if text.isdigit() else None
    except FileNotFoundError:
        return None
    return None


def check_python() -> None:
    """Refuse a Python other than 3.11, and one without our packages."""
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        raise EmbeddedError(f"Millpond needs Python 3.11; this is {found} ({sys.executable}).")
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise EmbeddedError(f"Not installed: {', '.join(missing)}. Run `make setup`.")


def prepare_home(places: Places) -> None:
    """Make the state folder, private to its owner, and see that files can be made in it."""
    home = places.home
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = home / f".probe-{os.getpid()}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EmbeddedError(f"The disk of {home} is full. Free some space, or move MILLPOND_HOME.") from error
        raise EmbeddedError(
            f"{home} cannot be used ({error.strerror}). Set MILLPOND_HOME to a folder that you can write to."
        ) from error
    with contextlib.suppress(PermissionError):  # a mount whose modes are fixed: whoever set it up decides
        home.chmod(0o700)


def check_disk(places: Places) -> None:
    """Refuse to start on a disk that would fill up at once."""
    first = not (places.postgres / "data").exists()
    needed = FIRST_START_BYTES if first else LATER_START_BYTES
    free = shutil.disk_usage(places.home).free
    if free < needed:
        raise EmbeddedError(
            f"{places.home} has {free // MIB} MiB free; {'a first start' if first else 'a start'} needs "
            f"{needed // MIB} MiB. Free some space, or set MILLPOND_HOME to a folder on another disk."
        )


def check_ports(places: Places) -> None:
    """Refuse ports that are in use or not ours to use, and name who holds them."""
    wanted = (
        ("MILLPOND_WEB", places.web_host, places.web_port),
        ("MILLPOND_GATEWAY", places.gateway_host, places.gateway_port),
    )
    if places.web_port == places.gateway_port:
        raise EmbeddedError(
            f"MILLPOND_WEB_PORT and MILLPOND_GATEWAY_PORT are both {places.web_port}; they must differ."
        )
    for prefix, host, port in wanted:
        _check_port(prefix, host, port)


def _check_port(prefix: str, host: str, port: int) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise EmbeddedError(f"{prefix}_HOST is {host!r}, which is no address of this machine ({error}).") from error
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise EmbeddedError(_port_refusal(prefix, host, port, error)) from error


def _port_refusal(prefix: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use by {_port_holder(port)}. Stop it, or set {prefix}_PORT to a free port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has. Set {prefix}_PORT to one above 1023."
    return f"{host}:{port} cannot be listened on ({error.strerror}). Set {prefix}_HOST and {prefix}_PORT to another."


def _port_holder(port: int) -> str:
    # Other users' sockets may be hidden from us: then nobody can be named.
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listening and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()})"
    return "another process"
