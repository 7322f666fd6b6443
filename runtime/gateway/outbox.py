"""What one turn of the event loop sends, held until the journal has what belongs before it.

A record must be on disk before a client gets the last byte of its answer, and the note of a request before an engine is
sent it. One write to a file costs as much as one to a socket, so the lines of all requests that move in the same turn
go out in one write, and then the bytes that waited for them.
"""

import asyncio
from collections.abc import Callable


class Outbox:
    """``first`` writes the journal's lines, before anything is sent; whatever it raises holds back nothing."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._first = first
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send ``data`` at the end of this turn, in the order of the calls; nothing where the connection ends first."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append((transport, data))

    def flush(self) -> None:
        """Send what waits now."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            self._first()
        finally:
            for transport, data in waiting:
                if not transport.is_closing():
                    transport.write(data)
