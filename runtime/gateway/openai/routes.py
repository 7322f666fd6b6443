"""Handlers of ``/v1/*``: from a request to a checked, admitted job."""

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.base import asgi
from runtime.gateway import auth, http, revisions
from runtime.gateway.auth import Caller, authenticate
from runtime.gateway.booking import Job
from runtime.gateway.core import Core
from runtime.gateway.identity import Identity, trace_of
from runtime.gateway.openai import answers, checks, errors, models
from runtime.gateway.proxy import Dialect, Exchange
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.stickiness import deadline_of
from runtime.gateway.table import Snapshot

DIALECT = Dialect(error_body=errors.body_of, is_error=errors.is_error, usage_of=answers.usage_of)

_MAX_NETWORKS: Final = 10_000

Check = Callable[[bytes, checks.Bounds], checks.Ask]


class Routes:
    """The dialect's handlers on one gateway."""

    def __init__(self, core: Core) -> None:
        self._core = core
        settings = core.settings
        self._bounds = checks.Bounds(settings.max_json_depth, settings.max_choices, settings.max_stop_sequences)
        self._trusted = auth.networks_of([text for text in settings.trusted_proxies.split(",") if text.strip()])
        self._networks: dict[str, tuple[list[str], tuple[auth.Network, ...]]] = {}

    def add_to(self, router: asgi.Router) -> None:
        """Register the paths."""
        router.add("GET", "/v1/models", self.list_models)
        router.add("GET", "/v1/models/{name}", self.get_model)
        router.add("GET", "/v1/models/{owner}/{name}", self.get_model)
        router.add("POST", "/v1/chat/completions", self.chat)
        router.add("POST", "/v1/completions", self.complete)
        router.add("POST", "/v1/embeddings", self.embed)

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

    async def embed(self, request: asgi.Request) -> None:
        """``POST /v1/embeddings``."""
        await self._infer(request, checks.check_embedding, "/v1/embeddings")

    def _enter(self, request: asgi.Request) -> tuple[Snapshot, Caller]:
        snapshot = self._core.snapshot()
        caller = authenticate(request.header("authorization"), snapshot, self._core.clock.now())
        if caller.key.allowed_addresses:
            address = auth.client_address(request.client, request.header("x-forwarded-for"), self._trusted)
            auth.check_address(caller, self._networks_of(caller), address)
        return snapshot, caller

    def _networks_of(self, caller: Caller) -> tuple[auth.Network, ...]:
        """The key's networks, parsed once for each text they have."""
        texts = caller.key.allowed_addresses
        known = self._networks.get(caller.key.id)
        if known is None or known[0] != texts:
            if len(self._networks) >= _MAX_NETWORKS:
                self._networks.clear()
            known = self._networks[caller.key.id] = (texts, auth.networks_of(texts))
        return known[1]

    async def _infer(self, request: asgi.Request, check: Check, path: str) -> None:
        core, started = self._core, self._core.clock.monotonic()
        identity: Identity = request.scope["identity"]
        snapshot, caller = self._enter(request)  # strangers do not get to send a body
        self._check_room()
        core.running.add(identity.record_id)
        try:
            ask = check(await self._read_body(request), self._bounds)
            key = caller.key
            if core.snapshot() is not snapshot or key.expires_at is not None or key.previous_digest:
                snapshot, caller = self._enter(request)  # again: the key may have ended while the body came in
            endpoint = models.resolve(snapshot, caller, ask.model)
            priority = auth.priority_of(request.header(auth.HEADER_CRITICALITY), caller.key)
            picked = revisions.picked(request.header(revisions.HEADER_REVISION), caller, endpoint)
            patience = deadline_of(request, core.settings.request_max_seconds)
            body, trace = ask.body_for(endpoint.name), trace_of(request)
            demand = ask.demand(endpoint.max_model_len, core.settings.default_completion_tokens)
            lease = await core.limiter.admit(caller, demand, endpoint.price)
            job = Job(
                operation=ask.operation,
                path=path,
                body=body,
                caller=caller,
                endpoint=endpoint,
                lease=lease,
                record_id=identity.record_id,
                request_id=identity.request_id,
                upstream_id=identity.upstream_id,
                trace=trace,
                priority=priority,
                started_at=core.clock.now(),
                started=started,
                until=started + patience,
                impatient=patience < core.settings.request_max_seconds,
                picked=picked,
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
        if (whole := http.whole_body(request.scope, settings.max_body_bytes)) is not None:
            return whole
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
