"""Processes of ranks: what they are told, and how they are started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from runtime.base import lifeline
from runtime.wire import codec
from runtime.wire.inference import EngineSpec


def told_of(spec: EngineSpec) -> Path:
    """The spec as the other ranks of this node read it, without its token; written anew."""
    told = Path(spec.address_file).parent / "ranks.json"
    with open(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(codec.encode(msgspec.structs.replace(spec, token="")))
    return told


def spawn(
    rank: int, spec_file: Path, channel: socket.socket, starter: socket.socket | None = None
) -> subprocess.Popen[bytes]:
    """A rank that listens to its leader on ``channel``, and tells whoever started it on ``starter`` how it is.

    Raises:
        OSError: it cannot be started.
    """
    command = [sys.executable, "-m", "runtime.engine.ranks.rank", "--spec", str(spec_file)]
    command += ["--rank", str(rank), "--channel", str(channel.fileno())]
    kept = [channel.fileno()]
    if starter is not None:
        command += ["--starter", str(starter.fileno())]
        kept.append(starter.fileno())
    watched = lifeline.inherited_fd()
    if watched is not None:
        kept.append(watched)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=kept)
