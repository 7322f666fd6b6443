"""What is refused before anything starts, and whether the refusal says what to do."""

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.embedded import checks, places
from runtime.embedded.errors import EmbeddedError
from runtime.embedded.places import Places


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_in_use_names_its_holder_and_the_setting_that_moves_it(tmp_path: Path, taken: int) -> None:
    with pytest.raises(EmbeddedError) as caught:
        checks.check_ports(Places(home=tmp_path, web_port=taken, gateway_port=free_port()))
    assert f"Port {taken} on 127.0.0.1 is in use by process {os.getpid()}" in str(caught.value)
    assert "set MILLPOND_WEB_PORT to a free port" in str(caught.value)


def test_the_gateway_port_is_checked_too(tmp_path: Path, taken: int) -> None:
    with pytest.raises(EmbeddedError, match="set MILLPOND_GATEWAY_PORT"):
        checks.check_ports(Places(home=tmp_path, web_port=free_port(), gateway_port=taken))


def test_free_ports_pass(tmp_path: Path) -> None:
    checks.check_ports(Places(home=tmp_path, web_port=free_port(), gateway_port=free_port()))


def test_one_port_for_two_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="they must differ"):
        checks.check_ports(Places(home=tmp_path, web_port=8200, gateway_port=8200))


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="Set MILLPOND_WEB_HOST"):
        checks.check_ports(Places(home=tmp_path, web_host="192.0.2.1"))


@pytest.mark.parametrize("text", ["0", "65536", "-1", "eighty"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EmbeddedError, match=r"MILLPOND_WEB_PORT is .* from 1 to 65535"):
        places.read({"MILLPOND_WEB_PORT": text})


def test_a_full_disk_is_refused_with_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=100 * checks.MIB))
    with pytest.raises(EmbeddedError, match="has 100 MiB free; a first start needs 1024 MiB"):
        checks.check_disk(Places(home=tmp_path))
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    with pytest.raises(EmbeddedError, match="a start needs 256 MiB"):
        checks.check_disk(Places(home=tmp_path))


def test_a_second_run_on_the_same_folder_is_told_who_is_there(tmp_path: Path) -> None:
    here = Places(home=tmp_path)
    first = checks.Lock(here)
    first.take()
    with pytest.raises(EmbeddedError, match=rf"already runs on .*process {os.getpid()}.*MILLPOND_HOME"):
        checks.Lock(here).take()
    assert checks.holder(here.lock) == os.getpid()
    first.release()
    assert checks.holder(here.lock) is None
    second = checks.Lock(here)
    second.take()
    second.release()


def test_the_state_folder_is_made_private(tmp_path: Path) -> None:
    here = Places(home=tmp_path / "new" / "home")
    checks.prepare_home(here)
    assert stat.S_IMODE(here.home.stat().st_mode) == 0o700
    assert list(here.home.iterdir()) == []


def test_a_state_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match="Set MILLPOND_HOME to a folder that you can write to"):
        checks.prepare_home(Places(home=tmp_path / "file" / "home"))
