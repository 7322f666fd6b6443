"""The two calls that every node makes again and again, as bare ASGI: reports, and reading assignments.

A thousand agents report fifty times a second. Through Django's whole stack each report would cost a thread, a
connection to the database, and fourteen middlewares that are there for browsers; here heartbeats that wait are answered
together by one thread, and for the rest a few threads keep a connection each and call the same views. Everything else
that machines ask for is rare and goes through Django.
"""

import asyncio
import io
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import HttpResponseBase

from dispatch.api import heartbeats, internal, wire
from fleet import pacing

#: Threads, and connections to the database, per web process. More than one, since a report waits for the database and
#: for the locks of its node's rows; few, since they share one interpreter with the people's requests.
THREADS: Final = 3
#: Calls at a time, waiting for a thread.
MAX_CALLS: Final = 2048
#: A call that has waited longer for a thread is refused unseen: agents give a call up after fifteen seconds, and work
#: for those who have given up would keep all others waiting, too. Refused ones pause and report again.
PATIENCE_SECONDS: Final = 4.0
REPORT: Final = "/internal/v1/nodes/report"
ROUTES: Final[Mapping[str, Callable[..., HttpResponseBase]]] = {
    REPORT: internal.node_report,
    "/internal/v1/nodes/assignments": internal.node_assignments,
}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

_threads: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="machines")


class Load:
    """How busy the threads are. Written by the loop (``calls``) and by the threads; a lost update does no harm."""

    def __init__(self) -> None:
        self.calls = 0
        self._seconds = 0.0

    def served(self, seconds: float) -> None:
        """A call took ``seconds`` of a thread."""
        self._seconds += (seconds - self._seconds) / 16

    def full(self) -> bool:
        """True when one more would wait longer than it may: it is refused at once, which costs next to nothing."""
        ahead = self.calls - THREADS
        return self.calls >= MAX_CALLS or (ahead > 0 and ahead * self._seconds / THREADS > PATIENCE_SECONDS)

    def retry_after(self) -> int:
        """Seconds after which a refused node should report: about its interval later, spread.

        All that were refused would otherwise return in the same moment, and again. A lease lasts five intervals.
        """
        return math.ceil(pacing.last().interval_seconds * (0.5 + random.random()))  # noqa: S311  (spread, not a secret)


_load: Final = Load()
_heartbeats: Final = heartbeats.Together()


def matches(scope: Scope) -> bool:
    """True for the routes that this application answers."""
    return scope["type"] == "http" and scope["path"] in ROUTES


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one call; the body is bounded by who calls this."""
    body = await _body(receive)
    if body is None:
        return
    if scope["path"] == REPORT and scope["method"] == "POST":
        reply = await _heartbeats.answer(heartbeats.Call(_authorization(scope), body))
        if reply is not None:
            await _send(send, wire.answer(reply))
            return
    if _load.full():
        await _send(send, _busy())
        return
    _load.calls += 1
    try:
        answer = await asyncio.get_running_loop().run_in_executor(_threads, _call, scope, body, time.monotonic())
    finally:
        _load.calls -= 1
    await _send(send, answer)


def _authorization(scope: Scope) -> str:
    found = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return bytes(found).decode("latin1")


async def _body(receive: Receive) -> bytes | None:
    """The whole body; ``None`` when its sender has left."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _busy() -> HttpResponseBase:
    answer = wire.failure(503, "Too many machines report at once; report again after a pause.")
    answer["Retry-After"] = str(_load.retry_after())
    return answer


def _call(scope: Scope, body: bytes, came: float) -> HttpResponseBase:
    """Call the view, in a thread that keeps its connection; ``came`` is when the call had arrived, monotonic seconds.

    A kept connection may have died with its server since. Both calls may be made twice, so the view is called again
    with a new one, and the agent notices nothing.
    """
    began = time.monotonic()
    if began - came > PATIENCE_SECONDS:
        return _busy()
    kept = connection.connection is not None
    answer = _view(scope, body)
    if connection.errors_occurred:
        alive = connection.is_usable()
        connection.close()
        if kept and not alive:
            answer = _view(scope, body)
            if connection.errors_occurred:
                connection.close()
    if answer.status_code == 200:
        _load.served(time.monotonic() - began)
    return answer


def _view(scope: Scope, body: bytes) -> HttpResponseBase:
    try:
        request = ASGIRequest(scope, io.BytesIO(body))
    except (BadRequest, ValueError):  # a head that is not text
        return wire.failure(400, "The request cannot be understood; check its encoding.")
    return ROUTES[scope["path"]](request)


async def _send(send: Send, answer: HttpResponseBase) -> None:
    content = getattr(answer, "content", b"")
    headers = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in answer.items()]
    headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": content})
