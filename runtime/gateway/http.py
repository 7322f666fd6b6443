"""uvicorn's HTTP protocol with a bound on what may arrive before a request's head is complete.

The parser collects a head of any size for any time before the application sees it; here both have an end.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.base.asgi import Scope

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
            if self._head_timer is None:
                self._watch_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
            self.transport.write(_REFUSED)
            self.transport.close()

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


@contextlib.contextmanager
def watching(scope: Scope, gone: Callable[[], None]) -> Iterator[bool]:
    """Call ``gone`` when the client's connection is lost meanwhile; False where the server does not tell.

    Without a task that waits for it: one request is served on a connection at a time.
    """
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp):
        yield False
        return
    connection.on_gone = gone
    if connection.transport.is_closing():
        gone()
    try:
        yield True
    finally:
        connection.on_gone = None


def writable(scope: Scope) -> bool:
    """True when a write goes out, or into the socket's buffer, without waiting for the client to read."""
    connection = scope.get(_KEY)
    return isinstance(connection, BoundedHttp) and not connection.flow.write_paused


def pass_on(scope: Scope, piece: bytes) -> bool:
    """Write a piece of a stream whose head is out, if that can be done without waiting; False: it was not.

    The same bytes as by way of ASGI's messages, for a fraction of the cost: a stream has many pieces.
    """
    connection = scope.get(_KEY)
    if not isinstance(connection, BoundedHttp) or connection.flow.write_paused or not piece:
        return False
    cycle = connection.cycle
    if cycle.scope is not scope or not cycle.response_started or not cycle.chunked_encoding:
        return False
    if cycle.response_complete or cycle.disconnected or scope["method"] == "HEAD":
        return False
    connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True


def bounded(max_head_bytes: int, head_timeout_seconds: float) -> type[BoundedHttp]:
    """Return a protocol class for ``uvicorn.Config(http=...)`` with these bounds."""
    bounds = {"max_head_bytes": max_head_bytes, "head_timeout_seconds": head_timeout_seconds}
    return type("BoundedHttpOfGateway", (BoundedHttp,), bounds)
