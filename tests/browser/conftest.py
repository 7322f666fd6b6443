"""A real web process on a port, with a database of its own on the tests' Postgres, and a real Chromium.

``chromium`` and ``Visitor`` know nothing of how the platform was started: other tests can point them at any address.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.build.controlplane import PASSWORD

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("MILLPOND_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
START_SECONDS = 90.0


@dataclasses.dataclass
class Site:
    """A running console: where it is, what it holds, and how to act behind its back."""

    url: str
    facts: dict[str, Any]
    env: dict[str, str]

    def world(self, *words: str) -> str:
        """Run ``tests.browser.world`` against the site's database."""
        command = [sys.executable, "-m", "tests.browser.world", *words]
        done = subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    @contextlib.contextmanager
    def told(self, *words: str) -> Iterator["Told"]:
        """The same program, going on step by step: it says something, and waits to be told to go on."""
        command = [sys.executable, "-m", "tests.browser.world", *words]
        process = subprocess.Popen(
            command, env=self.env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            yield Told(process)
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclasses.dataclass
class Told:
    """A running ``tests.browser.world``."""

    process: "subprocess.Popen[str]"

    def hear(self) -> str:
        """What it says next."""
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line, "the program has ended"
        return line

    def go_on(self) -> None:
        """Let it take its next step."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@dataclasses.dataclass
class Visitor:
    """A person in front of a page."""

    page: Page
    url: str
    errors: list[str]

    def open(self, path: str) -> Page:
        """Go to a path and wait until it stands."""
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, email: str, password: str = PASSWORD) -> Page:
        """Sign in through the form."""
        self.open("/accounts/login/")
        self.page.get_by_label("E-mail address").fill(email)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        return self.page


def _database(url: str, name: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    head, question, query = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}{question}{query}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The web process, migrated, with static files and the world of ``tests.browser.world``."""
    with running(tmp_path_factory.mktemp("browser-home")) as found:
        yield found


@contextlib.contextmanager
def running(home: Path, world: str = "seed") -> Iterator[Site]:
    """The same, for whoever is no test; ``world`` is what it is filled with."""
    port = _free_port()
    name = f"browser_{world}_{os.getpid()}"
    main = os.environ["DATABASE_URL"]
    env = {
        **os.environ,
        "MILLPOND_HOME": str(home),
        "DATABASE_URL": _database(main, name),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "MILLPOND_WEB_PORT": str(port),
        "MILLPOND_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "MILLPOND_GATEWAY_URL": f"http://127.0.0.1:{_free_port()}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
    }
    for words in (["migrate", "--no-input"], ["collectstatic", "--no-input"]):
        command = [sys.executable, "-m", "django", *words, "--verbosity", "0"]
        subprocess.run(command, env=env, cwd=ROOT, check=True, timeout=300)
    found = Site(f"http://127.0.0.1:{port}", {}, env)
    found.facts = json.loads(found.world(world))
    log = (home / "web.log").open("wb")
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "controlplane.asgi:application",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(f"{found.url}/healthz", process, home / "web.log")
        yield found
    finally:
        process.terminate()
        process.wait(timeout=20)
        with psycopg.connect(main, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright. Per module: its event loop must not live on into other tests."""
    if not CHROMIUM:
        pytest.skip("no Chromium; install it (apt-get install chromium fonts-noto-cjk) or set MILLPOND_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visitor_of(chromium: Browser, site: Site) -> Iterator[Callable[..., Visitor]]:
    """Make visitors: each has a browser profile of its own. Errors of page, script and policy fail the test."""
    contexts: list[BrowserContext] = []
    visitors: list[Visitor] = []

    def make(email: str = "", **options: Any) -> Visitor:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options})
        context.set_default_timeout(20_000)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        visitor = Visitor(context.new_page(), site.url, [])
        visitors.append(visitor)
        visitor.page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        visitor.page.on("console", lambda message: _note(visitor, message))
        if email:
            visitor.sign_in(email)
            visitor.page.wait_for_url(lambda url: "/login" not in url)
        return visitor

    yield make
    found = [error for visitor in visitors for error in visitor.errors]
    for context in contexts:
        context.close()
    assert not found, found


def _note(visitor: Visitor, message: Any) -> None:
    if "Content Security Policy" in message.text or "Content-Security-Policy" in message.text:
        visitor.errors.append(message.text)
