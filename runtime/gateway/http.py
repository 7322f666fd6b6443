"""uvicorn's HTTP protocol with a bound on what may arrive before a request's head is complete.

The parser collects a head of any size for any time before the application sees it; here both have an end.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from runtime.base.asgi import Scope
from runtime.gateway.outbox import Outbox

_KEY: Final = "millpond.connection"

_BODY: Final = (
    b'{"error":{"message":"The request head is too large.","type":"invalid_request_error","param":null,'
    b'"code":"headers_too_large"}}'
)
_REFUSED: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: " + str(len(_BODY)).encode() + b"\r\n\r\n" + _BODY
)


class BoundedHttp(HttpToolsProtocol):
    """One connection. The bounds are class attributes, because uvicorn makes the instances."""

    max_head_bytes = 32 * 1024
    head_timeout_seconds = 15.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        self.owed: Outbox | None = None  # where the last answer may still wait
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # uvicorn narrows it the same way
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or not self._head_bytes or self.transport.is_closing():
            return
        if self._head_bytes > self.max_head_bytes:
            self.transport.write(_REFUSED)
            self.transport.close()
        elif self._head_timer is None:
            self._watch_head()  # most heads come whole, and a timer for each would be for nothing

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._unwatch_head()
        super().on_headers_complete()
        cast(Scope, self.scope)[_KEY] = self

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        super().connection_lost(exc)
        if self.on_gone is not None:
            self.on_gone()

    def shutdown(self) -> None:
        if self.owed is not None:
            self.owed.flush()  # it counts as answered, so the connection would be closed at once
        super().shutdown()

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_seconds, self._head_late)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()


def watch(scope: Scope, gone: Callable[[], None] | None) -> bool:
    """Call ``gone`` when the client's connection is lost from now on (``None``: no more); False where nothing tells.

    Without a task that waits for it: one request is served on a connection at a time.
    """
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp):
        return False
    connection.on_gone = gone
    if gone is not None and connection.transport.is_closing():
        gone()
    return True


def whole_body(scope: Scope, limit: int) -> bytes | None:
    """The body, where all of it has come and is not over ``limit`` bytes; ``None``: it is to be waited for.

    The same bytes as by way of ASGI's messages. Take it once.
    """
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp):
        return None
    cycle = connection.cycle
    if cycle.scope is not scope or cycle.more_body or cycle.disconnected or len(cycle.body) > limit:
        return None
    body = bytes(cycle.body)
    cycle.body = bytearray()
    cycle.message_event.clear()
    connection.flow.resume_reading()
    return body


def answer(scope: Scope, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, outbox: Outbox) -> bool:
    """Send a whole answer in one piece by way of ``outbox``, if it need not wait for the client; False: it was not.

    The same bytes as by way of ASGI's messages, for a fraction of the cost, and in one packet instead of two.
    """
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp) or connection.flow.write_paused:
        return False
    cycle = connection.cycle
    if cycle.scope is not scope or cycle.response_started or cycle.disconnected or not cycle.keep_alive:
        return False
    if scope["method"] == "HEAD" or connection.transport.is_closing():
        return False
    lines = [b"%b: %b\r\n" % pair for pair in (*cycle.default_headers, *headers)]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        return False  # whoever sends it the long way says what is wrong
    cycle.response_started = cycle.response_complete = True
    cycle.chunked_encoding = cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    connection.owed = outbox
    outbox.put(connection.transport, b"%bcontent-length: %d\r\n%b\r\n%b" % (STATUS_LINE[status], len(body), head, body))
    cycle.on_response()
    return True


def writable(scope: Scope) -> bool:
    """True when a write goes out, or into the socket's buffer, without waiting for the client to read."""
    connection = scope.get(_KEY)
    return isinstance(connection, BoundedHttp) and not connection.flow.write_paused


def stream_of(scope: Scope) -> BoundedHttp | None:
    """Where :func:`pass_on` may put a piece of a stream whose head is out, without waiting; ``None``: nowhere, now."""
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp) or connection.flow.write_paused or connection.transport.is_closing():
        return None
    cycle = connection.cycle
    if cycle.scope is not scope or not cycle.response_started or not cycle.chunked_encoding:
        return None
    return None if cycle.response_complete or cycle.disconnected or scope["method"] == "HEAD" else connection


def pass_on(connection: BoundedHttp, piece: bytes) -> None:
    """Write a piece (not empty) of a stream.

    The same bytes as by way of ASGI's messages, for a fraction of the cost: a stream has many pieces.
    """
    connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def bounded(max_head_bytes: int, head_timeout_seconds: float) -> type[BoundedHttp]:
    """Return a protocol class for ``uvicorn.Config(http=...)`` with these bounds."""
    bounds = {"max_head_bytes": max_head_bytes, "head_timeout_seconds": head_timeout_seconds}
    return type("BoundedHttpOfGateway", (BoundedHttp,), bounds)
