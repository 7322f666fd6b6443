"""Names of a request: what the client calls it, what the books call it, what the engine is told."""

import re
from typing import Final, NamedTuple

import uuid_utils

from runtime.base.asgi import Request

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE: Final = re.compile(r"[\x21-\x7e ]{1,512}")


class Identity(NamedTuple):
    """``request_id`` goes back to the client, ``record_id`` into the books, ``upstream_id`` to the engine.

    The engine's is unique even when clients repeat theirs: it is what a cancel is addressed to.
    """

    request_id: str
    record_id: str
    upstream_id: str


def identify(given: str) -> Identity:
    """Name a request whose ``x-request-id`` header was ``given``; one that is not sane is replaced."""
    record_id = new_record_id()
    request_id = given if _SANE_ID.fullmatch(given) else _made(record_id)
    return Identity(request_id, record_id, upstream_id_of(record_id, request_id))


def new_record_id() -> str:
    """A new name for a line of the books; later ones sort later."""
    return uuid_utils.uuid7().hex


def upstream_id_of(record_id: str, request_id: str) -> str:
    """What engines call the request of a record."""
    return request_id if request_id == _made(record_id) else f"{request_id[:64]}-{record_id[-16:]}"


def _made(record_id: str) -> str:
    return f"req_{record_id}"


def trace_of(request: Request) -> dict[str, str]:
    """W3C trace context to pass on; empty when there is none or it is malformed."""
    parent, state = request.header("traceparent"), request.header("tracestate")
    if not _TRACE_PARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent, "tracestate": state} if _TRACE_STATE.fullmatch(state) else {"traceparent": parent}
