"""A live control plane with a machine behind it, and the command line as a person types it."""

import asyncio
import contextlib
import dataclasses
import functools
import io
import json
import os
import socket
import threading
import time

import pytest
import uvicorn
from django.core.cache import cache
from django.db import OperationalError, connection

from catalog import validation
from ledger import outbox
from rollouts import advance as rollouts
from runtime.client import main
from scheduling import cycle as scheduling
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build import controlplane as build
from tests.build.machines import FakeAgent, Refused

WAITING = ("upload", "deploy", "delete")
PATIENCE_SECONDS = 20


@contextlib.contextmanager
def served(app):
    """The address of a real uvicorn with ``app``, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


class Worker(threading.Thread):
    """What worker, beat and an agent do, over and over, until told to end."""

    def __init__(self):
        super().__init__(daemon=True)
        self._end = threading.Event()
        self.agent = None
        self.failure = None

    def join_agent(self, **facts):
        made = FakeAgent(**facts)
        made.join()
        made.report()
        self.agent = made

    def run(self):
        try:
            while not self._end.wait(0.05):
                self._beat()
        except Exception as exc:  # handed to the test's own thread
            self.failure = exc
        finally:
            connection.close()

    def _beat(self):
        for loop in (outbox.drain, validation.validate_waiting, serving.run, scheduling.run, rollouts.run):
            try:
                loop()
            except OperationalError:  # two met in the database: the next beat does it, as with real loops
                connection.close()
        if self.agent is not None:
            self._let_agent_act()

    def _let_agent_act(self):
        try:
            self.agent.cycle()
        except Refused as exc:  # "try again" is answered by trying again, as an agent does
            if exc.status != 503:
                raise

    def end(self):
        self._end.set()
        self.join(20)
        if self.failure is not None:
            raise self.failure


@dataclasses.dataclass
class Said:
    """What one command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def _short_pause(seconds):
    """The client's pauses between two looks, shortened: what is waited for comes in milliseconds here."""
    time.sleep(min(seconds, 0.05))


class Shell:
    """Runs ``millpond`` in this process; variables and the configuration are the test's own."""

    def __init__(self, monkeypatch, capsys, folder):
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in list(os.environ):
            if name.startswith("MILLPOND_") and name not in ("MILLPOND_HOME", "MILLPOND_TEST_SERVICES"):
                monkeypatch.delenv(name)
        monkeypatch.setattr(main, "Session", functools.partial(main.Session, sleep=_short_pause))
        self.config = folder / "conf" / "millpond.json"
        self.set(MILLPOND_CONFIG=self.config)

    def set(self, **variables):
        for name, value in variables.items():
            self._monkeypatch.setenv(name, str(value))

    @contextlib.contextmanager
    def interrupted_at_the_next_pause(self):
        """Ctrl-C while the client pauses."""

        def interrupt(_seconds):
            raise KeyboardInterrupt

        with self._monkeypatch.context() as patch:
            patch.setattr(main, "Session", functools.partial(main.Session, sleep=interrupt))
            yield

    def __call__(self, *words, stdin="", want=0):
        if words[0] in WAITING and "--timeout" not in words:
            words = (*words, "--timeout", PATIENCE_SECONDS)
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        code = main.run([str(word) for word in words])
        captured = self._capsys.readouterr()
        said = Said(code, captured.out, captured.err)
        assert code == want, f"{words}: exit {code}\n{said.out}\n{said.err}"
        return said


@pytest.fixture
def shell(monkeypatch, capsys, tmp_path):
    return Shell(monkeypatch, capsys, tmp_path)


@dataclasses.dataclass
class Plane:
    """A control plane on a port, a tenant ``acme`` in it, and its worker."""

    url: str
    tenant: object
    worker: Worker


@pytest.fixture
def plane(transactional_db, settings, tmp_path, shell):
    from controlplane.asgi import application

    settings.ARTIFACT_ROOT = tmp_path / "artifacts"
    cache.clear()  # earlier tests have signed in from this address too
    tenant = build.make_tenant("acme")
    worker = Worker()
    with served(application) as url:
        shell.set(MILLPOND_SERVER=url)
        worker.start()
        try:
            yield Plane(url, tenant, worker)
        finally:
            worker.end()


@pytest.fixture
def signed_in(plane, shell):
    """The owner of ``acme``, signed in."""
    shell("login", "--email", build.owner_of(plane.tenant).email, "--password-stdin", stdin=build.PASSWORD + "\n")
    return plane


@pytest.fixture
def folder(tmp_path):
    """A small good model folder, with something beside it that is no part of a model."""
    made = tmp_path / "small-model"
    made.mkdir()
    for name, content in catalog.huggingface().items():
        (made / name).write_bytes(content)
    (made / "training_args.bin").write_bytes(b"not for upload")
    (made / ".cache").mkdir()
    (made / ".cache" / "x.json").write_text("{}")
    return made
