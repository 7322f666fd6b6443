"""Text from outside, made fit to be stored (Postgres takes no NUL, nothing takes half a surrogate pair); and counts."""

import re
from typing import Final, TypeVar

from kernel import errors

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"
#: More of a search is cut off.
SEARCH_LENGTH: Final = 120

# Control characters, breaks of lines, spaces without width, and what turns the direction of a line around.
_UNREADABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

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


def readable(name: str, *, field: str = "name") -> str:
    """``name`` trimmed, as others will read it in lists, logs and the audit.

    Raises:
        errors.InvalidInput: it holds what is not seen, or makes a line read as another one.
    """
    if _UNREADABLE.search(name):
        raise errors.InvalidInput(
            "A name holds no line breaks, control or invisible characters; type it anew.", data={"field": field}
        )
    return name.strip()


def sought(text: str) -> str:
    """What somebody looks for, as it can be asked of the database: trimmed, bounded, storable."""
    return storable(text.strip()[:SEARCH_LENGTH])


def counted(number: int, noun: str) -> str:
    """``1 replica``, ``2 replicas``, ``0 replicas``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
