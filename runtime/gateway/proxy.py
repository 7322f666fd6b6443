"""One request on its way through an engine, ended exactly once on every exit.

The client is watched from the first byte on. Whatever happens, the upstream connection is closed, the limit is settled
and one usage record is written; where there is a last byte for the client, before it.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from runtime.base import asgi, logs
from runtime.gateway import abandoned, http, sse
from runtime.gateway.asks import BROKEN, ERROR, NOTHING, Ask, Outcome
from runtime.gateway.balance import Choice
from runtime.gateway.booking import CLIENT_GONE, CUT, Ending, Job, book, record_of
from runtime.gateway.core import Core
from runtime.gateway.engine_http import Call
from runtime.gateway.finals import Unsettled
from runtime.gateway.histograms import Gaps
from runtime.gateway.lane import BUSY, Lane, failed
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.stickiness import sticky_of
from runtime.gateway.upstream import BROKEN as BROKE
from runtime.gateway.upstream import read_all, usage_told
from runtime.wire import inference
from runtime.wire.inference import Usage

log = logs.get(__name__)

_PASSED_ERRORS: Final = frozenset({400, 413, 422, 504})
_NOT_SERVED: Final = frozenset({404, 405, 501})  # the engine has no such path
_STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_LEFT: Final = "left"  # the client
_LATE: Final = "late"
_GOODBYE_SECONDS: Final = 1.0
_ROUNDING_SECONDS: Final = 0.001  # engines are told whole milliseconds
_GRACE_SECONDS: Final = 2.0  # for an engine to end a request by itself when its deadline has passed


class Dialect(msgspec.Struct, frozen=True):
    """What the proxy must know of the caller's dialect."""

    error_body: Callable[[Refusal], bytes]
    is_error: Callable[[bytes], bool]
    usage_of: Callable[[bytes], Usage]


def _ask(core: Core, request: asgi.Request, job: Job) -> Ask:
    """What is needed to find a replica for ``job``."""
    tenant = job.caller.tenant
    return Ask(
        job.endpoint,
        job.body,
        tenant_id=tenant.id,
        salt=tenant.prefix_salt,
        weight=tenant.weight,
        priority=job.priority,
        since=job.started,
        until=job.until,
        sticky=sticky_of(job.endpoint.sticky, job, request),
        draw=core.traffic.draw(),
        picked=job.picked,
    )


def _note_sent(core: Core, job: Job, choice: Choice) -> None:
    """An engine is about to be asked: on disk goes what ``job`` has come to if this process dies now.

    By way of the outbox, as the request itself. No method: a cycle in every request keeps the collector busy.
    """
    core.journal.note_open(record_of(core, job, choice, CUT), soon=True)


