"""The agent's side of the control plane's internal API: join, report, assignments, artifacts, hints.

Every call is one attempt with a time limit; who calls decides when to try again (:class:`Retrying`). The credential
travels in a header and nowhere else.
"""

import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec

from runtime.agent.errors import Refused, Unreachable
from runtime.wire import codec
from runtime.wire.assignments import NodeAssignments
from runtime.wire.errors import ErrorBody, ErrorCode, MalformedMessage
from runtime.wire.joining import Hint, JoinReply, JoinRequest
from runtime.wire.reports import NodeReport, ReportReply

T = TypeVar("T", bound=msgspec.Struct)

CALL_SECONDS: Final = 15.0
PIECE_SECONDS: Final = 60.0  # between two pieces of an artifact
HINT_HEARTBEAT: Final = 20.0
LONGEST_PAUSE: Final = 60.0
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


class Retrying:
    """Growing pauses with jitter, so that a thousand agents do not return in the same second."""

    def __init__(self, *, first: float = 0.5, limit: float = 30.0, jitter: Callable[[], float] = random.random) -> None:
        self._first = first
        self._limit = limit
        self._jitter = jitter
        self._failures = 0

    def pause(self, at_least: float = 0.0) -> float:
        """Seconds to wait after one more failure: between half and all of a doubling, bounded time.

        ``at_least`` is what the other side asked for; it is believed up to :data:`LONGEST_PAUSE`.
        """
        span = min(self._limit, self._first * float(2 ** min(self._failures, 20)))
        self._failures += 1
        return max(span * (0.5 + 0.5 * self._jitter()), min(at_least, LONGEST_PAUSE))

    def succeeded(self) -> None:
        """Start over from the shortest pause."""
        self._failures = 0


class Download:
    """An artifact on its way."""

    def __init__(self, response: aiohttp.ClientResponse, offset: int) -> None:
        self.offset = offset
        self._response = response

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield the body in full pieces of ``size`` bytes (the last may be shorter).

        Raises:
            Unreachable: the connection broke or stood still.
        """
        try:
            pending = bytearray()
            async for chunk in self._response.content.iter_chunked(size):
                pending += chunk
                if len(pending) >= size:
                    yield bytes(pending)
                    pending.clear()
            if pending:
                yield bytes(pending)
        except _LOST as exc:
            if pending:  # keep what came: the next try goes on from there
                yield bytes(pending)
            raise Unreachable(f"the download broke off: {exc or type(exc).__name__}") from exc


class ControlPlane:
    """Calls to one control plane. ``credential`` is set after joining."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base = base_url
        self.credential = ""

    async def join(self, request: JoinRequest) -> JoinReply:
        """Trade the one-time token for a credential.

        Raises:
            Unreachable, Refused
        """
        return await self._call("POST", "/internal/v1/nodes/join", JoinReply, request, auth=False)

    async def report(self, report: NodeReport) -> ReportReply:
        """Send one report.

        Raises:
            Unreachable, Refused
        """
        return await self._call("POST", "/internal/v1/nodes/report", ReportReply, report)

    async def assignments(self) -> NodeAssignments:
        """Read what this node should run.

        Raises:
            Unreachable, Refused
        """
        return await self._call("GET", "/internal/v1/nodes/assignments", NodeAssignments)

    @asynccontextmanager
    async def open_artifact(self, sha256: str, offset: int) -> AsyncIterator[Download]:
        """Ask for a file from ``offset`` on.

        Raises:
            Unreachable, Refused
        """
        headers = self._headers() | ({"range": f"bytes={offset}-"} if offset else {})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS, sock_read=PIECE_SECONDS)
        try:
            response = await self._session.get(
                f"{self._base}/internal/v1/nodes/artifacts/{sha256}",
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )
        except _LOST as exc:
            raise Unreachable(_text(exc)) from exc
        try:
            if response.status not in {200, 206}:
                raise _refusal(response.status, await response.content.read(65536))
            yield Download(response, _start_of(response))
        finally:
            response.close()

    async def hints(self) -> AsyncIterator[Hint]:
        """Yield hints until the connection ends (also by an error: a hint lost is latency, never loss)."""
        try:
            async with self._session.ws_connect(
                f"{self._base}/internal/v1/nodes/hints",
                headers=self._headers(),
                heartbeat=HINT_HEARTBEAT,
                max_msg_size=65536,
            ) as socket:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        yield codec.decode(message.data, Hint)
        except (*_LOST, MalformedMessage) as exc:
            raise Unreachable(_text(exc)) from exc

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.credential}"}

    async def _call(
        self, method: str, path: str, kind: type[T], body: msgspec.Struct | None = None, *, auth: bool = True
    ) -> T:
        headers = self._headers() if auth else {}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self._base + path,
                headers=headers,
                data=None if body is None else codec.encode(body),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
                allow_redirects=False,
            ) as response:
                answer = await _read(response)
        except _LOST as exc:
            raise Unreachable(_text(exc)) from exc
        if response.status != 200 and response.status != 201:
            raise _refusal(response.status, answer, response.headers.get("retry-after", ""))
        try:
            return codec.decode(answer, kind)
        except MalformedMessage as exc:
            raise Unreachable(f"the answer to {path} does not fit: {exc}") from exc


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, bounded."""
    parts = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        parts += chunk
        if len(parts) > MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(parts)


def _start_of(response: aiohttp.ClientResponse) -> int:
    """Where the body begins in the file."""
    if response.status == 200:
        return 0
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None:
        raise Unreachable("a partial answer without a readable Content-Range")
    return int(match.group(1))


def _refusal(status: int, body: bytes, retry_after: str = "") -> Refused | Unreachable:
    """A 4xx of our own API is a refusal; all else is a control plane that is not itself now."""
    if status < 400 or status >= 500 or status in {408, 429}:
        asked = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        return Unreachable(f"the control plane answers {status}", retry_after=asked)
    try:
        error = codec.decode(body, ErrorBody)
    except MalformedMessage:
        # Something in front of the control plane answered: that is no order to give anything up.
        code = ErrorCode.UNAUTHENTICATED if status == 401 else ErrorCode.UNAVAILABLE
        return Refused(status, code, f"the control plane answers {status}")
    return Refused(status, error.code, error.message[:500])


def _text(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return str(exc) or type(exc).__name__
