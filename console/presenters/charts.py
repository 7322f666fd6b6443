"""Paths of small charts. Coordinates are in a box of 100 by ``height``; the SVG stretches it to its column."""

import datetime
import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_SPARK_POINTS = 48
#: The room of a flag's label, in percent of the axis.
LABEL_WIDTH = 8.0
Point = tuple[datetime.datetime, float | None]


class Series(NamedTuple):
    """One line: ``key`` picks its colour (main, base, soft, failing), ``last`` stands in the legend."""

    key: str
    label: str
    path: str
    last: float | None


class Flag(NamedTuple):
    """Something that happened at ``x`` percent of the time axis; ``glyph`` is a verdict's state, or "" for a line."""

    x: float
    label: str
    glyph: str = ""


class Chart(NamedTuple):
    """A line chart with its scale and the table that says the same."""

    title: str
    unit: str
    series: list[Series]
    area: str
    grid: list[float]  # y of each horizontal line
    scale: list[str]  # labels from top to bottom
    times: list[datetime.datetime]
    rows: list[tuple[datetime.datetime, list[float | None]]]
    limit_y: float | None
    flags: Sequence[Flag] = ()
    limit: float | None = None

    @property
    def is_long(self) -> bool:
        """The axis is longer than a day and a half."""
        return len(self.times) > 1 and self.times[-1] - self.times[0] > datetime.timedelta(hours=36)

    @property
    def time_format(self) -> str:
        """How moments on the axis are written: with the day once it is long."""
        return "MONTH_DAY_FORMAT" if self.is_long else "H:i"

    @property
    def is_labelled(self) -> bool:
        """A flag has a label or a glyph: room for them is needed."""
        return any(flag.label or flag.glyph for flag in self.flags)

    @property
    def is_empty(self) -> bool:
        return not any(series.path for series in self.series)


