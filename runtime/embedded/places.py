"""What can be set, and where everything lies: one folder holds all state of this machine."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.embedded.errors import EmbeddedError
from runtime.embedded.probes import url_host

REPOSITORY: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Places:
    """The settings of one machine. An address that is "" is served by an embedded server."""

    home: Path
    web_host: str = "127.0.0.1"
    web_port: int = 8100
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8101
    database_url: str = ""
    valkey_url: str = ""
    repository: Path = REPOSITORY

    @property
    def run(self) -> Path:
        """Sockets, status, and what one run passes on to itself."""
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def status(self) -> Path:
        return self.run / "status.json"

    @property
    def credentials(self) -> Path:
        return self.home / "credentials"

    @property
    def postgres(self) -> Path:
        return self.home / "postgres"

    @property
    def valkey(self) -> Path:
        return self.home / "valkey"

    @property
    def agent(self) -> Path:
        return self.home / "agent"

    @property
    def gateway(self) -> Path:
        return self.home / "gateway"

    @property
    def sample(self) -> Path:
        return self.home / "sample"

    @property
    def web_url(self) -> str:
        return f"http://{url_host(self.web_host)}:{self.web_port}"

    @property
    def gateway_url(self) -> str:
        return f"http://{url_host(self.gateway_host)}:{self.gateway_port}"


def read(env: Mapping[str, str]) -> Places:
    """Read the settings from the environment.

    Raises:
        EmbeddedError: a port is no port.
    """
    return Places(
        home=Path(env.get("MILLPOND_HOME") or REPOSITORY / ".millpond").expanduser().absolute(),
        web_host=env.get("MILLPOND_WEB_HOST") or "127.0.0.1",
        web_port=_port(env, "MILLPOND_WEB_PORT", 8100),
        gateway_host=env.get("MILLPOND_GATEWAY_HOST") or "127.0.0.1",
        gateway_port=_port(env, "MILLPOND_GATEWAY_PORT", 8101),
        database_url=env.get("DATABASE_URL", ""),
        valkey_url=env.get("VALKEY_URL", ""),
    )


def write_private(path: Path, text: str) -> None:
    """Write ``text`` so that nobody else can read it and a crash cannot lose it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    building = path.with_name(path.name + ".building")
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    building.replace(path)


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip() or str(default)
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise EmbeddedError(f"{name} is {text!r}; it must be a port number from 1 to 65535.")
    return int(text)
