"""A bound on request bodies, before Django: it would take a body of any size to disk first and look at it then."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kernel import ids
from kernel.api import problems

MAX_BYTES: Final = 4 * 1024**2
# Between two pieces of a body.
IDLE_SECONDS: Final = 30.0

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    """More came than is taken."""


class _TooSlow(Exception):
    """Nothing came for too long."""


def bounded(app: App, *, max_bytes: int = MAX_BYTES, idle_seconds: float = IDLE_SECONDS) -> App:
    """Wrap ``app``: 413 for bodies over ``max_bytes``, 408 when a sender is silent for ``idle_seconds``.

    The application must take the whole body before it answers, as Django does.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if stated.isdigit() and int(stated[:19]) > max_bytes:
            await _refuse_large(send, max_bytes)
            return
        seen, complete = 0, False

        async def counted() -> Message:
            nonlocal seen, complete
            if complete:
                return await receive()  # waiting for the client to leave takes as long as it takes
            try:
                async with asyncio.timeout(idle_seconds):
                    message = await receive()
            except TimeoutError:
                raise _TooSlow from None
            seen += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if seen > max_bytes:
                raise _TooLarge
            return message

        try:
            await app(scope, counted, send)
        except _TooLarge:
            await _refuse_large(send, max_bytes)
        except _TooSlow:
            await _refuse(send, 408, "body_late", "Too slow", f"The body stopped coming for {idle_seconds:g} s.")

    return guarded


async def _refuse_large(send: Send, max_bytes: int) -> None:
    await _refuse(send, 413, "too_large", "Too large", f"A body has at most {max_bytes} bytes here.")


async def _refuse(send: Send, status: int, code: str, title: str, detail: str) -> None:
    request_id = str(ids.new_id())
    problem = problems.problem(status=status, code=code, title=title, detail=detail, request_id=request_id)
    body = json.dumps(problem).encode()
    headers = [
        (b"content-type", problems.CONTENT_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"x-request-id", request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
