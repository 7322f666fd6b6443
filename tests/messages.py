"""Are the compiled texts those of the sources? `python -m tests.messages` compiles every .po anew and compares."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stale(folder: Path) -> list[str]:
    """Return what is wrong with the catalogues under ``folder``, one sentence each."""
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        for source in sorted(folder.rglob("*.po")):
            name = source.relative_to(ROOT)
            fresh = Path(scratch) / "fresh.mo"
            done = subprocess.run(
                ["msgfmt", "--check", "--output-file", str(fresh), str(source)],
                capture_output=True,
                text=True,
                check=False,
            )
            compiled = source.with_suffix(".mo")
            if done.returncode != 0:
                problems.append(f"{name} does not compile: {done.stderr.strip()}")
            elif not compiled.exists() or compiled.read_bytes() != fresh.read_bytes():
                problems.append(f"{name} has changed since it was compiled: run `manage.py compilemessages`")
    return problems


def main() -> int:
    """Print what is wrong; return an exit code."""
    if shutil.which("msgfmt") is None:
        print("Left out: the check of compiled texts needs msgfmt (package gettext).")
        return 1 if os.environ.get("CI") == "true" else 0
    problems = stale(ROOT / "console" / "locale")
    print("\n".join(problems) or "Compiled texts are up to date.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
