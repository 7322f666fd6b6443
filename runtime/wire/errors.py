"""Wire error codes, and what a refused call looks like between our own processes."""

import enum

import msgspec


class ErrorCode(enum.StrEnum):
    """Why a call between processes was refused."""

    MALFORMED = "malformed"
    UNAUTHENTICATED = "unauthenticated"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    TOKEN_USED = "token_used"  # noqa: S105  (a code, not a token)
    REMOVED = "removed"
    STALE_GENERATION = "stale_generation"
    NOT_FOUND = "not_found"
    UNAVAILABLE = "unavailable"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a 4xx/5xx answer on the internal APIs."""

    code: ErrorCode
    message: str


class MalformedMessage(ValueError):
    """Bytes that do not fit the expected message."""
