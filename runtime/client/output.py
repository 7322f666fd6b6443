"""What people and programs see. Results go to stdout, everything else to stderr; JSON is exactly the API's answer."""

import csv
import datetime
import enum
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runtime.client.errors import ApiError

GOOD: Final = frozenset({"ready", "running", "available", "healthy", "verified", "ok", "active"})
BAD: Final = frozenset({"failed", "rejected", "lost", "unreachable", "revoked", "quarantined", "error", "unavailable"})

_WIDE: Final = 240
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")  # as the API writes every time

Column = tuple[str, Callable[[Mapping[str, Any]], Any]]


class Quantity(int):
    """A number that people read as ``shown`` (``8,240``, ``1.4 GiB``) and programs as it is."""

    shown: str

    def __new__(cls, number: int, shown: str) -> Self:
        """Make one."""
        made = super().__new__(cls, number)
        made.shown = shown
        return made

    def __str__(self) -> str:
        return self.shown


class Format(enum.StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Output:
    """Where a command writes. One per run."""

    def __init__(self, form: Format = Format.TABLE, *, quiet: bool = False) -> None:
        self.form = form
        self.quiet = quiet
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def interactive(self) -> bool:
        """True when a person watches stderr."""
        return self.err.is_terminal and not self.quiet

    def note(self, text: str) -> None:
        """A line about what is going on."""
        if not self.quiet:
            self.err.print(text, soft_wrap=True, markup=False)

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, empty: str) -> None:
        """A list. ``empty`` says what an empty one means and what to do."""
        if self.form is Format.JSON:
            self.json(list(rows))
        elif self.form is Format.CSV:
            writer = csv.writer(sys.stdout)
            writer.writerow([name for name, _ in columns])
            writer.writerows([exact(read(row)) for _, read in columns] for row in rows)
        elif not rows:
            self.note(empty)
        else:
            self.out.print(table(rows, columns))

    def one(self, value: Mapping[str, Any], lines: Sequence[tuple[str, Any]]) -> None:
        """One thing: ``lines`` of name and value for people, ``value`` for programs."""
        if self.form is not Format.TABLE:
            self.json(value)
            return
        width = max(len(name) for name, _ in lines)
        for name, text in lines:
            self.out.print(f"[dim]{escape(name):<{width}}[/dim]  {styled(text)}", soft_wrap=True)

    def json(self, value: Any) -> None:
        """JSON on stdout."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def text(self, value: str) -> None:
        """One plain line on stdout."""
        sys.stdout.write(value + "\n")

    def failure(self, exc: Exception) -> None:
        """Say what went wrong, with code and request id where the platform gave them."""
        self.err.print(f"[bold red]Error:[/] {escape(str(exc))}", soft_wrap=True)
        if isinstance(exc, ApiError):
            for wrong in exc.data.get("errors") or []:
                if isinstance(wrong, dict) and len(exc.data["errors"]) > 1:
                    self.err.print(f"  {escape(str(wrong.get('field')))}: {escape(str(wrong.get('message')))}")
            facts = f"code {exc.code}" + (f" · request {exc.request_id}" if exc.request_id else "")
            self.err.print(f"  [dim]{escape(facts)}[/]", soft_wrap=True)


def _console(stream: TextIO) -> Console:
    """A console as wide as the terminal; a pipe or a file is wide enough for every table."""
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _WIDE)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> Table:
    """``rows`` as a table."""
    made = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for name, _ in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        # A column without a name is a remark on the one before it: where there is none, nothing stands.
        made.add_row(*(styled(read(row)) if name else escape(plain(read(row))) for name, read in columns))
    return made


def field(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """A column that reads ``name``."""
    return lambda row: row.get(name)


def plain(value: Any) -> str:
    """A cell as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    return str(value)


def exact(value: Any) -> str:
    """A cell as programs read it: numbers bare, bytes as bytes."""
    return str(int(value)) if isinstance(value, Quantity) else plain(value)


def moment(text: Any) -> str:
    """A time of the API's for people, without fractions; anything else as text."""
    text = plain(text)
    return f"{text[:10]} {text[11:19]}Z" if _TIME.fullmatch(text) else text


def styled(value: Any) -> str:
    """A cell as markup: words of state are coloured, times have no fractions, everything else is text."""
    text = moment(value)
    if text in GOOD:
        return f"[green]{text}[/]"
    if text in BAD:
        return f"[red]{text}[/]"
    return escape(text) if text else "[dim]–[/]"


def size(number: Any) -> Quantity | str:
    """Bytes: with a unit for people, bare for programs; "" where nothing is known."""
    if not isinstance(number, int | float) or number < 0:
        return ""
    for unit, factor in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= factor:
            return Quantity(int(number), f"{number / factor:.1f} {unit}")
    return Quantity(int(number), f"{int(number)} B")


def count(number: Any) -> Quantity | str:
    """A whole number: with separators for people, bare for programs."""
    return Quantity(number, f"{number:,}") if isinstance(number, int) else ""


def age(then_text: Any, now: datetime.datetime) -> str:
    """How long ago an ISO time was: ``5 min``, ``3 d``."""
    if not isinstance(then_text, str):
        return ""
    try:
        then = datetime.datetime.fromisoformat(then_text.replace("Z", "+00:00"))
    except ValueError:
        return then_text
    seconds = max(0, int((now - then).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
