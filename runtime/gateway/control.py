"""The control plane's gateway API as calls. Every failure is one of two errors; nothing is retried here."""

from collections.abc import Callable
from typing import TypeVar

import aiohttp
import msgspec

from runtime.base import logs
from runtime.wire import codec, errors
from runtime.wire.errors import ErrorBody, ErrorCode
from runtime.wire.joining import Hint, JoinReply, JoinRequest
from runtime.wire.routes import GatewayReply, GatewayReport, RouteTable
from runtime.wire.usage import UsageBatch, UsageReply

log = logs.get(__name__)

T = TypeVar("T")
_BASE = "/internal/v1/gateways"
_MAX_TEXT = 300
_KEEPALIVE_SECONDS = 4.0  # below the five after which common servers close an idle connection


class ControlError(Exception):
    """A call to the control plane did not succeed."""


class ControlUnavailable(ControlError):
    """No usable answer: not reachable, too slow, failing, or speaking nonsense. Trying again later may help."""


class ControlRefused(ControlError):
    """The control plane understood and refused."""

    def __init__(self, status: int, code: ErrorCode, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


class ControlPlane:
    """One session towards the control plane. ``credential`` is empty until the gateway has joined."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.credential = ""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def join(self, request: JoinRequest) -> JoinReply:
        """Trade a one-time token for this gateway's own credential."""
        return await self._call("POST", "/join", JoinReply, request)

    async def report(self, report: GatewayReport) -> GatewayReply:
        """Heartbeat and acknowledgement of the applied generation."""
        return await self._call("POST", "/report", GatewayReply, report)

    async def usage(self, batch: UsageBatch) -> UsageReply:
        """Hand over records; when this returns, every one of them is booked."""
        return await self._call("POST", "/usage", UsageReply, batch)

    async def routes(self, known: int) -> RouteTable | None:
        """Read the table; ``None`` when the control plane says that generation ``known`` is still the newest."""
        headers = {"if-none-match": f'"{known}"'} if known else {}
        try:
            async with self._open("GET", "/routes", headers=headers) as response:
                if response.status == 304:
                    return None
                return await _read(response, RouteTable)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise ControlUnavailable(_describe(exc)) from exc

    async def listen(self, on_hint: Callable[[Hint], None]) -> None:
        """Call ``on_hint`` for each hint until the socket closes.

        Raises:
            ControlUnavailable: the socket could not be opened or broke.
        """
        session = self._ready()
        try:
            async with session.ws_connect(
                self._url + _BASE + "/hints", headers=self._headers(), heartbeat=15.0, max_msg_size=64 * 1024
            ) as socket:
                self._socket = socket
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        on_hint(codec.decode(message.data, Hint))
        except (aiohttp.ClientError, TimeoutError, OSError, errors.MalformedMessage) as exc:
            raise ControlUnavailable(_describe(exc)) from exc
        finally:
            self._socket = None

    async def acknowledge(self, generation: int) -> bool:
        """Say on the socket of hints that requests are served from ``generation``; False when that cannot be said."""
        if self._socket is None:
            return False
        try:
            await self._socket.send_str(codec.encode(Hint(topic="routes", generation=generation)).decode())
        except (aiohttp.ClientError, OSError) as exc:
            log.info("not acknowledged on the socket; the report says it", error=_describe(exc))
            return False
        return True

    async def _call(self, method: str, path: str, kind: type[T], message: msgspec.Struct) -> T:
        try:
            async with self._open(method, path, data=codec.encode(message)) as response:
                return await _read(response, kind)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise ControlUnavailable(_describe(exc)) from exc

    def _open(
        self, method: str, path: str, *, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> "aiohttp.client._RequestContextManager":
        return self._ready().request(
            method,
            self._url + _BASE + path,
            data=data,
            headers={**self._headers(), "content-type": "application/json", **(headers or {})},
            allow_redirects=False,  # a redirect would carry the credential elsewhere
        )

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.credential}"} if self.credential else {}

    def _ready(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, connector=aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE_SECONDS)
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, kind: type[T]) -> T:
    body = await response.read()
    if response.status == 200 or response.status == 201:
        try:
            return codec.decode(body, kind)
        except errors.MalformedMessage as exc:
            raise ControlUnavailable(f"the answer does not fit {kind.__name__}: {exc}") from exc
    if 400 <= response.status < 500 and response.status not in (408, 429):
        try:
            refused = codec.decode(body, ErrorBody)
        except errors.MalformedMessage:
            raise ControlUnavailable(f"status {response.status} without a reason") from None
        raise ControlRefused(response.status, refused.code, refused.message[:_MAX_TEXT])
    raise ControlUnavailable(f"status {response.status}")


def _describe(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"[:_MAX_TEXT]
