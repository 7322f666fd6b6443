"""The embedded database and broker with their real binaries: private, safe to start again, never an orphan."""

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
import pytest
import redis

from runtime.embedded import postgres as postgres_module
from runtime.embedded import sockets, spawn
from runtime.embedded.errors import EmbeddedError
from runtime.embedded.postgres import Postgres
from runtime.embedded.valkey import Valkey

FAST = {"fsync": "off", "shared_buffers": "16MB"}


class Running:
    """Starts servers as the supervisor does and ends them with the test."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self, server: Postgres | Valkey, stop: signal.Signals) -> subprocess.Popen[bytes]:
        user = server.identity.user if isinstance(server, Postgres) else None
        options = spawn.options(death_signal=stop, lifeline_fd=None, env=dict(os.environ), user=user)
        log = self._home / "server.log"
        with log.open("ab") as output:
            process = subprocess.Popen(server.command(), stdout=output, stderr=output, cwd=self._home, **options)
        self._servers.append(process)
        wait_for(lambda: server.ready_now() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def close(self) -> None:
        for process in self._servers:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(timeout=30)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.close()


def test_a_database_keeps_its_rows_over_a_restart(running: Running, tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    assert server.create() is True
    process = running.start(server, signal.SIGINT)
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE pond AS SELECT 'deep' AS level")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    again = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    assert again.create() is False
    running.start(again, signal.SIGINT)
    with psycopg.connect(again.url()) as connection:
        assert connection.execute("SELECT level FROM pond").fetchone() == ("deep",)


def test_a_database_is_private(running: Running, tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    server.create()
    running.start(server, signal.SIGINT)
    assert mode(server.sockets) == 0o700
    assert mode(tmp_path / "pg" / "password") == 0o600
    assert mode(server.data) == 0o700
    with psycopg.connect(server.url()) as connection:
        listening = connection.execute("SHOW listen_addresses").fetchone()
        methods = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
    assert listening == ("",)
    assert methods == [("scram-sha-256",)]
    wrong = server.url().replace(unquote(urlsplit(server.url()).password or "?"), "guess")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_the_password_is_in_no_command_line(tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    server.create()
    password = (tmp_path / "pg" / "password").read_text().strip()
    assert len(password) >= 40
    assert password not in " ".join(server.command())


def test_a_folder_of_another_major_version_is_refused_untouched(tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"made by Postgres 9.*DATABASE_URL"):
        server.create()
    assert [path.name for path in server.data.iterdir()] == ["PG_VERSION"]


def test_a_creation_that_was_cut_off_is_begun_anew(running: Running, tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    half = tmp_path / "pg" / "data.building"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    assert server.create() is True
    running.start(server, signal.SIGINT)


def test_the_pid_file_of_another_program_does_not_stop_a_start(running: Running, tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    server.create()
    (server.data / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data}\n1\n5432\n\n\n")
    server.create()
    running.start(server, signal.SIGINT)


def test_root_without_any_way_to_be_another_user_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = postgres_module.find_binaries()
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(postgres_module, "_runs", lambda *_args, **_more: False)
    with pytest.raises(EmbeddedError, match=r"refuses to run as root.*DATABASE_URL"):
        postgres_module.find_identity(binaries, tmp_path)


def test_a_machine_without_postgres_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_module, "_wheel_folders", list)
    monkeypatch.setattr(postgres_module, "_system_folders", list)
    with pytest.raises(EmbeddedError, match=r"No Postgres was found.*DATABASE_URL"):
        postgres_module.find_binaries()


def test_the_url_names_a_socket_and_no_port(tmp_path: Path) -> None:
    server = Postgres(home=tmp_path / "pg", sockets_in=tmp_path / "run", settings=FAST)
    server.create()
    parts = urlsplit(server.url())
    assert parts.hostname is None
    assert parse_qs(parts.query)["host"] == [str(server.sockets)]


def test_the_broker_keeps_what_it_was_given(running: Running, tmp_path: Path) -> None:
    server = Valkey(home=tmp_path / "valkey", sockets_in=tmp_path / "run")
    server.create()
    process = running.start(server, signal.SIGTERM)
    client = redis.Redis.from_url(server.url())
    client.rpush("queue", "task")
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    process.terminate()
    process.wait(timeout=30)
    running.start(server, signal.SIGTERM)
    assert redis.Redis.from_url(server.url()).lrange("queue", 0, -1) == [b"task"]


def test_the_broker_is_private(running: Running, tmp_path: Path) -> None:
    server = Valkey(home=tmp_path / "valkey", sockets_in=tmp_path / "run")
    server.create()
    running.start(server, signal.SIGTERM)
    assert mode(server.socket) == 0o700
    assert redis.Redis.from_url(server.url()).config_get("port") == {"port": "0"}


def test_a_path_too_long_for_a_socket_gets_a_short_private_stand_in(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90) / "run"
    folder = sockets.private_folder(long)
    try:
        assert len(os.fsencode(folder / ".s.PGSQL.5432")) < 104
        assert mode(folder) == 0o700
        assert sockets.private_folder(long) == folder
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "valkey.sock"))
        (folder / "valkey.sock").unlink()
    finally:
        sockets.forget(long)
    assert not folder.exists()


def test_a_stand_in_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("y" * 90) / "run"
    folder = sockets.private_folder(long)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    try:
        with pytest.raises(EmbeddedError, match="is not ours"):
            sockets.private_folder(long)
    finally:
        folder.unlink()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)
