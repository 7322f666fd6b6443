"""The log file of one engine: bounded by copying away and cutting, read from its end."""

import shutil
from pathlib import Path
from typing import Final

from runtime.base import logs

MAX_BYTES: Final = 8 * 1024 * 1024
TAIL_LINES: Final = 40
TAIL_BYTES: Final = 16 * 1024
LINE_CHARS: Final = 400


def bound(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move the content to ``<name>.1`` when the file has outgrown ``max_bytes``; True when it did.

    The engine holds the file open for appending, so it is copied and cut, not renamed; lines written in between are
    lost, which is the price of a log that outlives the agent.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(path, path.with_name(path.name + ".1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except FileNotFoundError:
        return False
    return True


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines, each bounded, secrets masked; empty when there is no log yet."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return []
    text = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    if size > TAIL_BYTES:
        text = text[1:]  # most likely cut in the middle
    return [logs.mask(line)[:LINE_CHARS] for line in text[-lines:]]


def last_line(path: Path) -> str:
    """The last line that says something, or ""."""
    found = tail(path, 1)
    return found[0].strip() if found else ""
