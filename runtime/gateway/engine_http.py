"""HTTP/1.1 to engines, and nothing else of HTTP: kept-alive connections, one request at a time on each, no redirects.

A general client costs more CPU than all the rest of a request's way through the gateway; this one knows what it
speaks to. A :class:`Call` belongs to its caller until it is closed, whatever happens to the task that waits for it:
cancelling the wait cuts nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, NamedTuple, Self, cast
from urllib.parse import urlsplit

import httptools

_MAX_HEAD_BYTES: Final = 64 * 1024
_PAUSE_BYTES: Final = 256 * 1024  # what lies here unread before the engine is made to wait
_MAX_IDLE: Final = 512  # kept-alive connections per engine


class NotReached(OSError):
    """No connection could be made: nothing was sent."""


class Dropped(ConnectionError):
    """The engine closed the connection before it had answered."""


class Cut(OSError):
    """The connection ended, or turned into something that is not HTTP, within the answer."""


class Origin(NamedTuple):
    """Where an engine listens, and the parts of a request's head that never change."""

    host: str
    port: int
    tls: bool
    head: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse ``http://host:port`` (or https); raises :class:`NotReached` for anything else."""
        try:
            parts = urlsplit(url)
            host, port, tls = parts.hostname or "", parts.port, parts.scheme == "https"
        except ValueError as exc:
            raise NotReached(f"{url!r} is no address of an engine: {exc}") from None
        if not host or parts.scheme not in ("http", "https"):
            raise NotReached(f"{url!r} is no address of an engine")
        return cls(host, port or (443 if tls else 80), tls, f"host: {parts.netloc}\r\n")


