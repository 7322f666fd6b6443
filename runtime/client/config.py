"""Profiles: which server, as whom, in which tenant. One private JSON file.

The file is ``$MILLPOND_CONFIG``, or ``millpond/config.json`` under ``$XDG_CONFIG_HOME`` or ``~/.config``.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from runtime.client.errors import ConfigError, UsageError

ENV_CONFIG: Final = "MILLPOND_CONFIG"
DEFAULT_SERVER: Final = "http://127.0.0.1:8100"
DEFAULT_PROFILE: Final = "default"


class Profile(msgspec.Struct, kw_only=True):
    """``token`` acts as a person, ``key`` as a tenant; "" is unset."""

    server: str = ""
    gateway: str = ""
    tenant: str = ""
    label: str = ""
    token: str = ""
    key: str = ""


class Config(msgspec.Struct, kw_only=True):
    """The whole file."""

    current: str = DEFAULT_PROFILE
    profiles: dict[str, Profile] = {}


def path_of_config(env: Mapping[str, str]) -> Path:
    """Where the file is.

    Raises:
        ConfigError: there is no home folder and no variable that names the file.
    """
    if named := env.get(ENV_CONFIG):
        return Path(named)
    if base := env.get("XDG_CONFIG_HOME"):
        return Path(base) / "millpond" / "config.json"
    home = env.get("HOME") or os.path.expanduser("~")
    if not home or home == "~":
        raise ConfigError(f"There is no home folder to keep the configuration in; set {ENV_CONFIG} to a file.")
    return Path(home) / ".config" / "millpond" / "config.json"


def load(path: Path) -> Config:
    """Read the file; an absent one is an empty configuration.

    Raises:
        ConfigError: the file is there and cannot be read or understood.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read ({exc.strerror}); set {ENV_CONFIG} to another file.") from exc
    try:
        return msgspec.json.decode(data, type=Config)
    except msgspec.MsgspecError as exc:
        raise ConfigError(f"{path} is no configuration of millpond ({exc}); move it away and sign in again.") from exc


def save(path: Path, config: Config) -> None:
    """Write the file, readable by its owner only, wholly or not at all.

    Raises:
        ConfigError: the folder or the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(msgspec.to_builtins(config), file, indent=2)
                file.write("\n")
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be written ({exc.strerror}); set {ENV_CONFIG} to a file in a folder that you may write to."
        ) from exc


def profile_named(config: Config, name: str) -> Profile:
    """The profile ``name`` ("" is the current one). The default profile is there even when it was never saved.

    Raises:
        UsageError: no such profile.
    """
    wanted = name or config.current
    if wanted in config.profiles:
        return config.profiles[wanted]
    if wanted == DEFAULT_PROFILE or not name:
        return Profile()
    known = ", ".join(sorted(config.profiles)) or "none"
    raise UsageError(
        f"There is no profile {wanted!r} (profiles: {known}); make it with millpond login --profile {wanted}."
    )
