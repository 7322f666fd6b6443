"""Numbers for people: IEC for memory, SI for counts, a no-break space before the unit, zero shown as 0."""

from typing import NamedTuple

NBSP = "\u00a0"
ABSENT = "–"
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SI = ("", "k", "M", "B", "T")


class Amount(NamedTuple):
    """A number and its unit, apart, because the unit is set in a quieter ink."""

    number: str
    unit: str

    def __str__(self) -> str:
        return f"{self.number}{NBSP}{self.unit}" if self.unit else self.number


def memory(count: float | None) -> Amount:
    """Bytes as B, KiB, MiB, GiB, ... with three significant digits."""
    if count is None:
        return Amount(ABSENT, "")
    value, step = float(count), 0
    while abs(value) >= 1024 and step < len(_IEC) - 1:
        value, step = value / 1024, step + 1
    return Amount(_digits(value) if step else str(int(value)), _IEC[step])


def gib(count: float | None) -> str:
    """Bytes as GiB without the unit: ``35.4``."""
    return ABSENT if count is None else _digits(count / 1024**3)


def count(value: float | None) -> Amount:
    """Requests, tokens: plain with separators below 100,000, then k, M, B with three digits."""
    if value is None:
        return Amount(ABSENT, "")
    if abs(value) < 100_000:
        return Amount(f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else _digits(value), "")
    step = 0
    scaled = float(value)
    while abs(scaled) >= 1000 and step < len(_SI) - 1:
        scaled, step = scaled / 1000, step + 1
    return Amount(_digits(scaled), _SI[step])


def percent(fraction: float | None, digits: int = 0) -> Amount:
    """A fraction as percent; ``Amount("–", "")`` for ``None``."""
    return Amount(ABSENT, "") if fraction is None else Amount(f"{fraction * 100:.{digits}f}", "%")


def milliseconds(value: float | None, longest: float = 0.0) -> Amount:
    """Milliseconds, as seconds once it (or the ``longest`` that it stands beside) has ten thousand."""
    if value is None:
        return Amount(ABSENT, "")
    return Amount(_digits(value / 1000), "s") if max(value, longest) >= 10_000 else Amount(_digits(value), "ms")


def money(millionths: float | None) -> str:
    """An amount of the currency: two places, or as many as a small one needs (at most six)."""
    if millionths is None:
        return ABSENT
    value = float(millionths) / 1_000_000
    if value and abs(value) < 0.01:
        return f"{value:.6f}".rstrip("0") if abs(value) >= 0.000001 else f"{value:.1e}"
    return f"{value:,.2f}"


def _digits(value: float) -> str:
    """Three significant digits at most, never in exponent form."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    text = f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
