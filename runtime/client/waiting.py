"""Waiting for a state, by looking again and again: what is shown is always what the platform says now."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live

from runtime.client.errors import NotReached
from runtime.client.session import Session

LOOK_EVERY_SECONDS: Final = 1.0

State = Mapping[str, Any]


def until(
    session: Session,
    look: Callable[[], State],
    *,
    done: Callable[[State], bool],
    line: Callable[[State], str],
    show: Callable[[State], RenderableType] | None = None,
    timeout_seconds: float,
    every_seconds: float = LOOK_EVERY_SECONDS,
) -> State:
    """Look until ``done``; people see ``show`` live, otherwise each new ``line`` is written once.

    ``done`` may raise to end the waiting with an error.

    Raises:
        NotReached: ``timeout_seconds`` are over; the text ends with the last line.
    """
    deadline = session.monotonic() + timeout_seconds
    with _Screen(session, line, show) as screen:
        while True:
            state = look()
            screen.update(state)
            if done(state):
                return state
            if session.monotonic() >= deadline:
                raise NotReached(f"Not there after {timeout_seconds:g} seconds (it goes on without us): {line(state)}")
            session.sleep(every_seconds)


class _Screen:
    """A live picture for a person, lines for a log."""

    def __init__(
        self, session: Session, line: Callable[[State], str], show: Callable[[State], RenderableType] | None
    ) -> None:
        self._output = session.output
        self._line = line
        self._show = show
        self._last = ""
        self._live = Live(Group(), console=self._output.err, refresh_per_second=4) if self._output.interactive else None

    def __enter__(self) -> "_Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, state: State) -> None:
        """Show what is now."""
        line = self._line(state)
        if self._live is not None:
            self._live.update(self._show(state) if self._show is not None else line)
        elif line != self._last:
            self._output.note(line)
        self._last = line


def watch(session: Session, look: Callable[[], State], show: Callable[[State], RenderableType]) -> None:
    """Show what ``look`` says until the person has seen enough (Ctrl-C); a pipe gets each new picture once."""
    out = session.output.out
    with contextlib.suppress(KeyboardInterrupt), _Pictures(out) as pictures:
        while True:
            pictures.show(show(look()))
            session.sleep(2 * LOOK_EVERY_SECONDS)


class _Pictures:
    """One picture that changes in place on a terminal, one after the other elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Group(), console=console, refresh_per_second=4) if console.is_terminal else None
        self._last = ""

    def __enter__(self) -> "_Pictures":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, picture: RenderableType) -> None:
        """Show ``picture`` instead of the last one, or after it."""
        if self._live is not None:
            self._live.update(picture)
            return
        with self._console.capture() as taken:
            self._console.print(picture)
        if taken.get() != self._last:
            self._last = taken.get()
            self._console.file.write(self._last)
            self._console.file.flush()
