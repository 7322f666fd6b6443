"""JSON bodies of REST, read strictly: what cannot be worked with is refused here, once, for every route."""

import re
from collections.abc import Mapping
from typing import IO, Any, Final

from rest_framework import exceptions, parsers

# Deeper than any body that has a meaning here, far from where reading or rendering it would overflow the stack.
MAX_DEPTH: Final = 32
_SURROGATE = re.compile("[\ud800-\udfff]")


class StrictJSONParser(parsers.JSONParser):
    """DRF's parser, but for bodies that are nested without end or hold text that is no Unicode."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            body: dict[str, Any] = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        except LookupError:
            raise exceptions.ParseError("The charset of the Content-Type is not known; send UTF-8.") from None
        _check(body, 0)
        return body


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise exceptions.ParseError("The body has half a surrogate pair in a text; that is no Unicode.")
    elif isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            raise _too_deep()
        for name in value:
            _check(name, depth + 1)
        for inner in value.values() if isinstance(value, dict) else ():
            _check(inner, depth + 1)


def _too_deep() -> exceptions.ParseError:
    return exceptions.ParseError(f"The body is nested deeper than {MAX_DEPTH} levels.")
