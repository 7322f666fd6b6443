"""Engines as calls: open a request, cancel one and learn what it computed, ask for load, wake, try."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from runtime.base import logs
from runtime.gateway.engine_http import Call, Cut, EngineClient, NotReached, at_once
from runtime.gateway.settings import Settings
from runtime.wire import codec, errors, inference
from runtime.wire.routes import ReplicaRoute

log = logs.get(__name__)

# Failures before any byte of the request can have been acted on: another replica may be tried.
UNSENT: Final = (NotReached, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# Below the five seconds after which uvicorn closes an idle connection: never send on one that is being closed.
_KEEPALIVE_SECONDS: Final = 4.0
BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError)
# The peer is gone: it was ended or has crashed. A long silence is not among these; who waits has waited enough.
DROPPED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)


_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_MOST_LOAD_BYTES: Final = 64 * 1024
_encode: Final = msgspec.json.Encoder().encode


class Engines:
    """One connection pool for all replicas of the table. ``send`` puts requests on their way, as of the client's."""

    def __init__(self, settings: Settings, send: Callable[[asyncio.Transport, bytes], None] = at_once) -> None:
        self._settings = settings
        self._send = send
        self._session: aiohttp.ClientSession | None = None
        self._client: EngineClient | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            self._client.close()
        if self._session is not None:
            await self._session.close()

    def open(self, replica: ReplicaRoute, path: str, headers: dict[str, str], body: bytes) -> Call:
        """Send a request; ``head`` of what is returned waits for the answer's. The caller closes it.

        Raises:
            UNSENT: the engine was not reached; nothing was sent. From the call, too.
            BROKEN: from the call: the connection failed after that.
        """
        if self._client is None:
            self._client = EngineClient(
                connect_seconds=self._settings.connect_timeout_seconds,
                idle_seconds=self._settings.engine_idle_seconds,
                keepalive_seconds=_KEEPALIVE_SECONDS,
                send=self._send,
            )
        told = {**headers, "authorization": f"Bearer {replica.token}", "content-type": "application/json"}
        return self._client.begin(replica.url, path, told, body)

    async def cancel(self, replica: ReplicaRoute, request_id: str) -> inference.Usage | None:
        """End a request on its engine; return what it came to, or ``None`` when the engine does not know it.

        Raises:
            UNSENT: nothing listens there any more.
            BROKEN: it did not answer, or not so that it could be understood.
        """
        path = inference.PATH_REQUEST.format(request_id=quote(request_id, safe=""))
        async with self._ready().delete(
            replica.url.rstrip("/") + path,
            headers={"authorization": f"Bearer {replica.token}"},
            timeout=aiohttp.ClientTimeout(total=self._settings.cancel_timeout_seconds),
            allow_redirects=False,
        ) as response:
            body = await read_all(response, _MOST_LOAD_BYTES)
        if response.status in _NO_SUCH_PATH:
            return None
        if response.status != 200:
            raise Cut(f"status {response.status} to a cancel")
        try:
            return codec.decode(body, inference.Usage)
        except errors.MalformedMessage as exc:
            raise Cut(f"the answer to a cancel is no usage: {exc}") from exc

    async def load(self, replica: ReplicaRoute, gateway_id: str) -> inference.EngineLoad | None:
        """Ask how it is; ``None`` when it does not tell.

        Raises:
            BROKEN: it could not be reached, or did not answer in time.
        """
        async with self._ready().get(
            replica.url.rstrip("/") + inference.PATH_LOAD,
            headers={"authorization": f"Bearer {replica.token}", inference.HEADER_GATEWAY: gateway_id},
            timeout=aiohttp.ClientTimeout(total=self._settings.connect_timeout_seconds),
            allow_redirects=False,
        ) as response:
            body = await read_all(response, _MOST_LOAD_BYTES)
        if response.status != 200:
            return None
        try:
            return codec.decode(body, inference.EngineLoad)
        except errors.MalformedMessage as exc:
            log.warning("load not understood", replica=replica.replica_id, error=str(exc))
            return None

    async def wake(self, replica: ReplicaRoute) -> None:
        """Ask a sleeping engine to put its weights back; :meth:`load` tells when it is ready.

        Raises:
            BROKEN: it could not be reached, or broke off.
        """
        async with self._ready().post(
            replica.url.rstrip("/") + inference.PATH_WAKE,
            headers={"authorization": f"Bearer {replica.token}"},
            timeout=aiohttp.ClientTimeout(total=self._settings.wake_timeout_seconds),
            allow_redirects=False,
        ) as response:
            await read_all(response, _MOST_LOAD_BYTES)

    async def probe(self, replica: ReplicaRoute, model: str, request_id: str) -> bool:
        """Ask for one token (or, where nothing is generated, one embedding) in nobody's name; return whether it came.

        Nothing of it reaches the usage journal: only requests of callers are booked.
        """
        for path, body in (
            ("/v1/completions", {"model": model, "prompt": "1", "max_tokens": 1}),
            ("/v1/embeddings", {"model": model, "input": "1"}),
        ):
            try:
                async with asyncio.timeout(self._settings.probe_timeout_seconds):
                    response = self.open(
                        replica, path, _probe_headers(request_id, self._settings.probe_timeout_seconds), _encode(body)
                    )
                    async with response:
                        await response.head()
                        await read_all(response, self._settings.max_answer_bytes)
            except BROKEN as exc:
                log.info("probe failed", replica=replica.replica_id, error=str(exc) or type(exc).__name__)
                with contextlib.suppress(*BROKEN):
                    await self.cancel(replica, request_id)
                return False
            if response.status not in _NO_SUCH_PATH:
                return response.status == 200
        return False

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


def _probe_headers(request_id: str, seconds: float) -> dict[str, str]:
    return {
        inference.HEADER_REQUEST_ID: request_id,
        inference.HEADER_TENANT: inference.PROBE_TENANT,
        inference.HEADER_PREFIX_SALT: inference.PROBE_TENANT,
        inference.HEADER_PRIORITY: "critical",  # what is asked is whether it works, not whether it is busy
        inference.HEADER_DEADLINE_MS: str(round(seconds * 1000)),
    }


async def read_all(response: Call | aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a whole answer.

    Raises:
        BROKEN: the answer is cut, or longer than ``limit`` bytes.
    """
    if isinstance(response, Call) and (body := response.whole()) is not None:
        if len(body) > limit:
            raise Cut(f"more than {limit} bytes")
        return body
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            raise Cut(f"more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def usage_told(headers: Mapping[str, str]) -> inference.Usage:
    """What an engine computed for a request that it answers with an error; nothing where it does not say."""
    try:
        return codec.decode(headers.get(inference.HEADER_USAGE, ""), inference.Usage)
    except errors.MalformedMessage:
        return inference.Usage()
