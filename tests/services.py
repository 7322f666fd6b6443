"""Real Postgres and Valkey for the test run: started once, in the process that starts first, and ended with it.

The settings of the tests call :func:`ensure` while they are imported, so that the addresses are in the environment
before Django reads them. Workers of pytest-xdist inherit the environment of the controller and start nothing.

`python -m tests.services COMMAND...` runs any command with such servers, and DJANGO_SETTINGS_MODULE as in production.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from runtime.embedded import spawn
from runtime.embedded.postgres import Postgres
from runtime.embedded.valkey import Valkey

_PREFIX: Final = "millpond-test-"
_READY_SECONDS: Final = 60.0
# Test data may be lost in a crash: what costs time on a slow disk is off.
_FAST_POSTGRES: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
}


def ensure() -> None:
    """Start what the environment does not name yet, and name it there."""
    if os.environ.get("MILLPOND_TEST_SERVICES"):
        _use_own_database_number()
        return
    _remove_leftovers()
    root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)  # runs last: after the servers have ended
    os.environ["MILLPOND_TEST_SERVICES"] = str(root)
    os.environ.setdefault("MILLPOND_HOME", str(root / "home"))
    (root / "home").mkdir(mode=0o700)
    if "DATABASE_URL" not in os.environ:
        postgres = Postgres(home=root / "postgres", sockets_in=root / "run", settings=_FAST_POSTGRES)
        postgres.create()
        _serve("postgres", postgres.command(), root, postgres.identity.user, signal.SIGINT, postgres.ready_now)
        os.environ["DATABASE_URL"] = postgres.url()
    if "VALKEY_URL" not in os.environ:
        valkey = Valkey(home=root / "valkey", sockets_in=root / "run", settings={"appendonly": "no"})
        valkey.create()
        _serve("valkey", valkey.command(), root, None, signal.SIGTERM, valkey.ready_now)
        os.environ["VALKEY_URL"] = valkey.url()


def _serve(
    name: str,
    command: list[str],
    root: Path,
    user: tuple[int, int] | None,
    stop: signal.Signals,
    ready: Callable[[], bool],
) -> None:
    log = root / f"{name}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=root,
            **spawn.options(death_signal=stop, lifeline_fd=None, env=dict(os.environ), user=user),
        )
    atexit.register(_end, server, stop)
    deadline = time.monotonic() + _READY_SECONDS
    while not ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _end(server: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    if server.poll() is None:
        server.send_signal(stop)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _remove_leftovers() -> None:
    """Remove the folders of runs that were killed: their names say whose they are."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _use_own_database_number() -> None:
    """Give each worker keys of its own: worker gw0 uses database 1, gw1 database 2, and so on."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    url = os.environ["VALKEY_URL"]
    if worker.startswith("gw") and url.endswith("?db=0"):
        os.environ["VALKEY_URL"] = url.removesuffix("0") + str(1 + int(worker[2:]) % 31)


def main(command: list[str]) -> int:
    """Run ``command`` with the servers up and return its exit code."""
    if not command:
        raise SystemExit("usage: python -m tests.services COMMAND...")
    ensure()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
