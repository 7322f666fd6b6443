"""Settings of the agent: read once from the environment, frozen, checked."""

import ipaddress
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import psutil

from runtime.agent.errors import SettingsError

GIB: Final = 1024**3
CPU_SHARE: Final = 0.4  # of the machine's memory, when no budget is set
CPU_CEILING_GIB: Final = 8.0


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set from outside. Bytes and seconds unless the name says otherwise.

    ``data_host`` is the address at which gateways reach this node's engines; engines bind to it too when it is an
    IP address, and to every address when it is a name. ``cpu_memory_bytes`` 0 means that the CPU is no device.
    ``store_max_bytes`` 0 bounds the artifact store by free disk space alone; ``disk_reserve_bytes`` stay free.
    """

    control_url: str
    folder: Path
    node_name: str
    join_token_file: Path | None = None
    cpu_memory_bytes: int = 0
    data_host: str = "127.0.0.1"
    engine_python: str = sys.executable
    simulated_devices: Path | None = None
    stop_engines: bool = False
    store_max_bytes: int = 0
    disk_reserve_bytes: int = GIB
    log_json: bool = True

    @property
    def bind_host(self) -> str:
        """The address engines listen on."""
        try:
            return str(ipaddress.ip_address(self.data_host))
        except ValueError:
            return "127.0.0.1" if self.data_host == "localhost" else "0.0.0.0"  # noqa: S104  a name must be resolvable


def default_cpu_budget(total_bytes: int) -> int:
    """Memory the CPU device offers when nothing is set: a share of the machine, at most 8 GiB."""
    return int(min(CPU_CEILING_GIB * GIB, CPU_SHARE * total_bytes))


def from_env(env: Mapping[str, str]) -> AgentSettings:
    """Read the settings.

    Raises:
        SettingsError: a variable is missing or cannot be used; the text names it and says what is expected.
    """
    control_url = env.get("MILLPOND_CONTROL_URL", "").rstrip("/")
    parts = urlsplit(control_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError("MILLPOND_CONTROL_URL must be the control plane's address, like http://127.0.0.1:8100")
    folder = env.get("MILLPOND_AGENT_DIR", "")
    if not folder:
        raise SettingsError("MILLPOND_AGENT_DIR must name the folder that keeps this agent's state")
    token_file = env.get("MILLPOND_AGENT_JOIN_TOKEN_FILE", "")
    simulated = env.get("MILLPOND_SIMULATED_DEVICES", "")
    budget = _gib(env, "MILLPOND_CPU_DEVICE_MEMORY_GIB")
    return AgentSettings(
        control_url=control_url,
        folder=Path(folder).resolve(),
        node_name=env.get("MILLPOND_NODE_NAME", "") or socket.gethostname(),
        join_token_file=Path(token_file) if token_file else None,
        cpu_memory_bytes=default_cpu_budget(psutil.virtual_memory().total) if budget is None else budget,
        data_host=env.get("MILLPOND_DATA_HOST", "") or "127.0.0.1",
        engine_python=env.get("MILLPOND_ENGINE_PYTHON", "") or sys.executable,
        simulated_devices=Path(simulated) if simulated else None,
        stop_engines=env.get("MILLPOND_AGENT_STOP_ENGINES", "") == "1",
        store_max_bytes=_gib(env, "MILLPOND_AGENT_STORE_GIB") or 0,
        log_json=env.get("MILLPOND_LOG_FORMAT", "json") != "text",
    )


def _gib(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a number of GiB, not {text!r}") from None
    if not 0 <= value <= 1_000_000:
        raise SettingsError(f"{name} must be between 0 and 1000000 GiB, not {text}")
    return int(value * GIB)
