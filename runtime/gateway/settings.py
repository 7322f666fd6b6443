"""Everything that can be set about a gateway, read once from the environment into one frozen struct."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

PREFIX: Final = "MILLPOND_GATEWAY_"
KIB: Final = 1024
MIB: Final = 1024 * KIB


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the text names the variable and says what is allowed."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes unless a name says otherwise. Each field is ``MILLPOND_GATEWAY_<NAME>`` in the environment.

    Exceptions: ``directory`` is ``MILLPOND_GATEWAY_DIR`` and ``control_url`` is ``MILLPOND_CONTROL_URL``.
    """

    control_url: str
    directory: Path
    host: str = "127.0.0.1"
    port: int = 8101
    name: str = ""
    url: str = ""  # how others reach this gateway; empty means http://host:port
    join_token_file: Path | None = None
    metrics_token_file: Path | None = None  # without it, /metrics answers callers on this machine only
    log_json: bool = True
    # TLS by files (PEM); both or neither. SIGHUP reads them again.
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    reuse_port: bool = False  # a successor with a folder of its own may take the port before this process has drained
    # Networks (CIDR, comma between) of proxies whose X-Forwarded-For says where a request comes from.
    trusted_proxies: str = ""

    # The table: how often it is re-read although no hint came, and how old it may get before keys are refused.
    reread_seconds: float = 3.0
    max_table_age_seconds: float = 24 * 3600.0
    control_timeout_seconds: float = 10.0

    # What a client may send.
    max_body_bytes: int = 4 * MIB
    max_head_bytes: int = 32 * KIB
    max_json_depth: int = 32
    max_choices: int = 8
    max_stop_sequences: int = 4
    head_timeout_seconds: float = 15.0
    body_timeout_seconds: float = 60.0
    write_timeout_seconds: float = 120.0
    keepalive_seconds: float = 15.0
    max_in_flight: int = 4096

    # Engines.
    connect_timeout_seconds: float = 3.0
    engine_idle_seconds: float = 600.0
    request_max_seconds: float = 3600.0
    cancel_timeout_seconds: float = 3.0
    final_usage_seconds: float = 60.0  # how long an engine that does not answer is asked what a request came to
    max_attempts: int = 3
    assumed_credits: int = 256  # requests at one time at an engine that grants none
    affinity_chunks: int = 16384  # prompt chunks of 1 KiB remembered per replica
    load_poll_seconds: float = 1.0
    stuck_seconds: float = 30.0  # an engine with work that computes nothing for so long gets no more
    probe_timeout_seconds: float = 30.0
    wake_timeout_seconds: float = 300.0
    max_answer_bytes: int = 64 * MIB

    # Requests held back before deployments that cannot take them now.
    hold_seconds: float = 30.0
    hold_cold_seconds: float = 300.0
    hold_per_tenant: int = 256
    hold_total: int = 1024

    # Limits and budgets. `limits_url` names the counters that all gateways share (redis://, rediss:// or unix://);
    # without it this gateway counts alone. While they are gone: `share` serves this gateway's share, `refuse` serves
    # no limited key; `limits_gateways` is how many share before the counters have told.
    limits_url: str = ""
    limits_timeout_seconds: float = 0.25
    limits_lease_seconds: float = 10.0
    limits_when_down: str = "share"
    limits_gateways: int = 1
    # Reserved against a token limit for a request that names no max_tokens.
    default_completion_tokens: int = 512

    # The journal.
    fsync_seconds: float = 1.0
    fsync_records: int = 1000
    segment_bytes: int = 16 * MIB
    journal_max_bytes: int = 2048 * MIB
    batch_records: int = 256
    deliver_seconds: float = 1.0

    drain_seconds: float = 30.0


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: a value does not parse, is out of range, or no state folder is named.
    """
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(Settings):
        text = environ.get(_variable(field.name), "").strip()
        if text:
            values[field.name] = _parse(field.name, field.type, text)
    values.setdefault("control_url", "http://127.0.0.1:8100")
    if "directory" not in values:
        home = environ.get("MILLPOND_HOME", "").strip()
        if not home:
            raise SettingsError("set MILLPOND_GATEWAY_DIR (or MILLPOND_HOME): the folder for credential and journal")
        values["directory"] = Path(home) / "gateway"
    values.setdefault("name", socket.gethostname())
    settings = msgspec.convert(values, Settings, strict=False)
    _check(settings)
    return settings


def _variable(name: str) -> str:
    if name == "control_url":
        return "MILLPOND_CONTROL_URL"
    return PREFIX + ("DIR" if name == "directory" else name.upper())


def _parse(name: str, kind: object, text: str) -> object:
    if kind in (Path, Path | None):
        return Path(text)
    if kind is bool:
        if text.lower() not in ("0", "1", "true", "false"):
            raise SettingsError(f"{_variable(name)} is {text!r}; use true or false")
        return text.lower() in ("1", "true")
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise SettingsError(f"{_variable(name)} is {text!r}; it must be a number") from None


def _check(settings: Settings) -> None:
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if numeric and field.name != "port" and not 0 < value < float("inf"):
            raise SettingsError(f"{_variable(field.name)} is {value}; it must be greater than 0")
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise SettingsError(f"set both {_variable('tls_cert_file')} and {_variable('tls_key_file')}, or neither")
    for text in filter(None, map(str.strip, settings.trusted_proxies.split(","))):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise SettingsError(
                f"{_variable('trusted_proxies')}: {text!r} is not a network such as 10.0.0.0/8"
            ) from None
    if not 0 <= settings.port <= 65535:
        raise SettingsError(f"{_variable('port')} is {settings.port}; it must be 0 to 65535 (0 picks a free port)")
    if settings.limits_when_down not in ("share", "refuse"):
        raise SettingsError(f"{_variable('limits_when_down')} is {settings.limits_when_down!r}; use share or refuse")
    if settings.limits_url and urlsplit(settings.limits_url).scheme not in ("redis", "rediss", "unix"):
        raise SettingsError(f"{_variable('limits_url')} must begin with redis://, rediss:// or unix://")
    for name in ("control_url", "url"):
        value = getattr(settings, name)
        if value and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname):
            raise SettingsError(f"{_variable(name)} is {value!r}; it must look like http://host:port")
