"""One request on its way through an engine, ended exactly once on every exit.

The client is watched from the first byte on. Whatever happens, the upstream connection is closed, the limit is settled
and one usage record is written; where there is a last byte for the client, before it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import msgspec

from runtime.base import asgi, logs
from runtime.gateway import sse
from runtime.gateway.booking import CLIENT_GONE, Ending, Job, book
from runtime.gateway.core import Core
from runtime.gateway.lane import BUSY, Lane, failed
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.upstream import BROKEN, read_all
from runtime.wire import inference
from runtime.wire.inference import Usage

log = logs.get(__name__)

_PASSED_ERRORS: Final = frozenset({400, 413, 422, 504})
_STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_GOODBYE_SECONDS: Final = 1.0


class Dialect(msgspec.Struct, frozen=True):
    """What the proxy must know of the caller's dialect."""

    error_body: Callable[[Refusal], bytes]
    is_error: Callable[[bytes], bool]
    usage_of: Callable[[bytes], Usage]


class Exchange:
    """One job, from choosing a replica to the usage record. Use once."""

    def __init__(self, core: Core, request: asgi.Request, job: Job, dialect: Dialect) -> None:
        self._core = core
        self._request = request
        self._job = job
        self._dialect = dialect
        self._lane = Lane(core, job.endpoint, job.upstream_id)
        self._meter = sse.Meter()
        self._first: float | None = None
        self._last_write = 0.0
        self._streaming = False  # the client has the head of a stream and not yet its end
        self._over = False

    async def run(self) -> None:
        """Serve the job.

        Raises:
            Refusal: nothing was sent to the client yet, and it is to be told why.
            asgi.ClientGone: the client takes nothing any more.
        """
        try:
            if not await asgi.race(self._work(), self._request.disconnected()):
                self._abandon(CLIENT_GONE, "aborted", billable=True)
        except Refusal as refusal:
            await self._end(refusal.status, "error", billable=refusal.status < 500)
            raise
        except asyncio.CancelledError:
            # Only the server cancels, when it is stopping and will not wait longer; this is the top of the task.
            self._abandon(503, "error", billable=False)
            await self._say_goodbye()
        finally:
            # What is not accounted for by now is a defect of ours, and not billed.
            self._abandon(500, "error", billable=False)

    async def _work(self) -> None:
        response = await self._lane.open(self._job.path, self._headers(), self._job.body)
        kind = response.headers.get("content-type", "")
        if response.status != 200:
            await self._pass_error(response)
        elif kind.startswith("text/event-stream"):
            await self._pass_stream(response)
        else:
            await self._pass_answer(response, kind or "application/json")

    def _headers(self) -> dict[str, str]:
        """All that an engine is told beside the body; written from scratch, so no client can set any of it."""
        job = self._job
        return {
            **job.trace,
            inference.HEADER_REQUEST_ID: job.upstream_id,
            inference.HEADER_TENANT: job.caller.tenant.id,
            inference.HEADER_PREFIX_SALT: job.caller.tenant.prefix_salt,
            inference.HEADER_METERED: "1",
            inference.HEADER_DEADLINE_MS: str(round(self._core.settings.request_max_seconds * 1000)),
        }

    # --- passing on ---

    async def _pass_answer(self, response: aiohttp.ClientResponse, kind: str) -> None:
        try:
            body = await read_all(response, self._core.settings.max_answer_bytes)
        except BROKEN as exc:
            raise failed("The model's engine failed before its answer was complete. Please try again.") from exc
        await self._end(200, "ok", usage=self._dialect.usage_of(body))
        await self._within(self._request.respond(200, body, kind.encode("latin-1"), self._job.lease.headers))

    async def _pass_error(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        try:
            body = await read_all(response, self._core.settings.max_answer_bytes)
        except BROKEN:
            body = b""
        if status in _PASSED_ERRORS and self._dialect.is_error(body):
            await self._end(status, "error", billable=status < 500)
            await self._within(self._request.respond(status, body, headers=self._job.lease.headers))
            return
        if status in BUSY:
            wait = response.headers.get("retry-after", "")
            raise Refusal(
                Reason.OVERLOADED,
                503,
                "Every replica of this model is busy. Please try again.",
                retry_after=min(60, int(wait)) if wait.isdigit() else 1,
            )
        log.error("engine answered with an error", status=status, replica=self._lane.replica_id)
        raise failed("The model's engine failed on this request.")

    async def _pass_stream(self, response: aiohttp.ClientResponse) -> None:
        await self._request.start(200, _STREAM_HEAD + self._job.lease.headers)
        self._streaming = True
        self._last_write = self._core.clock.monotonic()
        ticker = asyncio.create_task(self._keep_alive())
        try:
            async for chunk in response.content.iter_any():
                data = self._meter.feed(chunk)
                if data:
                    await self._write(data)
        except (*BROKEN, sse.LineTooLong) as exc:
            log.warning("stream cut", replica=self._lane.replica_id, request=self._job.request_id, error=str(exc))
        finally:
            ticker.cancel()
        if self._meter.done and not self._meter.failed:
            await self._end(200, "ok", usage=self._meter.usage)
        else:
            self._core.metrics.cut()
            await self._end(200, "error", usage=self._meter.usage, billable=False)
            await self._within(self._say_cut("The model's engine failed before the answer was complete."))
        self._streaming = False
        await self._within(self._request.write(b"", more=False))

    async def _write(self, data: bytes) -> None:
        now = self._core.clock.monotonic()
        if self._first is None and self._meter.events:
            self._first = now
        self._last_write = now
        await self._within(self._request.write(data))

    async def _within(self, write: Awaitable[None]) -> None:
        """Write to the client; one that takes nothing for too long counts as gone."""
        try:
            async with asyncio.timeout(self._core.settings.write_timeout_seconds):
                await write
        except TimeoutError:
            self._abandon(CLIENT_GONE, "aborted", billable=True)
            raise asgi.ClientGone from None

    async def _keep_alive(self) -> None:
        """Comments in long silences, so that nothing between here and the client takes the stream for dead."""
        every = self._core.settings.keepalive_seconds
        while True:
            await self._core.clock.sleep(every)
            if self._meter.between_events and self._core.clock.monotonic() - self._last_write >= every:
                await self._request.write(sse.KEEPALIVE)

    async def _say_cut(self, message: str) -> None:
        """One error event in a stream that will not be whole; none where the engine has said so itself."""
        if self._meter.failed or self._meter.done:
            return
        error = self._dialect.error_body(Refusal(Reason.UPSTREAM_FAILED, 502, message, code="stream_cut"))
        lead = b"" if self._meter.between_events else b"\n\n"
        await self._request.write(lead + sse.event(error))

    async def _say_goodbye(self) -> None:
        if not self._request.started:
            raise Refusal(Reason.DRAINING, 503, "The gateway is stopping. Please try again.", retry_after=1)
        if not self._streaming:
            return
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._say_cut("The gateway was stopped before the answer was complete. Please try again.")
                await self._request.write(b"", more=False)
        except TimeoutError:
            return

    # --- ending ---

    async def _end(self, status: int, outcome: str, *, usage: Usage | None = None, billable: bool = True) -> None:
        """The engine is done with the request: book it."""
        if self._over:
            return
        self._over = True
        self._lane.close()
        ending = Ending(status=status, outcome=outcome, usage=usage or Usage(), billable=billable, first=self._first)
        # In a task of its own: a client who leaves at this very moment does not tear it.
        await self._core.background.complete(book(self._core, self._job, self._lane.choice, ending))

    def _abandon(self, status: int, outcome: str, *, billable: bool) -> None:
        """The request ends before the engine does: stop it there and book what it computed, in the background."""
        if self._over:
            return
        self._over = True
        self._core.background.spawn(self._end_abandoned(status, outcome, billable))

    async def _end_abandoned(self, status: int, outcome: str, billable: bool) -> None:
        usage = self._meter.usage
        try:
            # First ask, then hang up: an engine that sees the connection go forgets the request.
            told, rest = await self._lane.stop()
            usage = told or self._usage_of(rest) or usage
        finally:
            self._lane.close()
            ending = Ending(status=status, outcome=outcome, usage=usage, billable=billable, first=self._first)
            await book(self._core, self._job, self._lane.choice, ending)

    def _usage_of(self, rest: bytes | None) -> Usage | None:
        """What the end of the answer says, when the engine had finished before it was told to stop."""
        if rest is None or self._lane.response is None:
            return None
        if self._lane.response.headers.get("content-type", "").startswith("text/event-stream"):
            self._meter.feed(rest)
            return self._meter.usage
        return self._dialect.usage_of(rest)
