"""Text from outside, made fit to be stored (Postgres takes no NUL, nothing takes half a surrogate pair); and counts."""

import re
from typing import TypeVar

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"

T = TypeVar("T")


def storable(value: T) -> T:
    """``value`` with what cannot be stored replaced in every text of it, names of fields included."""
    if isinstance(value, str):
        return _UNSTORABLE.sub(REPLACEMENT, value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {storable(name): storable(inner) for name, inner in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return type(value)(storable(inner) for inner in value)
    return value


def counted(number: int, noun: str) -> str:
    """``1 replica``, ``2 replicas``, ``0 replicas``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
