"""The rules of a test run, proved on a small run: skips under CI, tests that need a GPU, servers without orphans."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).resolve().parents[2]
SKIPS = "import pytest\ndef test_good(): pass\ndef test_left_out(): pytest.skip('no such tool')\n"
NEEDS_GPU = "import pytest\ndef test_good(): pass\n@pytest.mark.gpu\ndef test_fast(): raise SystemError\n"


def run(folder: Path, code: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    inner = folder / "tests" / "inner"
    inner.mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", folder / "tests")
    (inner / "test_inner.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: x\naddopts = --import-mode=importlib\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(
        command, cwd=folder, env=env | {"CI": ci}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_a_skip_is_named_and_fails_the_run_under_ci(tmp_path: Path, ci: str, code: int) -> None:
    done = run(tmp_path, SKIPS, ci=ci)
    assert "test_inner.py::test_left_out: Skipped: no such tool" in done.stdout
    assert done.returncode == code


def test_what_needs_a_gpu_is_deselected_without_one(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        return  # here it would rightly run
    done = run(tmp_path, NEEDS_GPU, ci="true")
    assert "1 passed, 1 deselected" in done.stdout
    assert done.returncode == 0


def test_servers_of_a_run_that_is_killed_end_with_it() -> None:
    code = (
        "from tests import services; import os, time; services.ensure();"
        "print(os.environ['MILLPOND_TEST_SERVICES'], flush=True); time.sleep(600)"
    )
    wanted = ("DATABASE_URL", "VALKEY_URL", "MILLPOND_TEST_SERVICES", "MILLPOND_HOME")
    env = {name: value for name, value in os.environ.items() if name not in wanted}
    env["PYTHONPATH"] = str(TESTS.parent)
    owner = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().decode().strip())
    servers = psutil.Process(owner.pid).children()
    try:
        assert {server.name() for server in servers} == {"postgres", "valkey-server"}
        owner.kill()
        owner.wait()
        deadline = time.monotonic() + 20
        while any(alive(server) for server in servers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        owner.kill()
        shutil.rmtree(folder)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
