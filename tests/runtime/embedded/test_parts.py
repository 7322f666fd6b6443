"""The small parts: restart policy, log files, environments, credentials."""

import stat
from pathlib import Path

import msgspec
import pytest

from runtime.embedded import bootstrap, processes
from runtime.embedded.errors import StartError
from runtime.embedded.logfiles import RotatingLog
from runtime.embedded.places import Places
from runtime.embedded.restart import RestartHistory, RestartPolicy

POLICY = RestartPolicy(first_s=1.0, factor=2.0, longest_s=5.0, budget=4, window_s=100.0, slow_s=60.0)


def test_restarts_back_off_to_a_bound_and_then_fail() -> None:
    history = RestartHistory(POLICY)
    decisions = [history.after_end(float(second)) for second in range(6)]
    assert [decision.delay_s for decision in decisions] == [1.0, 2.0, 4.0, 5.0, 60.0, 60.0]
    assert [decision.exhausted for decision in decisions] == [False, False, False, False, True, True]


def test_a_process_that_ran_long_enough_starts_with_a_clean_record() -> None:
    history = RestartHistory(POLICY)
    for second in range(6):
        history.after_end(float(second))
    later = history.after_end(200.0)
    assert (later.delay_s, later.exhausted) == (1.0, False)


def test_the_record_of_ends_is_bounded() -> None:
    history = RestartHistory(POLICY)
    for tick in range(10_000):
        history.after_end(tick / 1000)
    assert len(history.ends) == POLICY.budget + 1


def test_a_log_is_rotated_by_size_and_old_ones_are_dropped(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "web.log", limit=100, keep=2)
    for number in range(12):
        log.write(f"{number:02d} ".encode() + b"x" * 36 + b"\n")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "web.log").read_text().startswith("10 ")
    assert stat.S_IMODE((tmp_path / "web.log").stat().st_mode) == 0o600


def test_the_tail_of_a_log_is_bounded_and_begins_at_the_mark(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "web.log")
    log.write(b"before\n")
    log.mark()
    log.write(b"one\ntwo\nthree\n")
    assert log.tail(lines=2) == "two\nthree"
    assert "before" not in log.tail()
    for _ in range(100):
        log.write(b"y" * 4096)
    assert len(log.tail()) <= 64 * 1024
    log.close()


def test_only_the_control_plane_is_told_how_to_reach_the_database(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "PGPASSWORD": "other", "DATABASE_URL": "postgresql://old", "MILLPOND_KEY_PEPPER": "aa"}
    env = processes.environments(
        Places(home=tmp_path), database_url="postgresql://new", valkey_url="unix:///v", base=base
    )
    assert env.control["DATABASE_URL"] == "postgresql://new"
    assert env.control["MILLPOND_KEY_PEPPER"] == "aa"
    for other in (env.data, env.tool):
        assert not {"DATABASE_URL", "VALKEY_URL", "MILLPOND_KEY_PEPPER", "PGPASSWORD"} & set(other)
    # The gateway counts limits in Valkey; engines, which inherit the agent's environment, do not learn of it.
    assert env.gateway["MILLPOND_GATEWAY_LIMITS_URL"] == env.control["VALKEY_URL"]
    assert "MILLPOND_GATEWAY_LIMITS_URL" not in {**env.data, **env.control, **env.tool}
    assert env.data["MILLPOND_CONTROL_URL"] == "http://127.0.0.1:8100"
    assert env.data["OMP_WAIT_POLICY"] == "passive"


def test_secrets_of_a_start_that_was_cut_off_are_not_lost(tmp_path: Path) -> None:
    here = Places(home=tmp_path)
    made = here.run / "bootstrap.json"
    made.parent.mkdir()
    facts = bootstrap.Facts(admin_email="a@b.c", tenant="demo", admin_password="pw", api_key="mp_x", manage_key="mp_y")
    made.write_bytes(msgspec.json.encode(facts))
    credentials, new = bootstrap._keep(here, made)
    assert new
    assert (credentials.admin_password, credentials.api_key) == ("pw", "mp_x")
    assert not made.exists()
    made.write_bytes(msgspec.json.encode(bootstrap.Facts(admin_email="a@b.c", tenant="demo")))
    credentials, new = bootstrap._keep(here, made)
    assert not new
    assert bootstrap.read_credentials(here).admin_password == "pw"
    assert stat.S_IMODE(here.credentials.stat().st_mode) == 0o600


def test_a_damaged_credentials_file_is_not_overwritten(tmp_path: Path) -> None:
    here = Places(home=tmp_path)
    here.credentials.write_text("{")
    with pytest.raises(StartError, match="Move it away"):
        bootstrap.read_credentials(here)


def test_static_files_are_gathered_again_only_after_a_change(tmp_path: Path) -> None:
    static = tmp_path / "console" / "static"
    static.mkdir(parents=True)
    (tmp_path / "requirements.lock").write_text("")
    (static / "a.css").write_text("a{}")
    before = bootstrap.static_digest(tmp_path)
    assert bootstrap.static_digest(tmp_path) == before
    (static / "b.css").write_text("b{}")
    assert bootstrap.static_digest(tmp_path) != before
