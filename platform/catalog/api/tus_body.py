"""Receiving a request's body in blocks, bounded in memory and in patience."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

BLOCK_BYTES: Final = 1024**2
IDLE_SECONDS: Final = 60.0
_DRAIN_BYTES: Final = 8 * 1024**2
_DRAIN_SECONDS: Final = 5.0

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGone(Exception):
    """The connection dropped. What was received before still counts."""


class ClientSilent(ClientGone):
    """The connection stands, but nothing came over it for too long."""


async def blocks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body in blocks of about a mebibyte.

    Raises:
        ClientGone: after the last received byte has been yielded; ClientSilent after a minute without one.
    """
    held = bytearray()
    more, silent = True, False
    while more:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                message = await receive()
        except TimeoutError:
            message, silent = {"type": "http.disconnect"}, True
        gone = message["type"] == "http.disconnect"
        held += message.get("body", b"")
        more = not gone and bool(message.get("more_body", False))
        if held and (len(held) >= BLOCK_BYTES or not more):
            yield bytes(held)
            held.clear()
        if gone:
            raise ClientSilent if silent else ClientGone


async def drain(receive: Receive) -> None:
    """Read away the rest of a small body before an early answer, so that clients that send first can read it."""
    seen = 0
    with contextlib.suppress(ClientGone, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for block in blocks(receive):
                seen += len(block)
                if seen > _DRAIN_BYTES:
                    return
