"""From an empty folder to a platform with an admin, a tenant and its keys: steps that may be repeated at any time."""

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from runtime.embedded import processes
from runtime.embedded.errors import StartError
from runtime.embedded.places import Places, write_private
from runtime.embedded.processes import Environments
from runtime.embedded.supervisor import Supervisor

_MIGRATE_S: Final = 600.0
_COMMAND_S: Final = 180.0


class Credentials(msgspec.Struct, kw_only=True):
    """What the first start made. Kept in a private file; a secret is None where it is not known here."""

    console: str = ""
    admin_email: str = ""
    admin_password: str | None = None
    tenant: str = ""
    api_key: str | None = None
    manage_key: str | None = None


class Facts(msgspec.Struct, kw_only=True):
    """What the management command prints. Secrets are there only when they were made by this very call."""

    admin_email: str
    tenant: str
    admin_password: str | None = None
    api_key: str | None = None
    manage_key: str | None = None
    node_join_token: str | None = None
    gateway_join_token: str | None = None


async def migrate(supervisor: Supervisor, places: Places, env: Environments) -> None:
    """Bring the tables up to this version."""
    argv = processes.manage("migrate", "--no-input", "--verbosity", "1")
    await supervisor.step(name="migrate", argv=argv, env=env.control, cwd=places.repository, limit_s=_MIGRATE_S)


async def collect_static(supervisor: Supervisor, places: Places, env: Environments) -> bool:
    """Gather and compress static files when the code has changed since the last time. True when it was done."""
    stamp = places.home / "static.stamp"
    now = static_digest(places.repository)
    if stamp.exists() and stamp.read_text() == now and (places.home / "static").is_dir():
        return False
    argv = processes.manage("collectstatic", "--no-input", "--clear", "--verbosity", "0")
    await supervisor.step(name="collectstatic", argv=argv, env=env.control, cwd=places.repository, limit_s=_COMMAND_S)
    write_private(stamp, now)
    return True


async def people(supervisor: Supervisor, places: Places, env: Environments) -> tuple[Credentials, bool]:
    """Make the first admin, tenant and keys where they are missing, and let agent and gateway join.

    Returns the credentials and whether any of them is new.
    """
    made = places.run / "bootstrap.json"
    _keep(places, made)  # what a start that was cut off had made and not yet kept
    joining = not have_joined(places)
    words = ["bootstrap", "--json", "--write", str(made), *(["--join-tokens"] if joining else [])]
    argv = processes.manage(*words)
    await supervisor.step(name="bootstrap", argv=argv, env=env.control, cwd=places.repository, limit_s=_COMMAND_S)
    facts = _read_facts(made)
    if facts.admin_password is not None and not joining:
        # A new database beside an agent and a gateway that belong to an old one: they must join again.
        for folder in (places.agent, places.gateway):
            (folder / "credential.json").unlink(missing_ok=True)
        credentials, _ = await people(supervisor, places, env)
        return credentials, True
    _write_tokens(places, facts)
    return _keep(places, made)


def have_joined(places: Places) -> bool:
    """True when agent and gateway hold credentials of their own, so that they can start before the control plane."""
    return all(_joined(folder) for folder in (places.agent, places.gateway))


def read_credentials(places: Places) -> Credentials:
    """Return what earlier starts have kept."""
    if not places.credentials.exists():
        return Credentials()
    try:
        return msgspec.json.decode(places.credentials.read_bytes(), type=Credentials)
    except msgspec.DecodeError as error:
        raise StartError(f"{places.credentials} cannot be read ({error}). Move it away and start again.") from error


def static_digest(repository: Path) -> str:
    """Return a digest over names, sizes and times of what static files are made from."""
    digest = hashlib.sha256()
    roots = [repository / "console" / "static", repository / "requirements.lock"]
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file():
                facts = path.stat()
                digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _keep(places: Places, made: Path) -> tuple[Credentials, bool]:
    """Move secrets from the command's file into the credentials file; join tokens are not kept there."""
    credentials = read_credentials(places)
    if not made.exists():
        return credentials, False
    facts = _read_facts(made)
    new = False
    for name in ("admin_password", "api_key", "manage_key"):
        value = getattr(facts, name)
        if value is not None:
            setattr(credentials, name, value)
            new = True
    credentials.console = places.web_url
    credentials.admin_email = facts.admin_email
    credentials.tenant = facts.tenant
    write_private(places.credentials, msgspec.json.format(msgspec.json.encode(credentials), indent=2).decode() + "\n")
    made.unlink()
    return credentials, new


def _read_facts(made: Path) -> Facts:
    try:
        return msgspec.json.decode(made.read_bytes(), type=Facts)
    except (OSError, msgspec.DecodeError) as error:
        raise StartError(f"the first accounts could not be read from {made}: {error}") from error


def _write_tokens(places: Places, facts: Facts) -> None:
    tokens = (
        (places.agent, processes.AGENT_TOKEN, facts.node_join_token),
        (places.gateway, processes.GATEWAY_TOKEN, facts.gateway_join_token),
    )
    for folder, name, token in tokens:
        if token and not _joined(folder):
            write_private(places.run / name, token)


def _joined(folder: Path) -> bool:
    return (folder / "credential.json").exists()
