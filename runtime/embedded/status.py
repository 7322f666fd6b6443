"""The status file: what runs, for `make status`, and by which mark the next start knows what this one left behind."""

from pathlib import Path

import msgspec


class ProgramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the status file. ``last_end`` is an exit code, or minus the number of the signal that ended it."""

    name: str
    state: str
    pid: int | None
    restarts: int
    last_end: int | None
    log: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the status file holds. Every process below the supervisor carries ``mark`` in its environment."""

    pid: int
    mark: str
    programs: list[ProgramStatus]


def write(path: Path, status: Status) -> None:
    """Replace the file as a whole."""
    building = path.with_suffix(".building")
    building.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    building.write_bytes(msgspec.json.encode(status))
    building.replace(path)


def read(path: Path) -> Status | None:
    """Return what the file says, or None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
