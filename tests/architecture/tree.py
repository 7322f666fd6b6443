"""The source tree as the architecture tests read it: files and their syntax trees, without importing anything."""

import ast
import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLATFORM: Final = ROOT / "platform"
#: Top folders with product code.
CODE: Final = ("platform", "tenants", "console", "runtime")
#: Folders of this repository in which nobody looks for anything.
IGNORED: Final = frozenset({".git", ".venv", ".millpond", "node_modules", "__pycache__", ".ruff_cache", ".mypy_cache"})


def python_files(*tops: str) -> Iterator[Path]:
    """Python files under ``tops`` (default: product code), migrations left out."""
    for top in tops or CODE:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not IGNORED & set(path.relative_to(ROOT).parts):
                yield path


@functools.cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """A path as people write it."""
    return path.relative_to(ROOT).as_posix()


def rooms() -> list[Path]:
    """Folders that are rooms: each has a README at its door."""
    control_plane = [path.parent for path in sorted(PLATFORM.glob("*/__init__.py"))]
    data_plane = [path.parent for path in sorted((ROOT / "runtime").glob("*/__init__.py"))]
    return [*control_plane, ROOT / "tenants", ROOT / "console", *data_plane]


def apps() -> list[str]:
    """First-party Django apps by folder: every package with an ``apps.py``."""
    folders = [path.parent for path in (*PLATFORM.glob("*/apps.py"), *ROOT.glob("*/apps.py"))]
    return sorted(folder.name for folder in folders)


def settings() -> dict[str, Any]:
    """``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
