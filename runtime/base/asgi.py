"""A small kit for bare ASGI: router, bounded bodies, JSON answers. No framework sits on the request path."""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[["Request"], Awaitable[None]]


class BodyTooLarge(Exception):
    """The body is longer than the limit given."""


class ClientGone(Exception):
    """The client closed the connection before the request was complete."""


class Request:
    """One HTTP request: what came in, and the two ways to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, params: dict[str, str]) -> None:
        self.scope = scope
        self.params = params
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] | None = None
        self.started = False  # response headers are out
        self.extra: list[tuple[bytes, bytes]] = []  # headers of whatever answer there will be

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def client(self) -> str:
        client = self.scope.get("client")
        return client[0] if client else ""

    def header(self, name: str) -> str:
        """First value of header ``name`` (lower case), or ""."""
        if self._headers is None:
            self._headers = dict(reversed(self.scope["headers"]))
        return self._headers.get(name.encode("latin-1"), b"").decode("latin-1")

    async def body(self, limit: int) -> bytes:
        """Read the whole body.

        Raises:
            BodyTooLarge: more than ``limit`` bytes, by declaration or by count.
            ClientGone: the client left before the end.
        """
        declared = self.header("content-length")
        if declared.isdigit() and int(declared) > limit:
            raise BodyTooLarge
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def disconnected(self) -> None:
        """Return when the client has gone. Call only after :meth:`body`."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the response head."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self.extra})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; ``more=False`` ends the response."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Send a whole response."""
        head = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        await self.start(status, head + (headers or []))
        await self.write(body, more=False)

    async def json(self, status: int, value: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        """Send ``value`` as JSON."""
        await self.respond(status, msgspec.json.encode(value), headers=headers)


class Router:
    """Maps (method, path pattern) to handlers. ``{name}`` matches one path segment; a path without one goes first."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Handler] = {}
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []
        self.paths: list[tuple[str, str]] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Register ``handler``; patterns are tried in the order they were added."""
        if "{" not in pattern:
            self._exact.setdefault((method, pattern), handler)
        regex = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(pattern))
        self._routes.append((method, re.compile(regex), handler))
        self.paths.append((method, pattern))

    def find(self, method: str, path: str) -> tuple[Handler | None, dict[str, str], list[str]]:
        """Return (handler, path parameters, methods the path allows)."""
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact, {}, []
        allowed: list[str] = []
        for candidate, regex, handler in self._routes:
            match = regex.fullmatch(path)
            if match is None:
                continue
            if candidate == method:
                return handler, match.groupdict(), []
            allowed.append(candidate)
        return None, {}, allowed


async def race(work: Awaitable[None], gone: Awaitable[None]) -> bool:
    """Run ``work`` until it ends or ``gone`` returns first; the loser is cancelled. True when ``work`` ended."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(gone)
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for pending in (task, watcher):
            if not pending.done():
                pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
