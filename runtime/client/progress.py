"""Progress of long steps: a live bar for people, a line now and then where nobody watches a terminal."""

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from runtime.client.output import Output, size

_LINES: Final = 4
_WORTH_LINES: Final = 16 * 1024**2


class Meter(Protocol):
    """What a step reports to. ``done`` is in bytes, out of the total that the meter was made with."""

    def at(self, done: int) -> None:
        """``done`` bytes are done."""


@contextlib.contextmanager
def meter(output: Output, what: str, total: int) -> Iterator[Meter]:
    """A meter for one step of ``total`` bytes."""
    if not output.interactive:
        yield _Lines(output, what, total) if total >= _WORTH_LINES else _Silent()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=output.err) as bars:
        yield _Bar(bars, what, total)


class _Bar:
    def __init__(self, bars: Progress, what: str, total: int) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=total)

    def at(self, done: int) -> None:
        self._bars.update(self._task, completed=done)


class _Silent:
    def at(self, done: int) -> None:
        """Too little to talk about."""


class _Lines:
    """At most one line per quarter, and one at the end."""

    def __init__(self, output: Output, what: str, total: int) -> None:
        self._output = output
        self._what = what
        self._total = total
        self._told = 0

    def at(self, done: int) -> None:
        quarter = _LINES if done >= self._total else _LINES * done // self._total
        if quarter > self._told:
            self._told = quarter
            self._output.note(f"{self._what}: {size(done)} of {size(self._total)}")
