"""What the person at the terminal sees: one line per step with its time, a sign of life meanwhile, the result."""

import contextlib
import os
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.status import Status


class Step:
    """A step that goes on; its text can change and it can end with a remark."""

    def __init__(self, title: str, status: Status | None) -> None:
        self.title = title
        self.remark = ""
        self._status = status

    def now(self, detail: str) -> None:
        """Show what happens at this moment."""
        if self._status is not None:
            self._status.update(f"{escape(self.title)} [dim]{escape(detail)}[/dim]")


class _Patient(Console):
    """A console whose reader may go away (`make run | head`): rich would end the process, and Millpond with it."""

    def on_broken_pipe(self) -> None:
        """Write nothing more, and leave nothing in a buffer that would fail at exit."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


class Screen:
    """Writes to a terminal, or plain lines where there is none. A reader that went away is no error."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _Patient(highlight=False)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show ``title`` while the block runs, then its time; when it raises, a cross."""
        began = time.monotonic()
        live = self._console.is_terminal
        with self._console.status(escape(title)) if live else contextlib.nullcontext() as status:
            step = Step(title, status)
            try:
                yield step
            except BaseException:
                self._line(f"[red]✗[/red] {escape(title)}")
                raise
        remark = f" [dim]{escape(step.remark)}[/dim]" if step.remark else ""
        self._line(f"[green]✓[/green] {escape(title)} [dim]{time.monotonic() - began:.1f} s[/dim]{remark}")

    def say(self, text: str, *, style: str = "") -> None:
        """Write a line as it is."""
        self._line(f"[{style}]{escape(text)}[/{style}]" if style else escape(text))

    def panel(self, title: str, lines: list[str]) -> None:
        """Write lines under a title. They are not wrapped: commands in them must survive copying."""
        if self._console.is_terminal:
            self._write(Panel.fit(title, border_style="green"))
        else:
            self._line(title)
        for line in lines:
            with contextlib.suppress(OSError):
                self._console.print(line, markup=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """Write what went wrong."""
        self._line(f"[red]Error:[/red] {escape(text)}")

    def _line(self, markup: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(markup, soft_wrap=True)

    def _write(self, renderable: Panel) -> None:
        with contextlib.suppress(OSError):
            self._console.print(renderable)
