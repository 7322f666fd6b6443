"""HTTP/1.1 to engines, and nothing else of HTTP: kept-alive connections, one request at a time on each, no redirects.

A general client costs more CPU than all the rest of a request's way through the gateway; this one knows what it
speaks to. A :class:`Call` belongs to its caller until it is closed, whatever happens to the task that waits for it:
cancelling the wait cuts nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Self, cast
from urllib.parse import urlsplit

import httptools

from runtime.gateway.engine_call import Call, Cut, Dropped, NotReached

__all__ = ["Call", "Cut", "Dropped", "EngineClient", "NotReached", "at_once"]

_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_IDLE: Final = 512  # kept-alive connections per engine


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


class Connection(asyncio.Protocol):
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
        self._timer: asyncio.TimerHandle | None = None
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
        if self._timer is None:
            self._timer = self._client.loop.call_later(self._client.idle_seconds, self._check)
        self._client.send(self._transport, request)

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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

    def _check(self) -> None:
        """Nothing for too long? One timer goes on from call to call: most calls are over long before it rings."""
        self._timer = None
        call, loop, most = self._call, self._client.loop, self._client.idle_seconds
        if call is None:
            return  # the next call sets it again
        left = call.last + most - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check)
        else:
            call.time_out(most)

    def _finish(self, error: BaseException) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.end(error)


def at_once(transport: asyncio.Transport, data: bytes) -> None:
    """Send ``data`` now."""
    transport.write(data)


class EngineClient:
    """The pool of connections. Seconds: ``keepalive_seconds`` is below what any engine allows an idle connection.

    ``send`` puts a request on its way, and may let it wait for the end of the loop's turn.
    """

    def __init__(
        self,
        *,
        connect_seconds: float,
        idle_seconds: float,
        keepalive_seconds: float,
        send: Callable[[asyncio.Transport, bytes], None] = at_once,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._keepalive_seconds = keepalive_seconds
        self._origins: dict[str, Origin] = {}
        self._idle: dict[Origin, list[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.idle_seconds = idle_seconds
        self.send = send
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
                    lambda: Connection(self, origin), origin.host, origin.port, ssl=origin.tls or None
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

    def _kept(self, origin: Origin) -> Connection | None:
        connections = self._idle.get(origin)
        oldest = self.loop.time() - self._keepalive_seconds
        while connections:
            connection = connections.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.hang_up()
        return None

    # --- for connections ---

    def keep(self, origin: Origin, connection: Connection) -> None:
        """``connection`` has nothing to do for now."""
        connections = self._idle.setdefault(origin, [])
        if self._closed or len(connections) >= _MAX_IDLE:
            connection.hang_up()
            return
        connection.idle_since = self.loop.time()
        connections.append(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._keepalive_seconds, self._sweep)

    def forget(self, origin: Origin, connection: Connection) -> None:
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