class Exchange:
    """One job, from choosing a replica to the usage record. Use once."""

    def __init__(self, core: Core, request: asgi.Request, job: Job, dialect: Dialect) -> None:
        self._core = core
        self._request = request
        self._job = job
        self._dialect = dialect
        ask = _ask(core, request, job)
        self._deadline = ask.until
        self._lane = Lane(core, ask, job.upstream_id, functools.partial(_note_sent, core, job))
        self._meter = sse.Meter()
        self._first: float | None = None
        self._done_at: float | None = None  # the engine's last byte had come
        self._gaps = Gaps()
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
            end = await self._work_while_wanted()
            if end is _LEFT:
                self._abandon(CLIENT_GONE, "aborted", billable=True)
            elif end is _LATE:
                # The engine was told the deadline and has not kept it.
                self._abandon(504, "error", billable=self._job.impatient)
                await self._say_late()
        except Refusal as refusal:
            if self._lane.broke:
                self._abandon(refusal.status, "error", billable=False)
            self._end(refusal.status, "error", billable=refusal.status < 500)
            raise
        except asyncio.CancelledError:
            # Only the server cancels, when it is stopping and will not wait longer; this is the top of the task.
            self._abandon(503, "error", billable=False)
            await self._say_goodbye()
        finally:
            # What is not accounted for by now is a defect of ours, and not billed.
            self._abandon(500, "error", billable=False)

    async def _work_while_wanted(self) -> str:
        """Do the work; return whether the client has left first, or the deadline passed, or "".

        One timer and one callback: contexts and tasks for it would cost more than the rest of this class.
        """
        task, end, scope = asyncio.current_task(), "", self._request.scope

        def interrupt(why: str) -> None:
            nonlocal end
            if not end and task is not None:
                end = why
                task.cancel()

        left = self._deadline - self._core.clock.monotonic() + _GRACE_SECONDS
        timer = asyncio.get_running_loop().call_later(left, interrupt, _LATE)
        told = http.watch(scope, lambda: interrupt(_LEFT))
        try:
            if told:
                await self._work()
            elif not await asgi.race(self._work(), self._request.disconnected()):
                return _LEFT
        except asyncio.CancelledError:
            if end and task is not None and not task.uncancel():
                return end
            raise
        finally:
            timer.cancel()
            http.watch(scope, None)
        return ""

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
            inference.HEADER_PRIORITY: job.priority,
            inference.HEADER_TENANT_WEIGHT: f"{job.caller.tenant.weight:g}",
            inference.HEADER_GATEWAY: self._core.link.gateway_id,
        }

    # --- passing on ---

    async def _pass_answer(self, response: Call, kind: str) -> None:
        try:
            body = await read_all(response, self._core.settings.max_answer_bytes)
        except BROKE as exc:
            self._lane.broke = True
            self._lane.finish(BROKEN)
            raise failed("The model's engine failed before its answer was complete. Please try again.") from exc
        self._done_at = self._core.clock.monotonic()
        self._end(200, "ok", usage=self._dialect.usage_of(body), soon=True)
        request, content_type = self._request, kind.encode("latin-1")
        headers = [(b"content-type", content_type), *self._job.lease.headers, *request.extra]
        if http.answer(request.scope, 200, headers, body, self._core.outbox):
            request.started = True
            return
        self._core.journal.write_out()
        await self._within(request.respond(200, body, content_type, self._job.lease.headers))

    async def _pass_error(self, response: Call) -> None:
        status = response.status
        try:
            body = await read_all(response, self._core.settings.max_answer_bytes)
        except BROKE:
            body = b""
        self._meter.usage = usage_told(response.headers)
        if status in _PASSED_ERRORS and self._dialect.is_error(body):
            self._lane.finish(NOTHING)
            self._end(status, "error", billable=status < 500 or (status == 504 and self._late()))
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
        if status in _NOT_SERVED:
            self._lane.finish(NOTHING)
            raise Refusal(
                Reason.BAD_REQUEST,
                400,
                f"This model does not answer {self._job.operation.replace('.', ' ')}.",
                code="unsupported_operation",
                param="model",
            )
        log.error("engine answered with an error", status=status, replica=self._lane.replica_id)
        self._lane.finish(ERROR)
        raise failed("The model's engine failed on this request.")

    async def _pass_stream(self, response: Call) -> None:
        await self._request.start(200, _STREAM_HEAD + self._job.lease.headers)
        self._streaming = True
        self._last_write = self._core.clock.monotonic()
        ticker = asyncio.create_task(self._keep_alive())
        response.sink = self._pour
        try:
            while chunk := await response.read():
                data = self._meter.feed(chunk)
                if data:
                    self._note_write()
                    await self._pass_piece(data)
        except (*BROKE, sse.LineTooLong) as exc:
            log.warning("stream cut", replica=self._lane.replica_id, request=self._job.request_id, error=str(exc))
            self._lane.finish(BROKEN)
        finally:
            ticker.cancel()
            response.sink = None
        self._done_at = self._core.clock.monotonic()
        if self._meter.done and not self._meter.failed:
            self._end(200, "ok", usage=self._meter.usage)
        else:
            self._lane.finish(ERROR if self._meter.failed else BROKEN)
            self._core.metrics.cut()
            if not self._meter.failed:
                self._abandon(200, "error", billable=False)
            self._end(200, "error", billable=self._late())
            await self._within(self._say_cut("The model's engine failed before the answer was complete."))
        self._streaming = False
        await self._within(self._request.write(b"", more=False))

    def _pour(self, chunk: bytes) -> bool:
        """A piece comes while the stream waits for one: pass it on at once if it is like most; False: it is not.

        Waking the request's task for each piece would double what it costs.
        """
        if self._first is None or (connection := http.stream_of(self._request.scope)) is None:
            return False
        data = self._meter.plain(chunk)
        if data is None:
            return False
        self._note_write()
        http.pass_on(connection, data)
        return True

    async def _pass_piece(self, data: bytes) -> None:
        connection = http.stream_of(self._request.scope)
        if connection is not None:
            http.pass_on(connection, data)
        else:
            await self._within(self._request.write(data))

    def _note_write(self) -> None:
        """A piece goes to the client now."""
        now = self._core.clock.monotonic()
        if self._first is None:
            if self._meter.events:
                self._first = now
                self._core.limiter.correct(self._job.lease, self._meter.usage.prompt_tokens)
        else:
            self._gaps.see(now - self._last_write)
        self._last_write = now

    async def _within(self, write: Awaitable[None]) -> None:
        """Write to the client; one that takes nothing for too long counts as gone."""
        if http.writable(self._request.scope):
            await write
            return
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
        await self._cut_short("The gateway was stopped before the answer was complete. Please try again.")

    async def _say_late(self) -> None:
        if not self._request.started:
            raise Refusal(Reason.DEADLINE, 504, "The request's deadline passed before the model answered.")
        await self._cut_short("The request's deadline passed before the answer was complete.")

    async def _cut_short(self, message: str) -> None:
        """End a stream that the client has part of."""
        if not self._streaming:
            return
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._say_cut(message)
                await self._request.write(b"", more=False)
        except TimeoutError:
            return

    # --- ending ---

    def _end(
        self, status: int, outcome: str, *, usage: Usage | None = None, billable: bool = True, soon: bool = False
    ) -> None:
        """The engine is done with the request: book it (``soon``: before what the outbox sends)."""
        if self._over:
            return
        self._over = True
        usage = usage or self._meter.usage
        ending = Ending(status=status, outcome=outcome, usage=usage, billable=billable, first=self._first)
        try:
            self._tell(usage)
        finally:
            self._book(ending, soon=soon)

    def _book(self, ending: Ending, *, soon: bool = False) -> None:
        """Account for the request, and let go; whatever goes wrong with one, the other is done."""
        try:
            book(self._core, self._job, self._lane.choice, ending, soon=soon)
        finally:
            self._lane.close()
        for replica in self._lane.lost:
            self._core.background.spawn(abandoned.book_lost(self._core, self._job, self._lane, replica))

    def _late(self) -> bool:
        """The caller's own deadline has passed: no fault of the platform, or nobody who names one would ever pay."""
        return self._job.impatient and self._core.clock.monotonic() >= self._deadline - _ROUNDING_SECONDS

    def _tell(self, usage: Usage) -> None:
        """What this request has shown of its deployment: latencies, and that it works."""
        lane, first, done = self._lane, self._first, self._done_at
        if lane.choice is None:
            return
        if done is not None:
            steps = usage.completion_tokens - 1
            lane.finish(
                Outcome(
                    ttft_ms=None if first is None else (first - lane.sent) * 1000,
                    itl_ms=None if first is None or steps < 1 else (done - first) * 1000 / steps,
                    e2e_ms=(done - lane.sent) * 1000,
                    completion=usage.completion_tokens,
                )
            )
        self._core.metrics.took(lane.choice.variant.deployment_id, self._gaps)

    def _abandon(self, status: int, outcome: str, *, billable: bool) -> None:
        """The request ends before the engine does: stop it there and book what it computed, in the background."""
        if self._over:
            return
        self._over = True
        self._core.background.spawn(self._end_abandoned(status, outcome, billable))

    async def _end_abandoned(self, status: int, outcome: str, billable: bool) -> None:
        ending = Ending(status=status, outcome=outcome, usage=self._meter.usage, billable=billable, first=self._first)
        settled: Ending | None = ending  # whatever goes wrong, what was seen is booked
        try:
            settled = await abandoned.settle(
                self._core, self._job, self._lane, self._meter, self._dialect.usage_of, ending
            )
        except Unsettled:
            settled = None
        finally:
            if settled is not None:
                self._book(settled)
