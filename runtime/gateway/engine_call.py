"""One request to an engine and its answer, as whoever waits for it sees them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from runtime.gateway.engine_http import Connection, EngineClient

_PAUSE_BYTES: Final = 256 * 1024  # what lies here unread before the engine is made to wait


class NotReached(OSError):
    """No connection could be made: nothing was sent."""


class Dropped(ConnectionError):
    """The engine closed the connection before it had answered."""


class Cut(OSError):
    """The connection ended, or turned into something that is not HTTP, within the answer."""


class Call:
    """One request and its answer. ``status`` and ``headers`` (names in lower case) are there after :meth:`head`."""

    __slots__ = (
        "_chunks", "_client", "_connecting", "_connection", "_done", "_error", "_heard", "_size", "_waiter", "headers",
        "last", "sink", "status",
    )  # fmt: skip

    def __init__(self, client: "EngineClient") -> None:
        self._client = client
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._heard = False  # the head is complete
        self._done = False  # the answer is complete, or never will be
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.last = 0.0  # when something was sent or came, on the loop's clock
        # Is offered each piece for which :meth:`read` waits; True: it was taken, and nobody is woken.
        self.sink: Callable[[bytes], bool] | None = None
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

    def start(self, connection: "Connection", request: bytes) -> None:
        """The request goes out on ``connection`` now."""
        self._connecting = None
        self._connection = connection
        self.last = self._client.loop.time()
        connection.carry(self, request)

    def heard(self, status: int, headers: dict[str, str]) -> None:
        """The head is complete."""
        self.status, self.headers, self._heard = status, headers, True
        self.last = self._client.loop.time()
        self._wake()

    def take(self, data: bytes) -> bool:
        """A piece of the body; False: no more for now."""
        self.last = self._client.loop.time()
        waiter = self._waiter
        if self.sink is not None and waiter is not None and not waiter.done() and not self._chunks and self.sink(data):
            return True
        self._chunks.append(data)
        self._size += len(data)
        self._wake()
        return self._size < _PAUSE_BYTES

    def end(self, error: BaseException | None) -> None:
        """The answer is complete, or (with an error) never will be."""
        self._connection = None
        self._done = True
        self._error = self._error or error
        self._wake()

    def time_out(self, seconds: float) -> None:
        """Nothing has come for ``seconds``."""
        connection, self._connection = self._connection, None
        self.end(TimeoutError(f"the engine sent nothing for {seconds:g} s"))
        if connection is not None:
            connection.hang_up()

    def whole(self) -> bytes | None:
        """The body, where all of it has come and none was read; ``None``: :meth:`read` it."""
        if not self._done or self._error is not None or not self._chunks:
            return None
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return data
