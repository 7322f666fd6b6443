"""The systemd units start what the embedded supervisor starts: same programs, same options."""

import configparser
import shlex
from pathlib import Path

import pytest

from runtime.embedded import processes
from runtime.embedded.places import REPOSITORY, Places

UNITS = REPOSITORY / "deploy" / "systemd"
MAKERS = {
    "web": processes.web,
    "worker": processes.worker,
    "beat": processes.beat,
    "gateway": processes.gateway,
    "agent": processes.agent,
}


def test_every_process_that_is_ours_has_a_unit() -> None:
    assert {path.stem.removeprefix("millpond-") for path in UNITS.glob("*.service")} == set(MAKERS)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_unit_runs_the_command_of_the_supervisor(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / f"millpond-{name}.service")
    started = shlex.split(unit["Service"]["ExecStart"])
    here = Places(home=Path("/nowhere"), web_host="${MILLPOND_WEB_HOST}", web_port=8100)
    env = processes.environments(here, database_url="", valkey_url="", base={})
    ours = [word.replace("8100", "${MILLPOND_WEB_PORT}") for word in MAKERS[name](here, env).argv]
    assert started[0] == "/opt/millpond/.venv/bin/python"
    assert started[1:] == list(ours)[1:]
