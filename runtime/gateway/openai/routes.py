"""Handlers of ``/v1/*``: from a request to a checked, admitted job."""

import asyncio
from collections.abc import Callable

from runtime.base import asgi
from runtime.gateway.auth import Caller, authenticate
from runtime.gateway.booking import Job
from runtime.gateway.core import Core
from runtime.gateway.identity import Identity, trace_of
from runtime.gateway.openai import answers, checks, errors, models
from runtime.gateway.proxy import Dialect, Exchange
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.table import Snapshot

DIALECT = Dialect(error_body=errors.body_of, is_error=errors.is_error, usage_of=answers.usage_of)

Check = Callable[[bytes, checks.Bounds], checks.Ask]


class Routes:
    """The dialect's handlers on one gateway."""

    def __init__(self, core: Core) -> None:
        self._core = core
        settings = core.settings
        self._bounds = checks.Bounds(settings.max_json_depth, settings.max_choices, settings.max_stop_sequences)

    def add_to(self, router: asgi.Router) -> None:
        """Register the paths."""
        router.add("GET", "/v1/models", self.list_models)
        router.add("GET", "/v1/models/{name}", self.get_model)
        router.add("GET", "/v1/models/{owner}/{name}", self.get_model)
        router.add("POST", "/v1/chat/completions", self.chat)
        router.add("POST", "/v1/completions", self.complete)

    async def list_models(self, request: asgi.Request) -> None:
        """``GET /v1/models``."""
        snapshot, caller = self._enter(request)
        await request.json(200, models.listing(snapshot, caller))

    async def get_model(self, request: asgi.Request) -> None:
        """``GET /v1/models/{name}`` and ``GET /v1/models/{owner}/{name}``."""
        snapshot, caller = self._enter(request)
        owner = request.params.get("owner")
        name = f"{owner}/{request.params['name']}" if owner else request.params["name"]
        await request.json(200, models.entry(snapshot, name, models.resolve(snapshot, caller, name)))

    async def chat(self, request: asgi.Request) -> None:
        """``POST /v1/chat/completions``."""
        await self._infer(request, checks.check_chat, "/v1/chat/completions")

    async def complete(self, request: asgi.Request) -> None:
        """``POST /v1/completions``."""
        await self._infer(request, checks.check_completion, "/v1/completions")

    def _enter(self, request: asgi.Request) -> tuple[Snapshot, Caller]:
        snapshot = self._core.snapshot()
        return snapshot, authenticate(request.header("authorization"), snapshot, self._core.clock.now())

    async def _infer(self, request: asgi.Request, check: Check, path: str) -> None:
        core, started = self._core, self._core.clock.monotonic()
        identity: Identity = request.scope["identity"]
        self._enter(request)  # strangers do not get to send a body
        self._check_room()
        core.running.add(identity.record_id)
        try:
            ask = check(await self._read_body(request), self._bounds)
            snapshot, caller = self._enter(request)  # again: the key may have been revoked while the body came in
            endpoint = models.resolve(snapshot, caller, ask.model)
            bound = ask.token_bound(endpoint.max_model_len, core.settings.default_completion_tokens)
            job = Job(
                operation=ask.operation,
                path=path,
                body=ask.body_for(endpoint.name),
                caller=caller,
                endpoint=endpoint,
                lease=await core.limiter.admit(caller, bound),
                record_id=identity.record_id,
                request_id=identity.request_id,
                upstream_id=identity.upstream_id,
                trace=trace_of(request),
                started_at=core.clock.now(),
                started=started,
            )
            await Exchange(core, request, job, DIALECT).run()
        finally:
            core.running.discard(identity.record_id)

    def _check_room(self) -> None:
        core = self._core
        if core.journal.full:
            raise Refusal(
                Reason.JOURNAL_FULL,
                503,
                "The gateway cannot record usage: its disk or its journal is full.",
                retry_after=30,
            )
        if len(core.running) >= core.settings.max_in_flight:
            raise Refusal(Reason.OVERLOADED, 503, "The gateway serves as many requests as it can.", retry_after=1)

    async def _read_body(self, request: asgi.Request) -> bytes:
        settings = self._core.settings
        try:
            async with asyncio.timeout(settings.body_timeout_seconds):
                return await request.body(settings.max_body_bytes)
        except asgi.BodyTooLarge:
            raise Refusal(
                Reason.TOO_LARGE,
                413,
                f"The body is larger than {settings.max_body_bytes} bytes.",
                code="body_too_large",
            ) from None
        except TimeoutError:
            raise Refusal(
                Reason.BODY_TIMEOUT, 408, f"The body did not arrive within {settings.body_timeout_seconds:g} s."
            ) from None
