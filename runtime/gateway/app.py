"""The ASGI application: lifespan, request id, CORS, routing, and every refusal in the caller's dialect."""

import secrets
from pathlib import Path
from typing import Final

from runtime.base import asgi, logs
from runtime.base.asgi import Receive, Scope, Send
from runtime.gateway import cors
from runtime.gateway.core import Core
from runtime.gateway.identity import Identity, identify
from runtime.gateway.openai import errors
from runtime.gateway.openai.routes import Routes
from runtime.gateway.refusals import Reason, Refusal

log = logs.get(__name__)

_LOCAL: Final = frozenset({"127.0.0.1", "::1", ""})
_METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


class App:
    """One gateway as an ASGI application."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._router = asgi.Router()
        Routes(core).add_to(self._router)
        self._router.add("GET", "/health", self._health)
        self._router.add("GET", "/metrics", self._metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._core.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._core.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = asgi.Request(scope, receive, send, {})
        identity = scope["identity"] = identify(request.header("x-request-id"))
        origin = request.header("origin")
        request.extra = [(b"x-request-id", identity.request_id.encode())]
        if origin:
            request.extra += cors.answer_headers(origin, self._origins())
        try:
            await self._route(request, origin)
        except asgi.ClientGone:
            return
        except Refusal as refusal:
            await self._refuse(request, refusal)
        except Exception:
            # Boundary of a request: the defect is recorded, the caller gets an error it can read, others go on.
            log.exception("request failed", request=identity.request_id, path=request.path)
            await self._refuse(request, Refusal(Reason.INTERNAL, 500, "The gateway failed on this request."))

    async def _route(self, request: asgi.Request, origin: str) -> None:
        most = self._core.settings.max_head_bytes
        head = sum([len(name) + len(value) for name, value in request.scope["headers"]])
        if head + len(request.scope["raw_path"]) + len(request.scope["query_string"]) > most:
            raise Refusal(Reason.HEADERS_TOO_LARGE, 431, f"The request's head is larger than {most} bytes.")
        if request.method == "OPTIONS":
            headers = cors.preflight_headers(origin, self._origins())
            await request.start(204, headers)
            await request.write(b"", more=False)
            return
        method = "GET" if request.method == "HEAD" else request.method
        handler, params, allowed = self._router.find(method, request.path)
        if handler is None and allowed:
            raise Refusal(
                Reason.METHOD_NOT_ALLOWED,
                405,
                f"This path takes {' or '.join(allowed)}.",
                headers=[(b"allow", ", ".join(allowed).encode())],
            )
        if handler is None:
            raise Refusal(Reason.ROUTE_NOT_FOUND, 404, "There is no such path. See /v1/models for what can be called.")
        request.params = params
        await handler(request)

    async def _refuse(self, request: asgi.Request, refusal: Refusal) -> None:
        self._core.metrics.refused(refusal.reason.value)
        identity: Identity = request.scope["identity"]
        # What clients do wrong is counted, not logged line by line: they could fill the disk.
        (log.info if refusal.status >= 500 else log.debug)(
            "refused",
            reason=refusal.reason.value,
            status=refusal.status,
            request=identity.request_id,
            method=request.method,
            path=request.path[:200],
        )
        if not request.started:
            await request.respond(refusal.status, errors.body_of(refusal), headers=refusal.all_headers())

    def _origins(self) -> frozenset[str]:
        snapshot = self._core.keeper.snapshot
        return snapshot.console_origins if snapshot else frozenset()

    # --- for operators ---

    async def _health(self, request: asgi.Request) -> None:
        """200 while requests can be served, 503 otherwise; the same facts either way."""
        core = self._core
        status, problem = 200, ""
        try:
            core.snapshot()
        except Refusal as refusal:
            status, problem = 503, refusal.reason.value
        await request.json(
            status,
            {
                "status": "ok" if status == 200 else "unavailable",
                "problem": problem,
                "table_generation": core.keeper.generation,
                "table_age_seconds": round(core.keeper.age(), 1),
                "max_table_age_seconds": core.settings.max_table_age_seconds,
                "control_plane_up": core.link.connected,
                "in_flight": len(core.running),
                "journal_pending": core.journal.pending,
                "limits_shared": core.limiter.shared,
                "limits_gateways": core.limiter.gateways,
            },
        )

    async def _metrics(self, request: asgi.Request) -> None:
        core = self._core
        token_file = core.settings.metrics_token_file
        if not _may_read_metrics(request, token_file):
            raise Refusal(
                Reason.UNAUTHENTICATED, 401, "Metrics need the bearer token of the gateway's metrics token file."
            )
        snapshot = core.keeper.snapshot
        if snapshot is not None:
            core.metrics.forget_gone(frozenset(snapshot.endpoints), frozenset(snapshot.tenants))
        for limit in core.traffic.limits(every=True):
            core.metrics.show_deployment(
                limit.deployment_id, in_flight=limit.in_flight, limit=limit.limit, held=limit.queued
            )
        body = core.metrics.render(
            in_flight=len(core.running),
            held=core.traffic.held,
            ejected_replicas=len(core.traffic.ejections()),
            journal_pending=core.journal.pending,
            journal_skipped=core.journal.skipped,
            table_generation=core.keeper.generation,
            table_age_seconds=core.keeper.age(),
            control_plane_up=float(core.link.connected),
            limits_shared=float(core.limiter.shared),
            limits_gateways=core.limiter.gateways,
        )
        await request.respond(200, body, _METRICS_TYPE)


def _may_read_metrics(request: asgi.Request, token_file: Path | None) -> bool:
    if token_file is None:
        return request.client in _LOCAL
    try:
        token = token_file.read_bytes().strip()
    except OSError as exc:
        log.warning("metrics token unreadable", path=str(token_file), error=str(exc))
        return False
    given = request.header("authorization").removeprefix("Bearer ").encode("latin-1")
    return bool(token) and secrets.compare_digest(given, token)
