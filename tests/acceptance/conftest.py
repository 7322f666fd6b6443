"""The whole platform under its own supervisor, as `make run` starts it, on free ports and an empty folder."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Poll ``check`` until it returns something true; the last falsy value is in the failure."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s; last {value!r}")
        time.sleep(0.2)


@dataclasses.dataclass
class Stack:
    """A running platform and the ways people reach it."""

    home: Path
    web: str
    gateway: str
    credentials: dict[str, Any]
    process: subprocess.Popen[bytes]
    env: dict[str, str]

    def rest(self, secret: str) -> httpx2.Client:
        """REST with a bearer secret."""
        return httpx2.Client(base_url=self.web + "/api/v1", headers={"Authorization": f"Bearer {secret}"}, timeout=30)

    def admin(self) -> httpx2.Client:
        """REST as the first admin, signed in with the printed password."""
        body = {"email": self.credentials["admin_email"], "password": self.credentials["admin_password"]}
        answer = httpx2.post(self.web + "/api/v1/login", json=body, timeout=30)
        assert answer.status_code == 201, answer.text
        return self.rest(answer.json()["token"])

    def openai(self, key: str | None = None) -> openai.OpenAI:
        """The official client, unchanged."""
        return openai.OpenAI(
            base_url=self.gateway + "/v1", api_key=key or self.credentials["api_key"], max_retries=0, timeout=60
        )

    def cli(self, *words: str, secret: str | None = None, want: int = 0) -> str:
        """Run the command line as a user would; return its output."""
        env = {**self.env, "MILLPOND_API_KEY": secret or self.credentials["manage_key"], "MILLPOND_SERVER": self.web}
        env["MILLPOND_CONFIG"] = str(self.home / "cli.json")
        done = subprocess.run(
            [sys.executable, "-m", "runtime.client", *words],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == want, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to this platform: its children, and strays that know its folder."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.environ().get("MILLPOND_HOME") == str(self.home) and process.pid != os.getpid():
                    found[process.pid] = process
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return list(found.values())

    def engines(self) -> list[psutil.Process]:
        """The engine processes."""
        engines = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if "runtime.engine" in words and any(str(self.home) in word for word in words):
                engines.append(process)
        return engines

    def pid_of(self, name: str) -> int:
        """Process id of a supervised program; 0 while it is being started again."""
        status = json.loads((self.home / "run" / "status.json").read_bytes())
        return next(int(row["pid"] or 0) for row in status["programs"] if row["name"] == name)


def start(home: Path, *words: str, **variables: str) -> Stack:
    """Start the platform without the sample model and wait until it says where it is.

    ``words`` are added to the command, ``variables`` to its environment.
    """
    web, gateway = free_port(), free_port()
    env = {name: value for name, value in os.environ.items() if name not in _OURS} | {
        "MILLPOND_HOME": str(home),
        "MILLPOND_WEB_PORT": str(web),
        "MILLPOND_GATEWAY_PORT": str(gateway),
        "MILLPOND_CPU_DEVICE_MEMORY_GIB": "2",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        **variables,
    }
    log = (home.parent / "supervisor.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime.embedded", "up", "--no-sample", *words],
        env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    stack = Stack(home, f"http://127.0.0.1:{web}", f"http://127.0.0.1:{gateway}", {}, process, env)

    def up() -> bool:
        assert process.poll() is None, (home.parent / "supervisor.log").read_text()[-4000:]
        text = (home.parent / "supervisor.log").read_text(errors="replace")
        return (home / "credentials").exists() and "curl" in text

    eventually(up, "the platform is up", START_SECONDS)
    stack.credentials = json.loads((home / "credentials").read_text())
    return stack


_OURS = ("MILLPOND_HOME", "MILLPOND_TEST_SERVICES", "DATABASE_URL", "VALKEY_URL", "DJANGO_SETTINGS_MODULE")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One platform for the module; it has to end cleanly, leaving nothing behind."""
    running = start(tmp_path_factory.mktemp("platform") / "home")
    yield running
    stop(running)


def stop(running: Stack) -> None:
    """End it; nothing may be left behind."""
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(timeout=90)
    eventually(lambda: not running.processes(), "every process has ended", 30)
