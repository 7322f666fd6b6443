"""The ASGI application of one engine."""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from runtime.base import asgi, logs
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.lifecycle import Lifecycle, Loaded
from runtime.engine.server import metrics
from runtime.engine.server.load import TAKES_REQUESTS, LoadDesk
from runtime.engine.server.openai import operations
from runtime.engine.server.openai.answers import error_body
from runtime.engine.server.openai.operations import Serving
from runtime.wire import inference
from runtime.wire.reports import Phase

_log = logs.get(__name__)

_RETRY_AFTER_SECONDS: Final = 2
_OPEN_PATHS: Final = frozenset({inference.PATH_HEALTH})

Operation = Callable[[Serving, asgi.Request], Awaitable[None]]


class EngineApp:
    """Routes, authentication, and the boundary that turns errors into OpenAI's shape."""

    def __init__(self, lifecycle: Lifecycle, *, served_name: str, token: str, clock: Clock) -> None:
        self._lifecycle = lifecycle
        self._served_name = served_name
        self._token = token.encode()
        self._clock = clock
        self._created = int(clock.now())
        self._load = LoadDesk(lifecycle, clock)
        self._router = asgi.Router()
        for method, path, handler in (
            ("POST", "/v1/chat/completions", self._operation(operations.chat)),
            ("POST", "/v1/completions", self._operation(operations.completion)),
            ("POST", "/tokenize", self._operation(operations.tokenize)),
            ("POST", "/detokenize", self._operation(operations.detokenize)),
            ("POST", inference.PATH_SLEEP, self._sleep),
            ("POST", inference.PATH_WAKE, self._awaken),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{name}", self._model),
            ("GET", inference.PATH_HEALTH, self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", inference.PATH_STATE, self._state),
            ("GET", inference.PATH_LOAD, self._tell_load),
            ("POST", inference.PATH_DRAIN, self._drain),
            ("DELETE", inference.PATH_REQUEST, self._cancel),
        ):
            self._router.add(method, path, handler)

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        handler, params, allowed = self._router.find(str(scope["method"]), str(scope["path"]))
        if str(scope["path"]).startswith("/v1/"):
            send = self._load.tell(scope, send)
        request = asgi.Request(scope, receive, send, params)
        try:
            self._authenticate(request)
            if handler is None:
                raise _no_route(request, allowed)
            await handler(request)
        except errors.RequestError as exc:
            await self._refuse(request, exc)
        except asgi.ClientGone:
            return
        except Exception:  # the boundary of one request: logged, answered, and of no harm to the others
            reference = secrets.token_hex(6)
            _log.exception("request_failed", path=request.path, reference=reference)
            message = f"The engine failed on this request; the log has it under {reference}."
            await self._refuse(request, errors.RequestFailed(message, code="internal_error"))

    def _authenticate(self, request: asgi.Request) -> None:
        if not self._token or request.path in _OPEN_PATHS:
            return
        scheme, _, given = request.header("authorization").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token):
            return
        raise errors.Unauthenticated("A valid bearer token is required.", code="invalid_api_key")

    async def _refuse(self, request: asgi.Request, error: errors.RequestError) -> None:
        if request.started:
            return  # half an answer is out: closing the connection is all that is left
        headers = [] if error.retry_after is None else [(b"retry-after", str(error.retry_after).encode())]
        await request.json(error.status, error_body(error), headers)

    def _operation(self, operation: Operation) -> asgi.Handler:
        async def handle(request: asgi.Request) -> None:
            received_at = self._clock.monotonic()
            loaded = self._require_ready()
            serving = Serving(
                engine=loaded.engine,
                served_name=self._served_name,
                renderer=loaded.renderer,
                grammars=loaded.grammars,
                clock=self._clock,
                received_at=received_at,
            )
            async with loaded.slumber.awake(operations.deadline_of(request, received_at)):
                await operation(serving, request)

        return handle

    def _require_ready(self) -> Loaded:
        loaded, phase = self._lifecycle.loaded, self._lifecycle.phase
        if loaded is not None and phase in TAKES_REQUESTS:
            return loaded
        raise errors.Unavailable(
            f"The engine takes no requests: it is {phase.value}.",
            code=f"engine_{phase.value}",
            retry_after=_RETRY_AFTER_SECONDS,
        )

    def _model_body(self) -> dict[str, object]:
        loaded = self._lifecycle.loaded
        return {
            "id": self._served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "millpond",
            "max_model_len": loaded.engine.max_model_len if loaded else 0,
        }

    async def _models(self, request: asgi.Request) -> None:
        await request.json(200, {"object": "list", "data": [self._model_body()]})

    async def _model(self, request: asgi.Request) -> None:
        if request.params["name"] != self._served_name:
            raise errors.NotFound("The model does not exist here.", code="model_not_found", param="model")
        await request.json(200, self._model_body())

    async def _health(self, request: asgi.Request) -> None:
        phase = self._lifecycle.phase
        await request.json(200 if phase in (Phase.READY, Phase.ASLEEP) else 503, {"status": phase.value})

    async def _metrics(self, request: asgi.Request) -> None:
        await request.respond(200, metrics.render(self._lifecycle), metrics.CONTENT_TYPE)

    async def _state(self, request: asgi.Request) -> None:
        await request.json(200, self._lifecycle.state())

    async def _tell_load(self, request: asgi.Request) -> None:
        await request.json(200, self._load.load(request.header(inference.HEADER_GATEWAY)))

    async def _drain(self, request: asgi.Request) -> None:
        if self._lifecycle.loaded is None and self._lifecycle.phase not in TAKES_REQUESTS:
            raise errors.Unavailable("The engine is not ready, so there is nothing to drain.", code="not_ready")
        self._lifecycle.move(Phase.DRAINING)
        await request.json(202, self._lifecycle.state())

    async def _sleep(self, request: asgi.Request) -> None:
        await self._require_ready().slumber.sleep()
        await request.json(200, self._lifecycle.state())

    async def _awaken(self, request: asgi.Request) -> None:
        await self._require_ready().slumber.wake()
        await request.json(200, self._lifecycle.state())

    async def _cancel(self, request: asgi.Request) -> None:
        loaded, request_id = self._lifecycle.loaded, request.params["request_id"]
        usage = (loaded.engine.cancel(request_id) or loaded.engine.ended(request_id)) if loaded else None
        if usage is None:
            raise errors.NotFound("No such request is here, nor was lately.", code="request_not_found")
        await request.json(200, usage)


def _no_route(request: asgi.Request, allowed: list[str]) -> errors.RequestError:
    if allowed:
        return errors.MethodNotAllowed(f"{request.path} takes {', '.join(allowed)}.", code="method_not_allowed")
    return errors.NotFound(f"There is nothing at {request.path[:256]}.", code="not_found")
