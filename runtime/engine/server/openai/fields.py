"""Reading a JSON body field by field: every value has a type and a range, and a wrong one is named."""

import math
from typing import Any, Final

import msgspec

from runtime.engine.errors import InvalidRequest

_MAX_INT: Final = 2**63 - 1


class Body:
    """A JSON object from a client. Fields are taken out by name; :meth:`finish` refuses what nobody took."""

    def __init__(self, data: bytes) -> None:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
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
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidRequest(f"{name} has to be a number.", param=name, code="invalid_type")
        if value < low or value > high or (above and value == low):
            opening = "(" if above else "["
            raise InvalidRequest(f"{name} has to be in {opening}{low:g}, {high:g}], not {value}.", param=name)
        return float(value)

    def integer(self, name: str, default: int | None, low: int, high: int = _MAX_INT) -> int | None:
        """An integer in [low, high]."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidRequest(f"{name} has to be an integer.", param=name, code="invalid_type")
        if not low <= value <= high:
            raise InvalidRequest(f"{name} has to be between {low} and {high}, not {value}.", param=name)
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
            shown = name[:64]
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
