"""What a request says about itself beside its prompt: who keeps its variant, and until when an answer is of use."""

import re
from typing import Final

import msgspec

from runtime.base.asgi import Request
from runtime.gateway.booking import Job
from runtime.gateway.refusals import Reason, Refusal
from runtime.wire.inference import HEADER_DEADLINE_MS

HEADER_STICKY: Final = "x-millpond-sticky"
MAX_STICKY_CHARS: Final = 256
_MILLISECONDS: Final = re.compile(r"[0-9]{1,9}")


class _User(msgspec.Struct):
    user: str | None = None


_decoder = msgspec.json.Decoder(_User)


def sticky_of(mode: str, job: Job, request: Request) -> bytes:
    """The text that keeps a caller on one variant, apart for each tenant; empty when it is to be drawn anew.

    Modes are the wire's: ``key``, ``user`` (the body's field) and ``header``; a request without the field or header
    belongs to nobody in particular and is drawn anew.
    """
    if not mode:
        return b""
    name = ""
    if mode == "key":
        name = job.caller.key.id
    elif mode == "header":
        name = request.header(HEADER_STICKY)
    elif mode == "user":
        try:
            name = _decoder.decode(job.body).user or ""
        except msgspec.MsgspecError:
            name = ""  # not text; the engine says so
    if not name:
        return b""
    return f"{job.endpoint.id}\0{job.caller.tenant.id}\0{name[:MAX_STICKY_CHARS]}".encode("utf-8", "surrogatepass")


def deadline_of(request: Request, most: float) -> float:
    """Seconds from its arrival on that the client will wait, by its ``x-millpond-deadline-ms``; at most ``most``.

    Raises:
        Refusal: 400 for a header that is not a number of milliseconds.
    """
    text = request.header(HEADER_DEADLINE_MS)
    if not text:
        return most
    if not _MILLISECONDS.fullmatch(text) or int(text) == 0:
        raise Refusal(
            Reason.BAD_REQUEST,
            400,
            f"{HEADER_DEADLINE_MS} must be a whole number of milliseconds, 1 to 999999999.",
            code="invalid_value",
            param=HEADER_DEADLINE_MS,
        )
    return min(most, int(text) / 1000)
