"""Ways to learn that a process is ready: it answers on HTTP, it said so, or it simply stays alive."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

_ANSWER_SECONDS: Final = 5.0


class Child(Protocol):
    """What a probe may look at."""

    def said(self) -> str:
        """What the process has written since it started."""

    def age_s(self) -> float:
        """Seconds since it started."""


Probe = Callable[[Child], Awaitable[bool]]


def calls(check: Callable[[], Awaitable[bool]]) -> Probe:
    """Ready when ``check`` says so."""

    async def probe(_child: Child) -> bool:
        return await check()

    return probe


def says(pattern: str) -> Probe:
    """Ready once the process has written a line that matches ``pattern``."""
    wanted = re.compile(pattern)

    async def probe(child: Child) -> bool:
        return wanted.search(child.said()) is not None

    return probe


def stays(seconds: float) -> Probe:
    """Ready when the process has lived for ``seconds``."""

    async def probe(child: Child) -> bool:
        return child.age_s() >= seconds

    return probe


def answers(host: str, port: int, path: str) -> Probe:
    """Ready when ``GET path`` is answered with a status below 400."""

    async def probe(_child: Child) -> bool:
        return await http_ok(host, port, path)

    return probe


def replies(host: str, port: int, path: str) -> Probe:
    """True when ``GET path`` is answered at all, with whatever status."""

    async def probe(_child: Child) -> bool:
        return await _http_status(host, port, path) is not None

    return probe


async def http_ok(host: str, port: int, path: str) -> bool:
    """True when ``GET path`` on that address is answered with a status below 400 within five seconds."""
    status = await _http_status(host, port, path)
    return status is not None and status < 400


async def _http_status(host: str, port: int, path: str) -> int | None:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(connectable(host), port)
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: {url_host(host)}:{port}\r\nConnection: close\r\n\r\n".encode()
                )
                await writer.drain()
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return int(status[1]) if len(status) >= 2 and status[1].isdigit() else None


def connectable(host: str) -> str:
    """Return the address to connect to for a server that listens on ``host`` (all addresses: this machine)."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104


def url_host(host: str) -> str:
    """Return ``host`` as it is written in a URL."""
    target = connectable(host)
    return f"[{target}]" if ":" in target else target
