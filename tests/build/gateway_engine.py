"""An engine as a gateway meets it: it answers by script, counts what it computes, and fails when told to."""

import asyncio
import json
from typing import Any

from runtime.base import asgi
from runtime.wire import codec
from runtime.wire.inference import HEADER_CREDITS, HEADER_LOAD, PATH_LOAD, PATH_WAKE, EngineLoad, Usage
from runtime.wire.reports import Phase

ENGINE_TOKEN = "engine-token-0123456789"


class Gate:
    """Open: everyone passes. Closed: as many pass as :meth:`allow` lets."""

    def __init__(self) -> None:
        self._open = True
        self._changed = asyncio.Condition()
        self._allowed = 0

    def set(self) -> None:
        self._open = True
        self._wake()

    def clear(self) -> None:
        self._open = False

    def allow(self, count: int) -> None:
        """Let ``count`` more waits through."""
        self._allowed += count
        self._wake()

    async def wait(self) -> None:
        """Return when it is this caller's turn."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open or self._allowed > 0)
            if not self._open:
                self._allowed -= 1

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._waking = asyncio.ensure_future(notify())


class FakeEngine:
    """Answers "tok0 tok1 ..." and counts; waits before each token while ``gate`` is closed.

    With ``credits`` it grants so many requests at one time and says how full it is; ``stuck`` stops its token count.
    ``mode`` is one of "answer", "busy" (503), "fail" (500), "refuse" (400) or "cut" (the connection breaks off).
    """

    def __init__(self, tokens: int = 3) -> None:
        self.tokens = tokens
        self.mode = "answer"
        self.cut_after = 1
        self.padding = 0  # characters added to each token
        self.deaf = 0  # so many cancels are answered as if the request were not known yet
        self.gate = Gate()
        self.requests: list[dict[str, Any]] = []
        self.computed: dict[str, int] = {}
        self.ended: dict[str, int] = {}  # what requests came to, as engines remember it
        self.silent = False  # cancels are not answered
        self.cancelled: list[str] = []
        self.hung_up: list[str] = []
        self.running = 0
        self.peak = 0
        self.credits: int | None = None
        self.kv_free = 1.0
        self.phase = Phase.READY
        self.stuck = False
        self.tokens_total = 0
        self.loads = 0  # so many times it was asked how it is

    def allow(self, tokens: int) -> None:
        """Let this many tokens be computed while the gate is closed."""
        self.gate.allow(tokens)

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        request = asgi.Request(scope, receive, send, {})
        if request.header("authorization") != f"Bearer {ENGINE_TOKEN}":
            await request.json(401, {"error": {"message": "no"}})
        elif request.method == "DELETE":
            await self._cancel(request)
        elif request.path == PATH_LOAD:
            self.loads += 1
            await (
                request.respond(200, codec.encode(self._load())) if self.credits is not None else self._unknown(request)
            )
        elif request.path == PATH_WAKE:
            self.phase = Phase.READY
            await request.json(200, {})
        else:
            await self._infer(request)

    def _load(self) -> EngineLoad:
        return EngineLoad(
            phase=self.phase,
            credits=self.credits or 0,
            running=self.running,
            waiting=0,
            kv_free=self.kv_free,
            tokens_total=self.tokens_total,
        )

    def _said(self) -> list[tuple[bytes, bytes]]:
        """What the heads of answers say of its load."""
        if self.credits is None:
            return []
        load = f"running={self.running};waiting=0;kv_free={self.kv_free:.2f}"
        return [(HEADER_CREDITS.encode(), str(self.credits).encode()), (HEADER_LOAD.encode(), load.encode())]

    async def _unknown(self, request: asgi.Request) -> None:
        await request.json(404, {"error": {"message": "no such path"}})

    async def _cancel(self, request: asgi.Request) -> None:
        request_id = request.path.rsplit("/", 1)[1]
        self.deaf -= 1
        if self.silent:
            await request.json(500, {"code": "internal", "message": "told to be silent"})
            return
        if request_id in self.ended and self.deaf < 0:
            usage = Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=self.ended[request_id])
            await request.respond(200, codec.encode(usage))
            return
        if request_id not in self.computed or self.deaf >= 0:
            await request.json(404, {"code": "not_found", "message": "unknown"})
            return
        self.cancelled.append(request_id)
        usage = Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=self.computed[request_id])
        await request.respond(200, codec.encode(usage))

    async def _infer(self, request: asgi.Request) -> None:
        body = json.loads(await request.body(10_000_000))
        headers = {name.decode(): value.decode() for name, value in request.scope["headers"]}
        self.requests.append({"headers": headers, "body": body, "path": request.path})
        if self.mode == "busy":
            await request.json(503, {"error": {"message": "full"}}, headers=[(b"retry-after", b"4")])
            return
        if self.mode in ("fail", "refuse"):
            error = {"message": "too long", "type": "invalid_request_error", "param": None, "code": "too_long"}
            await request.json(500 if self.mode == "fail" else 400, {"error": error})
            return
        request_id = headers.get("x-request-id") or f"direct-{len(self.requests)}"
        self.computed[request_id] = 0
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            work = self._stream(request, request_id, body) if body.get("stream") else self._whole(request, request_id)
            if not await asgi.race(work, request.disconnected()):
                self.hung_up.append(request_id)
        finally:
            self.running -= 1
            self.ended[request_id] = self.computed.pop(request_id, 0)

    async def _whole(self, request: asgi.Request, request_id: str) -> None:
        for _ in range(self.tokens):
            await self.gate.wait()
            self._count(request_id)
        if self.mode == "cut":
            await request.start(200, [(b"content-type", b"application/json"), (b"content-length", b"1000")])
            await request.write(b'{"half')
            raise ConnectionAbortedError("told to break off")
        message = {"role": "assistant", "content": "".join(f"tok{i} " for i in range(self.tokens))}
        await request.json(
            200,
            {**_shell("chat.completion"), "choices": [_choice(message=message)], "usage": self._usage()},
            headers=self._said(),
        )

    async def _stream(self, request: asgi.Request, request_id: str, body: dict[str, Any]) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream"), *self._said()])
        for number in range(self.tokens):
            if self.mode == "cut" and number >= self.cut_after:
                raise ConnectionAbortedError("told to break off")
            await self.gate.wait()
            await asyncio.sleep(0)  # to notice a client who has gone
            self._count(request_id)
            choice = _choice(delta={"content": f"tok{number} " + "." * self.padding}, finish=None)
            await request.write(
                self._comment(number + 1) + _event({**_shell("chat.completion.chunk"), "choices": [choice]})
            )
        last = {**_shell("chat.completion.chunk"), "choices": [_choice(delta={})]}
        tail = self._comment(self.tokens) + _event(last)
        if (body.get("stream_options") or {}).get("include_usage"):
            tail += _event({**_shell("chat.completion.chunk"), "choices": [], "usage": self._usage()})
        await request.write(tail + b"data: [DONE]\n\n", more=False)

    def _count(self, request_id: str) -> None:
        self.computed[request_id] += 1
        self.tokens_total += not self.stuck

    def _comment(self, completion: int) -> bytes:
        usage = Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=completion)
        return b": usage " + codec.encode(usage) + b"\n\n"

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": 7,
            "completion_tokens": self.tokens,
            "total_tokens": 7 + self.tokens,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


def _shell(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "m"}


def _choice(*, finish: str | None = "stop", **part: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": finish, **part}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
