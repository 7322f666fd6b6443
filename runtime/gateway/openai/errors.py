"""Errors as the official clients expect them."""

import msgspec

from runtime.gateway.refusals import Refusal


class Error(msgspec.Struct, frozen=True):
    """The inner object. ``param`` names the offending field, ``code`` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """What every error body holds."""

    error: Error


def kind_of(status: int) -> str:
    """OpenAI's ``type`` for an HTTP status."""
    if status >= 500:
        return "server_error"
    return {403: "permission_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")


def body_of(refusal: Refusal) -> bytes:
    """JSON body of a refusal, without line breaks."""
    return msgspec.json.encode(
        ErrorEnvelope(Error(refusal.message, kind_of(refusal.status), refusal.param, refusal.code))
    )


def is_error(body: bytes) -> bool:
    """True when ``body`` already has the shape."""
    try:
        msgspec.json.decode(body, type=ErrorEnvelope)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
