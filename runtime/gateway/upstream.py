"""Engines as calls: open a request, cancel one and learn what it computed. Plus the count of what runs where."""

import asyncio
from collections import Counter
from typing import Final
from urllib.parse import quote

import aiohttp

from runtime.base import logs
from runtime.gateway.settings import Settings
from runtime.wire import codec, errors, inference
from runtime.wire.routes import ReplicaRoute

log = logs.get(__name__)

# Failures before any byte of the request can have been acted on: another replica may be tried.
UNSENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# Below the five seconds after which uvicorn closes an idle connection: never send on one that is being closed.
_KEEPALIVE_SECONDS: Final = 4.0
BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError)


class Engines:
    """One connection pool for all replicas of the table."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._outstanding: Counter[str] = Counter()

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    def outstanding(self, replica_id: str) -> int:
        """Requests of this gateway that the replica has not finished."""
        return self._outstanding[replica_id]

    def take(self, replica_id: str) -> None:
        """Count one more request on the replica."""
        self._outstanding[replica_id] += 1

    def give_back(self, replica_id: str) -> None:
        """Count one request less; a replica without any leaves no trace."""
        self._outstanding[replica_id] -= 1
        if self._outstanding[replica_id] <= 0:
            del self._outstanding[replica_id]

    async def open(
        self, replica: ReplicaRoute, path: str, headers: dict[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Send a request and return once the engine has answered with a head. The caller closes the response.

        Raises:
            UNSENT: the engine was not reached; nothing was sent.
            BROKEN: the connection failed after that.
        """
        return await self._ready().post(
            replica.url.rstrip("/") + path,
            data=body,
            headers={**headers, "authorization": f"Bearer {replica.token}", "content-type": "application/json"},
            allow_redirects=False,
        )

    async def cancel(self, replica: ReplicaRoute, request_id: str) -> inference.Usage | None:
        """End a request on its engine; return what it computed, or ``None`` when the engine does not tell."""
        path = inference.PATH_REQUEST.format(request_id=quote(request_id, safe=""))
        try:
            async with self._ready().delete(
                replica.url.rstrip("/") + path,
                headers={"authorization": f"Bearer {replica.token}"},
                timeout=aiohttp.ClientTimeout(total=self._settings.cancel_timeout_seconds),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    return None
                return codec.decode(await response.read(), inference.Usage)
        except (*BROKEN, errors.MalformedMessage) as exc:
            log.warning("cancel failed", replica=replica.replica_id, request=request_id, error=str(exc))
            return None

    def _ready(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=_KEEPALIVE_SECONDS),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=self._settings.connect_timeout_seconds,
                    sock_read=self._settings.engine_idle_seconds,
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("accept-encoding", "user-agent"),
                trust_env=False,
                read_bufsize=256 * 1024,
            )
        return self._session


async def read_all(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a whole answer.

    Raises:
        aiohttp.ClientPayloadError: the answer is cut, or longer than ``limit`` bytes.
    """
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise aiohttp.ClientPayloadError(f"more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def give_up(response: aiohttp.ClientResponse | None, opening: "asyncio.Task[aiohttp.ClientResponse] | None") -> None:
    """Close the connection of a request that is over, whatever it was doing."""
    if response is not None:
        response.close()
    elif opening is not None and not opening.done():
        opening.cancel()
