"""Browsers: the console's origins may call, no others."""

from collections.abc import Collection
from typing import Final

Headers = list[tuple[bytes, bytes]]

_ALLOW: Final = (
    b"authorization, content-type, x-request-id, x-millpond-criticality, x-millpond-revision, x-stainless-arch, "
    b"x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, "
    b"x-stainless-runtime-version, x-stainless-timeout"
)
_EXPOSE: Final = (
    b"x-request-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, "
    b"x-millpond-budget-limit, x-millpond-budget-remaining, x-millpond-budget-unit, x-millpond-budget-alert"
)
_VARY: Final = (b"vary", b"origin")


def answer_headers(origin: str, allowed: Collection[str]) -> Headers:
    """Headers of an answer to a page of ``origin`` ("" when the caller is no browser page)."""
    if not origin:
        return []
    if origin not in allowed:
        return [_VARY]
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSE),
        _VARY,
    ]


def preflight_headers(origin: str, allowed: Collection[str]) -> Headers:
    """Headers that a preflight answer has beside those of every answer; none for origins that may not call."""
    if origin not in allowed:
        return []
    return [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", _ALLOW),
        (b"access-control-max-age", b"600"),
    ]
