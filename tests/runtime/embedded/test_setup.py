"""The script that builds the environment, with stand-ins for Python and pip: which it takes, and what it says."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "runtime" / "embedded" / "setup.sh"
TOOLS = ("sh", "df", "awk", "dirname", "rm", "mkdir", "grep", "tail", "tee", "cat", "touch", "chmod", "cp", "env")
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) exit {version_check} ;;
    --version) echo "Python 3.11.7" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *torch-cpu*) echo "{cpu_says}"; exit {cpu_code} ;;
    *"pip install"*) echo "Collecting one"; echo "$*" >>"{calls}" ;;
esac
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH with the tools every system has, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def fake_python(path: Path, calls: Path, *, version_check: int = 0, cpu_says: str = "ok", cpu_code: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE_PYTHON.format(version_check=version_check, cpu_says=cpu_says, cpu_code=cpu_code, calls=calls))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def setup(folder: Path, path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    for name in ("requirements-torch-cpu.lock", "requirements-torch-cuda.lock"):
        (folder / name).write_text("torch==2.13.0 \\\n    --hash=sha256:00\n")
    command = [shutil.which("sh") or "sh", str(SCRIPT), *words]
    return subprocess.run(
        command, cwd=folder, env={"PATH": str(path), **env}, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_python_311_it_says_what_to_do(tmp_path: Path, bare: Path) -> None:
    done = setup(tmp_path, bare, "venv", ".venv")
    assert done.returncode == 1
    assert "Python 3.11 was not found" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_another_version_is_not_taken(tmp_path: Path, bare: Path) -> None:
    fake_python(bare / "python3", tmp_path / "calls", version_check=1)
    assert "Python 3.11 was not found" in setup(tmp_path, bare, "venv", ".venv").stderr


def test_a_python3_that_is_311_is_taken(tmp_path: Path, bare: Path) -> None:
    fake_python(bare / "python3", tmp_path / "calls")
    done = setup(tmp_path, bare, "venv", ".venv")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_a_disk_that_is_too_full_is_refused_before_anything_is_made(tmp_path: Path, bare: Path) -> None:
    fake_python(bare / "python3.11", tmp_path / "calls")
    done = setup(tmp_path, bare, "venv", ".venv", MILLPOND_SETUP_MIB="999999999")
    assert "the environment needs 999999999 MiB" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_where_no_cpu_build_exists_the_common_one_is_taken(tmp_path: Path, bare: Path) -> None:
    says = "ERROR: No matching distribution found for torch==2.13.0"
    fake_python(tmp_path / ".venv" / "bin" / "python", tmp_path / "calls", cpu_says=says, cpu_code=1)
    done = setup(tmp_path, bare, "torch", ".venv", "cpu", MILLPOND_SETUP_MIB="1")
    assert done.returncode == 0, done.stderr
    assert "taking the common build" in done.stdout
    assert "requirements-torch-cuda.lock" in (tmp_path / "calls").read_text()
    assert "--require-hashes" in (tmp_path / "calls").read_text()
    assert (tmp_path / ".venv" / "stamps" / "torch-cpu").exists()


def test_any_other_failure_of_pip_is_shown_and_leaves_no_stamp(tmp_path: Path, bare: Path) -> None:
    says = "ERROR: Could not install packages due to an OSError: No space left on device"
    fake_python(tmp_path / ".venv" / "bin" / "python", tmp_path / "calls", cpu_says=says, cpu_code=1)
    done = setup(tmp_path, bare, "torch", ".venv", "cpu")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "pip could not install requirements-torch-cpu.lock" in done.stderr
    assert not (tmp_path / ".venv" / "stamps" / "torch-cpu").exists()


def test_the_launcher_runs_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "v" / "bin").mkdir(parents=True)
    assert setup(tmp_path, Path(os.environ["PATH"]), "launcher", "v", str(tmp_path)).returncode == 0
    text = (tmp_path / "v" / "bin" / "millpond").read_text()
    assert f'exec "{tmp_path}/v/bin/python" -m runtime.client "$@"' in text
    assert os.access(tmp_path / "v" / "bin" / "millpond", os.X_OK)
