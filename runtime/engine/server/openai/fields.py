"""Reading a JSON body field by field: every value has a type and a range, and a wrong one is named."""

import json
import math
from typing import Any, Final

import msgspec

from runtime.engine.errors import InvalidRequest

_MAX_INT: Final = 2**63 - 1
_MAX_SHOWN: Final = 40
_ODD_NUMBERS: Final = (b"NaN", b"Infinity", b"out of range")


class Body:
    """A JSON object from a client. Fields are taken out by name; :meth:`finish` refuses what nobody took."""

    def __init__(self, data: bytes) -> None:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            where = _not_finite(data) if any(word in data or word in str(exc).encode() for word in _ODD_NUMBERS) else ""
            if where:
                raise InvalidRequest(
                    f"{where} has to be a number; JSON knows no NaN and no infinity.", param=where
                ) from exc
            raise InvalidRequest(f"The body is not valid JSON: {exc}.", code="invalid_json") from exc
        if not isinstance(value, dict):
            raise InvalidRequest("The body has to be a JSON object.", code="invalid_json")
        self._values: dict[str, Any] = value

    def take(self, name: str) -> Any:
        """The raw value, ``None`` when absent."""
        return self._values.pop(name, None)

    def number(self, name: str, default: float, low: float, high: float, *, above: bool = False) -> float:
        """A number in [low, high], or in (low, high] with ``above``."""
        value = self.take(name)
        if value is None:
            return default
        if not is_number(value):
            raise InvalidRequest(f"{name} has to be a number.", param=name, code="invalid_type")
        if value < low or value > high or (above and value == low):
            opening = "(" if above else "["
            raise InvalidRequest(f"{name} has to be in {opening}{low:g}, {high:g}], not {shown(value)}.", param=name)
        return float(value)

    def integer(self, name: str, default: int | None, low: int, high: int = _MAX_INT) -> int | None:
        """An integer in [low, high]."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_INT:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{name} has to be an integer.", param=name, code="invalid_type")
        if not low <= value <= high:
            raise InvalidRequest(f"{name} has to be between {low} and {high}, not {shown(value)}.", param=name)
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} has to be true or false.", param=name, code="invalid_type")
        return value

    def strings(self, name: str, *, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of strings, none of them empty."""
        value = self.take(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise InvalidRequest(f"{name} has to be a string or a list of strings.", param=name, code="invalid_type")
        if len(items) > most:
            raise InvalidRequest(f"{name} has {len(items)} entries, the most is {most}.", param=name)
        if any(not 0 < len(item) <= longest for item in items):
            raise InvalidRequest(f"Each entry of {name} needs 1 to {longest} characters.", param=name)
        return tuple(items)

    def refuse_unless(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse a field that is set to anything but ``None`` or one of ``allowed``."""
        value = self.take(name)
        if value is not None and value not in allowed:
            raise InvalidRequest(f"{name}: {why}", param=name, code="unsupported_parameter")

    def ignore(self, *names: str) -> None:
        """Fields that are understood and change nothing here."""
        for name in names:
            self.take(name)

    def finish(self) -> None:
        """Refuse the first field that nobody took."""
        for name in self._values:
            raise InvalidRequest(f"Unknown parameter: {name[:64]!r}.", param=name[:64], code="unknown_parameter")


def is_number(value: Any) -> bool:
    """True for a finite number that is no truth value. Integers of any length count: ranges refuse them."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """``value`` for an error message, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of that size"
    return str(value)[:_MAX_SHOWN]


def _not_finite(data: bytes) -> str:
    """Where in ``data`` a NaN or an infinity stands, as a path; "" when that is not what is wrong with it."""
    try:
        level: list[tuple[str, Any]] = [("", json.loads(data))]
    except (ValueError, RecursionError):
        return ""
    while level:
        where, value = level.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return where or "body"
        if isinstance(value, dict):
            level.extend((f"{where}.{key[:64]}" if where else key[:64], item) for key, item in value.items())
        elif isinstance(value, list):
            level.extend((f"{where}[{number}]", item) for number, item in enumerate(value))
    return ""
