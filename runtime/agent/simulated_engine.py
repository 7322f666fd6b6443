"""A stand-in for an engine on a simulated GPU: no model, no GPU, every phase. ``--spec FILE`` as a real engine.

It exists so that placement, failover and rollout can be shown and tested at scale without hardware. It never passes
for more: it says what it is in its state, in every answer and in a response header, and it runs only where the agent
was started with ``MILLPOND_SIMULATE_ENGINES=1``. The state folder may hold ``simulated.json`` to set its pace:
``{"load_seconds": 0.5, "answer_tokens": 16, "token_seconds": 0.01}``.
"""

import asyncio
import contextlib
import hmac
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn

from runtime.agent import files
from runtime.base import asgi, lifeline, listening, logs
from runtime.base.clock import Clock, SystemClock
from runtime.wire import codec, inference
from runtime.wire.assignments import World
from runtime.wire.inference import EngineAddress, EngineLoad, EngineSpec, EngineState, Usage
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, Phase

log = logs.get(__name__)
MAX_BODY: Final = 8 * 1024 * 1024
WORDS: Final = ("This ", "answer ", "is ", "simulated: ", "no ", "model ", "runs ", "here. ")
LABEL: Final = (b"x-millpond-simulated", b"1")
MESSAGE: Final = "A simulated engine: no model runs here."


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take, in seconds."""

    load_seconds: float = 0.5
    answer_tokens: int = 16
    token_seconds: float = 0.01


class SimulatedEngine:
    """The phases and the private API of an engine, without the engine."""

    def __init__(self, spec: EngineSpec, pace: Pace, clock: Clock) -> None:
        self._spec = spec
        self._pace = pace
        self._clock = clock
        self._began = clock.monotonic()
        self._draining = False
        self.on_drain: Callable[[], None] = lambda: None
        self._running = 0
        self._requests = 0
        self._tokens = 0
        self._router = asgi.Router()
        for method, path, handler in (
            ("GET", inference.PATH_HEALTH, self._health),
            ("GET", inference.PATH_STATE, self._state),
            ("GET", inference.PATH_LOAD, self._load),
            ("POST", inference.PATH_DRAIN, self._drain),
            ("DELETE", inference.PATH_REQUEST, self._cancel),
            ("GET", "/v1/models", self._models),
            ("POST", "/v1/completions", self._complete),
            ("POST", "/v1/chat/completions", self._complete),
        ):
            self._router.add(method, path, handler)

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        handler, params, _ = self._router.find(str(scope["method"]), str(scope["path"]))
        request = asgi.Request(scope, receive, send, params)
        given = request.header("authorization").removeprefix("Bearer ").encode()
        if request.path != inference.PATH_HEALTH and not hmac.compare_digest(given, self._spec.token.encode()):
            await request.json(401, _error("A valid bearer token is required.", "invalid_api_key"))
        elif handler is None:
            await request.json(404, _error(f"A simulated engine has no {request.path}.", "not_found"))
        else:
            with contextlib.suppress(asgi.ClientGone):
                await handler(request)

    @property
    def idle(self) -> bool:
        """True when no request runs."""
        return self._running == 0

    def drain(self) -> None:
        """Take nothing new."""
        self._draining = True

    @property
    def phase(self) -> Phase:
        """Loading for a while, then ready, until it drains."""
        if self._draining:
            return Phase.DRAINING
        passed = self._clock.monotonic() - self._began
        if passed < self._pace.load_seconds:
            return Phase.LOADING if passed < 0.8 * self._pace.load_seconds else Phase.WARMING
        return Phase.READY

    def state(self) -> EngineState:
        """What the agent is told."""
        total = self._spec.memory_bytes
        passed = self._clock.monotonic() - self._began
        return EngineState(
            replica_id=self._spec.replica_id,
            generation=self._spec.generation,
            phase=self.phase,
            reason="Simulated",
            message=f"{MESSAGE}{_ranks(self._spec.world)}",
            progress=min(1.0, passed / self._pace.load_seconds) if self._pace.load_seconds else 1.0,
            max_model_len=self._spec.config.max_model_len or 4096,
            ledger=MemoryLedger(
                total_bytes=total,
                weights_bytes=total // 2,
                kv_total_bytes=total // 4,
                watermarks=self._spec.config.watermarks,
            ),
            stats=EngineStats(
                num_requests_running=self._running,
                max_num_seqs=self._spec.config.max_num_seqs,
                requests_total=self._requests,
                completion_tokens_total=self._tokens,
            ),
        )

    async def _health(self, request: asgi.Request) -> None:
        await request.json(200 if self.phase is Phase.READY else 503, {"status": self.phase.value}, [LABEL])

    async def _state(self, request: asgi.Request) -> None:
        await request.json(200, self.state(), [LABEL])

    async def _load(self, request: asgi.Request) -> None:
        seats = max(0, self._spec.config.max_num_seqs - self._running)
        load = EngineLoad(
            phase=self.phase,
            credits=seats,
            running=self._running,
            waiting=0,
            kv_free=1.0,
            tokens_total=self._tokens,
        )
        await request.json(200, load, [LABEL])

    async def _drain(self, request: asgi.Request) -> None:
        self.drain()
        if self._spec.world is not None and not self._spec.world.leads:
            self.on_drain()  # no request runs through it: it has ended as with its leader
        await request.json(202, {})

    async def _cancel(self, request: asgi.Request) -> None:
        await request.json(200, Usage())  # nothing is computed, so nothing is owed

    async def _models(self, request: asgi.Request) -> None:
        model = {"id": self._spec.served_name, "object": "model", "created": 0, "owned_by": "millpond-simulated"}
        await request.json(200, {"object": "list", "data": [model]}, [LABEL])

    async def _complete(self, request: asgi.Request) -> None:
        if self.phase is not Phase.READY:
            message = f"The engine takes no requests: it is {self.phase.value}."
            await request.json(503, _error(message, f"engine_{self.phase.value}"), [(b"retry-after", b"2")])
            return
        try:
            body = msgspec.json.decode(await request.body(MAX_BODY))
            asked = body.get("max_completion_tokens") or body.get("max_tokens") or self._pace.answer_tokens
            count = max(1, min(int(asked), self._pace.answer_tokens))
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError, asgi.BodyTooLarge):
            await request.json(400, _error("The body must be a JSON object with a whole max_tokens.", "invalid_body"))
            return
        self._running += 1
        self._requests += 1
        try:
            answer = _Answer(request.path, self._spec.served_name, count, int(self._clock.now()))
            if body.get("stream"):
                await self._stream(request, answer, metered=bool(request.header(inference.HEADER_METERED)))
            else:
                await self._clock.sleep(self._pace.token_seconds * count)
                self._tokens += count
                await request.json(200, answer.whole(), [LABEL])
        finally:
            self._running -= 1

    async def _stream(self, request: asgi.Request, answer: "_Answer", *, metered: bool) -> None:
        await request.start(200, [(b"content-type", b"text/event-stream"), LABEL])
        for done in range(1, answer.count + 1):
            await self._clock.sleep(self._pace.token_seconds)
            self._tokens += 1
            if metered:
                usage = Usage(prompt_tokens=1, completion_tokens=done)
                await request.write(inference.USAGE_COMMENT + codec.encode(usage) + b"\n\n")
            await request.write(b"data: " + msgspec.json.encode(answer.piece(done)) + b"\n\n")
        await request.write(b"data: [DONE]\n\n", more=False)


def _ranks(world: World | None) -> str:
    """Which of several ranks this stands in for."""
    if world is None:
        return ""
    here = ", ".join(map(str, world.ranks))
    return f" It stands in for ranks {here} of {world.size}, which meet at {world.leader}."


class _Answer:
    """One answer in the shape of the path asked: a prompt of one token and ``count`` tokens that say what this is."""

    def __init__(self, path: str, model: str, count: int, created: int) -> None:
        self._chat = path.endswith("/chat/completions")
        self._base = {"id": f"simulated-{secrets.token_hex(8)}", "created": created, "model": model}
        self.count = count

    def _word(self, index: int) -> str:
        return WORDS[(index - 1) % len(WORDS)]

    def whole(self) -> dict[str, Any]:
        text = "".join(self._word(index) for index in range(1, self.count + 1))
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        usage = {"prompt_tokens": 1, "completion_tokens": self.count, "total_tokens": 1 + self.count}
        kind = "chat.completion" if self._chat else "text_completion"
        choice = {"index": 0, "finish_reason": "length", "logprobs": None} | content
        return self._base | {"object": kind, "choices": [choice], "usage": usage}

    def piece(self, index: int) -> dict[str, Any]:
        content = {"delta": {"role": "assistant", "content": self._word(index)}} if self._chat else {}
        text = {} if self._chat else {"text": self._word(index)}
        finish = "length" if index == self.count else None
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return self._base | {"object": kind, "choices": [{"index": 0, "finish_reason": finish} | content | text]}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "simulated_engine", "code": code, "param": None}}


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(spec: EngineSpec) -> None:
    """Run until SIGTERM; requests that run are finished."""
    clock = SystemClock()
    pace = files.read_struct(Path(spec.address_file).parents[3] / "simulated.json", Pace) or Pace()
    engine = SimulatedEngine(spec, pace, clock)
    stop = asyncio.Event()
    engine.on_drain = stop.set
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with listening.bind(spec.host, spec.port) as sock:
        sock.listen(256)
        server = _Server(uvicorn.Config(engine, log_level="warning", lifespan="off", access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        address = EngineAddress(
            url=f"http://{spec.advertise_host}:{sock.getsockname()[1]}", pid=os.getpid(), started=clock.now()
        )
        files.write_struct(Path(spec.address_file), address)
        log.info("simulated_engine_listens", replica=spec.replica_id, message=MESSAGE)
        await stop.wait()
        engine.drain()
        server.should_exit = True
        await serving


def main() -> int:
    """Entry point."""
    logs.configure(process="simulated-engine", json=True)
    lifeline.watch()
    if len(sys.argv) != 3 or sys.argv[1] != "--spec":
        sys.stderr.write("usage: python -m runtime.agent.simulated_engine --spec FILE\n")
        return 2
    spec = codec.decode(Path(sys.argv[2]).read_bytes(), EngineSpec)
    asyncio.run(serve(spec))
    return 0


if __name__ == "__main__":
    sys.exit(main())
