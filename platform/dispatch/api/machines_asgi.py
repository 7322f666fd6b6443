"""The two calls that every node makes again and again, as bare ASGI: reports, and reading assignments.

A thousand agents report fifty times a second. Through Django's whole stack each report would cost a thread, a
connection to the database, and fourteen middlewares that are there for browsers; here a few threads keep a connection
each and call the same views. Everything else that machines ask for is rare and goes through Django.
"""

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.http import HttpResponseBase

from dispatch.api import internal
from dispatch.api.wire import failure

#: Threads, and connections to the database, per web process. More than one, since a report waits for the database and
#: for the locks of its node's rows; few, since they share one interpreter with the people's requests.
THREADS: Final = 3
#: Calls at a time, read or waiting for a thread.
MAX_CALLS: Final = 2048
#: A call that has waited longer for a thread is refused unseen: agents give a call up after fifteen seconds, and work
#: for those who have given up would keep all others waiting, too. Refused ones pause and report again.
PATIENCE_SECONDS: Final = 4.0
ROUTES: Final[Mapping[str, Callable[..., HttpResponseBase]]] = {
    "/internal/v1/nodes/report": internal.node_report,
    "/internal/v1/nodes/assignments": internal.node_assignments,
}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

_threads: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="machines")
_calls: Final = asyncio.Semaphore(MAX_CALLS)


def matches(scope: Scope) -> bool:
    """True for the routes that this application answers."""
    return scope["type"] == "http" and scope["path"] in ROUTES


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one call; the body is bounded by who calls this."""
    if _calls.locked():
        await _send(send, _busy())
        return
    async with _calls:
        body = await _body(receive)
        if body is None:
            return
        answer = await asyncio.get_running_loop().run_in_executor(_threads, _call, scope, body, time.monotonic())
        await _send(send, answer)


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
    return failure(503, "Too many machines report at once; report again after a pause.")


def _call(scope: Scope, body: bytes, came: float) -> HttpResponseBase:
    """Call the view, in a thread that keeps its connection; ``came`` is when the call had arrived, monotonic seconds.

    A kept connection may have died with its server since. Both calls may be made twice, so the view is called again
    with a new one, and the agent notices nothing.
    """
    if time.monotonic() - came > PATIENCE_SECONDS:
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
    return answer


def _view(scope: Scope, body: bytes) -> HttpResponseBase:
    try:
        request = ASGIRequest(scope, io.BytesIO(body))
    except (BadRequest, ValueError):  # a head that is not text
        return failure(400, "The request cannot be understood; check its encoding.")
    return ROUTES[scope["path"]](request)


async def _send(send: Send, answer: HttpResponseBase) -> None:
    content = getattr(answer, "content", b"")
    headers = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in answer.items()]
    headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": content})