class Call:
    """One request and its answer. ``status`` and ``headers`` (names in lower case) are there after :meth:`head`."""

    __slots__ = (
        "_chunks", "_client", "_connecting", "_connection", "_done", "_error", "_heard", "_last", "_size", "_timer",
        "_waiter", "headers", "status",
    )  # fmt: skip

    def __init__(self, client: "EngineClient") -> None:
        self._client = client
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._heard = False  # the head is complete
        self._done = False  # the answer is complete, or never will be
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def content(self) -> Self:
        """The body; see :meth:`iter_any`."""
        return self

    @property
    def unread(self) -> int:
        """Bytes of the body that came and were not read."""
        return self._size

    async def head(self) -> None:
        """Return when the engine has answered with a head.

        Raises:
            NotReached: nothing was sent.
            Dropped, Cut, TimeoutError: it failed after that.
        """
        while not self._heard:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """The next piece of the body, all that has come; nothing at its end.

        Raises:
            Cut, TimeoutError: the body does not come to its end.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._done:
                return b""
            await self._wait()
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The pieces of :meth:`read`."""
        while piece := await self.read():
            yield piece

    def close(self) -> None:
        """Let go; a connection whose answer is not complete is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.hang_up()
        self._done = True
        self._error = self._error or Cut("closed")
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _wait(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            waiter = self._waiter = self._client.loop.create_future()
        await waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- for the connection ---

    def connect(self, work: Coroutine[Any, Any, None]) -> None:
        """``work`` connects; closing the call ends it."""
        self._connecting = self._client.loop.create_task(work)

    def start(self, connection: "_Connection", request: bytes) -> None:
        """The request goes out on ``connection`` now."""
        self._connecting = None
        self._connection = connection
        connection.carry(self, request)
        self._last = self._client.loop.time()
        self._timer = self._client.loop.call_later(self._client.idle_seconds, self._check)

    def heard(self, status: int, headers: dict[str, str]) -> None:
        """The head is complete."""
        self.status, self.headers, self._heard = status, headers, True
        self._last = self._client.loop.time()
        self._wake()

    def take(self, data: bytes) -> bool:
        """A piece of the body; False: no more for now."""
        self._chunks.append(data)
        self._size += len(data)
        self._last = self._client.loop.time()
        self._wake()
        return self._size < _PAUSE_BYTES

    def end(self, error: BaseException | None) -> None:
        """The answer is complete, or (with an error) never will be."""
        self._connection = None
        self._done = True
        self._error = self._error or error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _check(self) -> None:
        """Nothing for too long?"""
        left = self._last + self._client.idle_seconds - self._client.loop.time()
        if left > 0:
            self._timer = self._client.loop.call_later(left, self._check)
            return
        connection, self._connection = self._connection, None
        self.end(TimeoutError(f"the engine sent nothing for {self._client.idle_seconds:g} s"))
        if connection is not None:
            connection.hang_up()


class _Connection(asyncio.Protocol):
    """One connection; carries one call at a time."""

    def __init__(self, client: "EngineClient", origin: Origin) -> None:
        self._client = client
        self._origin = origin
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._in_head = True
        self._until_close = False  # the answer has no length: its end is the connection's
        self._paused = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def usable(self) -> bool:
        """True while another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def carry(self, call: Call, request: bytes) -> None:
        """Send a request for ``call``."""
        self._call = call
        self._head_bytes, self._in_head = 0, True
        if self._transport is None or self._transport.is_closing():
            self._finish(Dropped("the connection was closed"))
            return
        self._transport.write(request)

    def resume(self) -> None:
        """What lay here was read."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Close at once."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    # --- what comes ---

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            self.hang_up()  # nobody asked
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._finish(Cut(f"not HTTP: {exc}"))
            return
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._finish(Cut("the head of the answer has no end"))

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.forget(self._origin, self)
        call, self._call = self._call, None
        if call is None:
            return
        if self._until_close and not self._in_head and exc is None:
            call.end(None)
        elif self._in_head:
            call.end(Dropped(f"the engine closed the connection: {exc or 'no answer'}"))
        else:
            call.end(Cut(f"the engine closed the connection within its answer: {exc or 'cut'}"))

    # --- the parser's calls ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        self._headers = {}
        if status < 200:
            return
        self._in_head = False
        self._until_close = "content-length" not in headers and "transfer-encoding" not in headers
        if self._call is not None:
            self._call.heard(status, headers)

    def on_body(self, data: bytes) -> None:
        if self._call is not None and not self._call.take(data) and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # an interim answer
        call, self._call = self._call, None
        self.resume()
        if call is not None:
            call.end(None)
        if self._parser.should_keep_alive() and not self._until_close:
            self._in_head = True
            self._client.keep(self._origin, self)
        elif self._transport is not None:
            self._transport.close()

    def _finish(self, error: BaseException) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.end(error)


class EngineClient:
    """The pool of connections. Seconds: ``keepalive_seconds`` is below what any engine allows an idle connection."""

    def __init__(self, *, connect_seconds: float, idle_seconds: float, keepalive_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._keepalive_seconds = keepalive_seconds
        self._origins: dict[str, Origin] = {}
        self._idle: dict[Origin, list[_Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.idle_seconds = idle_seconds
        self.loop = asyncio.get_running_loop()

    def begin(self, url: str, path: str, headers: dict[str, str], body: bytes) -> Call:
        """Send ``POST path`` to the engine at ``url``, connecting first where no connection is kept.

        Raises:
            NotReached: ``url`` is no address. Everything else comes from the call.
            ValueError: a header would tear the head.
        """
        origin = self._origin(url)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            raise ValueError("a header holds a line break")
        head = f"POST {path} HTTP/1.1\r\n{origin.head}{lines}content-length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        call = Call(self)
        kept = self._kept(origin)
        if kept is not None:
            call.start(kept, request)
        else:
            call.connect(self._connect(origin, call, request))
        return call

    def close(self) -> None:
        """Close what is idle; running calls are their callers'."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connections in self._idle.values():
            for connection in list(connections):
                connection.hang_up()
        self._idle.clear()

    async def _connect(self, origin: Origin, call: Call, request: bytes) -> None:
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await self.loop.create_connection(
                    lambda: _Connection(self, origin), origin.host, origin.port, ssl=origin.tls or None
                )
        except TimeoutError:
            call.end(NotReached(f"no connection to {origin.host}:{origin.port} within {self._connect_seconds:g} s"))
        except OSError as exc:
            call.end(NotReached(f"no connection to {origin.host}:{origin.port}: {exc}"))
        else:
            call.start(connection, request)

    def _origin(self, url: str) -> Origin:
        origin = self._origins.get(url)
        if origin is None:
            if len(self._origins) > 10_000:
                self._origins.clear()
            origin = self._origins[url] = Origin.of(url)
        return origin

    def _kept(self, origin: Origin) -> _Connection | None:
        connections = self._idle.get(origin)
        oldest = self.loop.time() - self._keepalive_seconds
        while connections:
            connection = connections.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.hang_up()
        return None

    # --- for connections ---

    def keep(self, origin: Origin, connection: _Connection) -> None:
        """``connection`` has nothing to do for now."""
        connections = self._idle.setdefault(origin, [])
        if self._closed or len(connections) >= _MAX_IDLE:
            connection.hang_up()
            return
        connection.idle_since = self.loop.time()
        connections.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._keepalive_seconds, self._sweep)

    def forget(self, origin: Origin, connection: _Connection) -> None:
        """``connection`` is gone."""
        connections = self._idle.get(origin)
        if connections and connection in connections:
            connections.remove(connection)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self.loop.time() - self._keepalive_seconds
        for origin, connections in list(self._idle.items()):
            for connection in [each for each in connections if each.idle_since <= oldest]:
                connections.remove(connection)
                connection.hang_up()
            if not connections:
                del self._idle[origin]
        if self._idle:
            self._sweeper = self.loop.call_later(self._keepalive_seconds, self._sweep)