def line_chart(
    title: str, unit: str, lines: Sequence[tuple[str, str, Sequence[Point]]], *, limit: float | None = None,
    filled: bool = False, height: float = 90.0, flags: Sequence[tuple[datetime.datetime, str, str]] = (),
    top: float = 0.0,
) -> Chart:  # fmt: skip
    """Lay out ``lines`` of (key, label, points) over a common time axis from 0 to ``top``, or to a round one.

    ``flags`` are (moment, label, glyph).
    """
    moments = sorted({at for _, _, points in lines for at, _ in points})
    values = [value for _, _, points in lines for _, value in points if value is not None]
    top = top or _round_top(max([*values, limit or 0.0], default=1.0))
    start, end = (moments[0], moments[-1]) if moments else (None, None)
    series = [
        Series(
            key,
            label,
            _path(points, start, end, top, height, is_step=key == "planned"),
            next((v for _, v in reversed(points) if v is not None), None),
        )
        for key, label, points in lines
    ]
    by_time = [dict(points) for _, _, points in lines]
    return Chart(
        title=title,
        unit=unit,
        series=series,
        area=_closed(series[0].path, height) if filled and series else "",
        grid=[round(height * share, 1) for share in (0.0, 0.25, 0.5, 0.75)],
        scale=[_label(top * share) for share in (1.0, 0.5, 0.0)],
        times=[moments[0], moments[len(moments) // 2], moments[-1]] if len(moments) > 2 else moments,
        rows=[(at, [values_at.get(at) for values_at in by_time]) for at in reversed(moments[-60:])],
        limit_y=None if limit is None or not top else round(height - limit / top * height, 1),
        flags=_flags(flags, start, end),
        limit=limit,
    )


def _flags(
    flags: Sequence[tuple[datetime.datetime, str, str]],
    start: datetime.datetime | None,
    end: datetime.datetime | None,
) -> list[Flag]:
    """Flags that lie on the axis, by their place on it."""
    if start is None or end is None or start == end:
        return []
    span = (end - start).total_seconds()
    placed = [Flag(round((at - start).total_seconds() / span * 100, 2), label, glyph) for at, label, glyph in flags]
    return _apart([flag._replace(x=min(flag.x, 100.0)) for flag in placed if 0 <= flag.x <= 102])


def _apart(flags: list[Flag]) -> list[Flag]:
    """Of lines too close for both labels, only the last keeps its own: what holds from then on."""
    found, next_x = [], math.inf
    for flag in reversed(flags):
        if not flag.glyph:
            flag = flag if next_x - flag.x >= LABEL_WIDTH else flag._replace(label="")
            next_x = flag.x if flag.label else next_x
        found.append(flag)
    return found[::-1]


def spark(values: Sequence[float | None], width: float = 48.0, height: float = 14.0) -> str:
    """The path of a sparkline; "" for fewer than two values."""
    known = [value for value in values if value is not None]
    known = known[:: math.ceil(len(known) / MAX_SPARK_POINTS) or 1] if known else known
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    spread = (high - low) or 1.0
    steps = []
    for index, value in enumerate(known):
        x = index / (len(known) - 1) * width
        y = height - 1 - (value - low) / spread * (height - 2)
        steps.append(f"{'M' if not index else 'L'}{x:.1f} {y:.1f}")
    return "".join(steps)


class Column(NamedTuple):
    """One column of a bar chart in percent of the box: a lower part, and a softer one (``rest``) on it."""

    x: float
    width: float
    y: float
    height: float
    rest_y: float
    rest_height: float
    label: str
    value: float
    rest: float


class Stacked(NamedTuple):
    """A bar chart with the labels of its scale from top to bottom."""

    columns: list[Column]
    scale: list[str]

    @property
    def is_empty(self) -> bool:
        return not any(column.value or column.rest for column in self.columns)


def stacked(values: Sequence[tuple[str, float, float]], height: float = 90.0) -> Stacked:
    """Columns for (label, value, what stands on it), from 0 to a round top."""
    top = _round_top(max((value + rest for _, value, rest in values), default=1.0))
    slot = 100.0 / max(len(values), 1)
    found = []
    for index, (label, value, rest) in enumerate(values):
        low, high = value / top * height, rest / top * height
        found.append(
            Column(
                round(index * slot + slot * 0.15, 2), round(slot * 0.7, 2), round(height - low, 2), round(low, 2),
                round(height - low - high, 2), round(high, 2), label, value, rest,
            )
        )  # fmt: skip
    return Stacked(found, [_label(top * share) for share in (1.0, 0.5, 0.0)])


def _path(
    points: Sequence[Point], start: datetime.datetime | None, end: datetime.datetime | None, top: float, height: float,
    *, is_step: bool = False,
) -> str:  # fmt: skip
    if start is None or end is None or start == end:
        return ""
    span = (end - start).total_seconds()
    steps: list[str] = []
    pen_up, before = True, ""
    for at, value in points:
        if value is None:
            pen_up = True  # a gap in the data is a gap in the line
            continue
        x, y = _tenths((at - start).total_seconds() / span * 100), _tenths(height - value / top * height)
        if not is_step or pen_up:
            steps.append(f"{'M' if pen_up else 'L'}{x} {y}")
        elif y != before:
            steps.append(f"H{x}V{y}")
        elif "V" in steps[-1] or steps[-1].startswith("M"):
            steps.append(f"H{x}")
        else:
            steps[-1] = f"H{x}"  # one long step
        pen_up, before = False, y
    return "".join(steps) if len(steps) > 1 else ""


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _closed(path: str, height: float) -> str:
    if not path or path.count("M") != 1:
        return ""
    first = path[1:].split(" ", 1)[0]
    last = path.rsplit("L", 1)[-1].split(" ", 1)[0]
    return f"{path}L{last} {height:.0f}L{first} {height:.0f}z"


def _round_top(value: float) -> float:
    """The next of 1, 2, 4, 5, 6, 8, 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 6, 8, 10) if step * power >= value * 0.9999)


def _label(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g} k" if value < 1e6 else f"{value / 1e6:g} M"
    return f"{value:g}"
