"""Who this agent is: a machine id made once, a boot id from the kernel, an id per start, and one agent per folder."""

import fcntl
import os
import uuid
from pathlib import Path

import msgspec
import psutil

from runtime.agent import files
from runtime.agent.errors import AlreadyRunning


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Made once per state folder and kept: a copied disk image must not bring its identity from ``/etc/machine-id``."""

    machine_id: str
    cpu_uuid: str


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What joining gave. ``token_digest`` (SHA-256) tells whether the token in the file was the one used."""

    node_id: str
    secret: str
    token_digest: str


def load(folder: Path) -> Identity:
    """Return the identity kept in ``folder``, making it on first use."""
    path = folder / "identity.json"
    known = files.read_struct(path, Identity)
    if known is not None:
        return known
    fresh = Identity(machine_id=str(uuid.uuid4()), cpu_uuid=f"CPU-{uuid.uuid4()}")
    files.write_struct(path, fresh)
    return fresh


def boot_id() -> str:
    """Changes when the machine restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{int(psutil.boot_time())}"


def lock(folder: Path) -> int:
    """Take the folder for this process until it ends; returns the descriptor to keep open.

    Raises:
        AlreadyRunning: another agent uses the folder.
    """
    fd = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise AlreadyRunning(f"the agent with process id {holder or 'unknown'} already uses {folder}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
