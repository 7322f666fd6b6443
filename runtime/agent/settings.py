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
    ``rank_address`` is the IPv4 address of this machine at which ranks on other nodes reach those here; "": this node
    takes part in no replica over several nodes. What ranks send each other is neither encrypted nor, but for the first
    call, proved: the address belongs to a private network.
    ``simulate`` is a shipped description of a machine or a file; its changes lie in ``simulate_changes``.
    ``engine_uids`` are user numbers for engines (the first is the group of the weights), empty: the agent's user.
    ``store_max_bytes`` 0 bounds the artifact store by free disk space alone; ``disk_reserve_bytes`` stay free.
    """

    control_url: str
    folder: Path
    node_name: str
    join_token_file: Path | None = None
    cpu_memory_bytes: int = 0
    data_host: str = "127.0.0.1"
    rank_address: str = ""
    engine_python: str = sys.executable
    simulate: str = ""
    simulate_changes: Path | None = None
    simulate_engines: bool = False
    engine_uids: range = range(0)
    stop_engines: bool = False
    store_max_bytes: int = 0
    disk_reserve_bytes: int = GIB
    log_json: bool = True

    @property
    def folder_mode(self) -> int:
        """Mode of the folders above the engines' own: others may pass where engines are other users."""
        return 0o711 if self.engine_uids else 0o700

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
    changes = env.get("MILLPOND_SIMULATE_CHANGES", "")
    budget = _gib(env, "MILLPOND_CPU_DEVICE_MEMORY_GIB")
    return AgentSettings(
        control_url=control_url,
        folder=Path(folder).resolve(),
        node_name=env.get("MILLPOND_NODE_NAME", "") or socket.gethostname(),
        join_token_file=Path(token_file) if token_file else None,
        cpu_memory_bytes=default_cpu_budget(psutil.virtual_memory().total) if budget is None else budget,
        data_host=env.get("MILLPOND_DATA_HOST", "") or "127.0.0.1",
        rank_address=_rank_address(env),
        engine_python=env.get("MILLPOND_ENGINE_PYTHON", "") or sys.executable,
        simulate=env.get("MILLPOND_SIMULATE", ""),
        simulate_changes=Path(changes) if changes else None,
        simulate_engines=env.get("MILLPOND_SIMULATE_ENGINES", "") == "1",
        engine_uids=_uids(env),
        stop_engines=env.get("MILLPOND_AGENT_STOP_ENGINES", "") == "1",
        store_max_bytes=_gib(env, "MILLPOND_AGENT_STORE_GIB") or 0,
        log_json=env.get("MILLPOND_LOG_FORMAT", "json") != "text",
    )


def _uids(env: Mapping[str, str]) -> range:
    """``200000-200063``: at least two numbers, none of them root's."""
    text = env.get("MILLPOND_ENGINE_UIDS", "").strip()
    if not text:
        return range(0)
    first, dash, last = text.partition("-")
    if not dash or not first.strip().isdigit() or not last.strip().isdigit():
        raise SettingsError(f"MILLPOND_ENGINE_UIDS must be two user numbers like 200000-200063, not {text!r}")
    found = range(int(first), int(last) + 1)
    if len(found) < 2 or found[0] < 1 or found[-1] > 4_000_000_000:
        raise SettingsError(f"MILLPOND_ENGINE_UIDS must hold at least two numbers above 0, not {text!r}")
    return found


def _rank_address(env: Mapping[str, str]) -> str:
    """An address that this machine has; a simulated one may claim any."""
    text = env.get("MILLPOND_RANK_ADDRESS", "").strip()
    if not text:
        return ""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        address = ipaddress.IPv4Address(0)
    if address.is_unspecified or address.is_multicast:
        raise SettingsError(
            f"MILLPOND_RANK_ADDRESS must be an IPv4 address of this machine in a private network, like 10.0.0.5, not "
            f"{text!r}"
        )
    here = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    if not address.is_loopback and text not in here and not env.get("MILLPOND_SIMULATE"):
        raise SettingsError(f"MILLPOND_RANK_ADDRESS: no network interface of this machine has the address {text}")
    return text


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
