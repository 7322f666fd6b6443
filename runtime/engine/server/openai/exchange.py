"""One request's way through the engine: submit, wait for news, answer; and cancel when the client has gone."""

import asyncio
import contextlib
import dataclasses
import threading
from typing import Any, Final

import msgspec

from runtime.base import asgi
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.jobs import Event, GenerationRequest, Job, JobEnded, Output
from runtime.engine.server.openai.answers import AnswerHead, error_body
from runtime.engine.server.openai.choices import ChoiceWriter
from runtime.wire.inference import HEADER_USAGE, USAGE_COMMENT

_STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_KEEP_ALIVE_SECONDS: Final = 10.0
_encode = msgspec.json.Encoder().encode


class Mailbox:
    """News of one job, from the engine's thread to this event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._news: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, _job: Job, event: Event) -> None:
        """Called by the engine; the loop is woken once for all that came together."""
        with self._lock:
            self._news.append(event)
            if len(self._news) > 1:
                return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def take(self, silence: float | None = None) -> list[Event]:
        """All news since the last call, waiting for the first; empty after ``silence`` seconds of silence."""
        try:
            async with asyncio.timeout(silence):
                await self._arrived.wait()
        except TimeoutError:
            return []
        self._arrived.clear()
        with self._lock:
            found, self._news = self._news, []
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange:
    """Everything about one request that is needed to answer it. Use once."""

    engine: CausalEngine
    request: GenerationRequest
    head: AnswerHead
    writers: list[ChoiceWriter]
    stream: bool
    include_usage: bool
    metered: bool

    async def run(self, http: asgi.Request) -> None:
        """Answer ``http``.

        Raises:
            errors.RequestError: refused or failed before the first byte of the answer.
            asgi.ClientGone: the client left; its work is cancelled.
        """
        mailbox = Mailbox()
        job = self.engine.submit(self.request, mailbox.put)
        try:
            answer = self._stream(http, job, mailbox) if self.stream else self._whole(http, job, mailbox)
            if not await asgi.race(answer, http.disconnected()):
                raise asgi.ClientGone
        finally:
            if not job.ended:
                self.engine.cancel(self.request.request_id)

    async def _whole(self, http: asgi.Request, job: Job, mailbox: Mailbox) -> None:
        while True:
            for event in await mailbox.take():
                if isinstance(event, Output):
                    self.writers[event.index].add(event, job)
                elif event.error is not None:
                    self._tell_usage(http, job)
                    raise event.error
                else:
                    choices = [writer.whole() for writer in self.writers]
                    await http.json(200, self.head.whole(choices, job.usage()))
                    return

    async def _stream(self, http: asgi.Request, job: Job, mailbox: Mailbox) -> None:
        while True:
            news = await mailbox.take(_KEEP_ALIVE_SECONDS)
            if not http.started:
                if news and isinstance(news[0], JobEnded) and news[0].error is not None:
                    self._tell_usage(http, job)
                    raise news[0].error  # nothing was sent yet: an honest status is still possible
                await http.start(200, _STREAM_HEAD)
            if not news:
                await http.write(_KEEP_ALIVE)
                continue
            data, ended = self._events(job, news)
            await http.write(data, more=not ended)
            if ended:
                return

    def _tell_usage(self, http: asgi.Request, job: Job) -> None:
        """The answer will be an error: its head says what was computed all the same."""
        if self.metered:
            http.extra.append((HEADER_USAGE.encode(), _encode(job.usage())))

    def _events(self, job: Job, news: list[Event]) -> tuple[bytes, bool]:
        """``news`` as bytes of the stream, and whether that is its end."""
        parts: list[bytes] = []
        if self.metered:
            parts.append(USAGE_COMMENT + _encode(job.usage()) + b"\n\n")
        for event in news:
            if isinstance(event, Output):
                parts.extend(self._output(job, event))
            elif event.error is not None:
                parts.append(_data(error_body(event.error)))  # in band, and no [DONE]: this answer is not whole
                return b"".join(parts), True
            else:
                if self.include_usage:
                    parts.append(_data(self.head.usage_chunk(job.usage())))
                parts.append(b"data: [DONE]\n\n")
                return b"".join(parts), True
        return b"".join(parts), False

    def _output(self, job: Job, output: Output) -> list[bytes]:
        writer = self.writers[output.index]
        opening = writer.take_opening()
        events = [_data(self.head.chunk(opening))] if opening else []
        events.extend(_data(self.head.chunk(body)) for body in writer.events(output, job))
        return events


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
