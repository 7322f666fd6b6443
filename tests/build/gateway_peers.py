"""The gateway's peers as small real HTTP servers: a control plane, and an engine that does what it is told."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn

from runtime.base import asgi
from runtime.gateway.auth import digest_of
from runtime.wire import codec
from runtime.wire.errors import ErrorBody, ErrorCode
from runtime.wire.joining import Hint, JoinReply, JoinRequest
from runtime.wire.routes import (
    EndpointEntry,
    GatewayReply,
    GatewayReport,
    KeyEntry,
    RateLimits,
    ReplicaRoute,
    RouteTable,
    TenantEntry,
    Variant,
)
from runtime.wire.usage import UsageBatch, UsageRecord, UsageReply
from tests.build.gateway_engine import ENGINE_TOKEN

PEPPER = "5a" * 32
JOIN_TOKEN = "mpj_abcdefghijkl_" + "j" * 43
SECOND_TOKEN = "mpj_mnopqrstuvwx_" + "k" * 43
CREDENTIAL = "mpn_abcdefghijkl_" + "c" * 43
ACME_KEY = "mp_acmeacmeacme_" + "a" * 43
BETA_KEY = "mp_betabetabeta_" + "b" * 43
CONSOLE = "http://console.test:8100"


class Served(uvicorn.Server):
    """uvicorn inside a test's loop: no signal handlers, and no waiting for the next tick to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(config: uvicorn.Config, port: int = 0) -> AsyncIterator[str]:
    """Serve ``config`` on a port of 127.0.0.1 and yield its URL; stopped at the end."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only on sockets that say TCP
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = Served(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or task.done(), "the server starts")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stopping.set()
        await task


def plain(app: asgi.App, *, lifespan: str = "off") -> uvicorn.Config:
    """uvicorn for a peer: quiet, and quick to stop."""
    return uvicorn.Config(app, log_config=None, access_log=False, lifespan=lifespan, timeout_graceful_shutdown=1)


async def until(condition: Callable[[], object], what: str, seconds: float = 15.0) -> None:
    """Return as soon as ``condition`` holds; fail with ``what`` when it does not in time."""
    async with asyncio.timeout(seconds):
        try:
            while not condition():  # noqa: ASYNC110 - other processes and sockets set no event of ours
                await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"never happened: {what}") from None


def ask(**fields: Any) -> dict[str, Any]:
    """A small chat request."""
    return {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}


# --- tables ---


def a_key(key: str, tenant_id: str, **fields: Any) -> KeyEntry:
    """A table entry for the key text."""
    return KeyEntry(id=f"key-{tenant_id}", digest=digest_of(key, bytes.fromhex(PEPPER)), tenant_id=tenant_id, **fields)


def a_replica(url: str, number: int = 1) -> ReplicaRoute:
    """A route to an engine."""
    return ReplicaRoute(replica_id=f"replica-{number}", generation=1, url=url, token=ENGINE_TOKEN)


def a_variant(*replicas: ReplicaRoute, weight: int = 100, version: int = 1) -> Variant:
    """A deployment with these replicas."""
    return Variant(
        deployment_id=f"deployment-{version}",
        revision_id=f"revision-{version}",
        version=version,
        weight=weight,
        replicas=list(replicas),
    )


def an_endpoint(name: str, *variants: Variant, tenant_id: str = "acme", **fields: Any) -> EndpointEntry:
    """An endpoint of a tenant; ``granted_tenant_ids`` and ``state`` may be given."""
    return EndpointEntry(
        id=f"endpoint-{tenant_id}-{name}",
        name=name,
        tenant_id=tenant_id,
        granted_tenant_ids=fields.pop("granted_tenant_ids", []),
        created=1_700_000_000,
        max_model_len=fields.pop("max_model_len", 2048),
        variants=list(variants),
        **fields,
    )


def a_table(*endpoints: EndpointEntry, generation: int = 1, **fields: Any) -> RouteTable:
    """Two tenants, acme and beta, with a key each."""
    limits = fields.pop("acme_limits", RateLimits())
    tenants = [
        TenantEntry(id="acme", slug="acme-corp", prefix_salt="salt-acme"),
        TenantEntry(id="beta", slug="beta-inc", prefix_salt="salt-beta"),
    ]
    keys = [a_key(ACME_KEY, "acme", limits=limits), a_key(BETA_KEY, "beta")]
    return RouteTable(
        generation=generation,
        issued_at=1_700_000_000.0,
        key_pepper=PEPPER,
        console_origins=[CONSOLE],
        tenants=fields.pop("tenants", tenants),
        keys=fields.pop("keys", keys),
        endpoints=list(endpoints),
    )


# --- the control plane ---


class FakeControl:
    """The gateway API of the control plane over a table in memory."""

    def __init__(self, table: RouteTable) -> None:
        self.table = table
        self.down = False
        self.removed = False  # until the gateway joins with another token
        self.reports: list[GatewayReport] = []
        self.joins: list[JoinRequest] = []
        self.booked: dict[str, UsageRecord] = {}
        self.received = 0  # records, repeated ones included
        self.refuse_usage_of = ""  # record of this request id makes a batch malformed
        self.table_reads = 0
        self._sockets: list[asyncio.Queue[Hint]] = []
        self.acknowledged: dict[int, int] = {}  # by socket, what was said on it
        self._issued = {JOIN_TOKEN, SECOND_TOKEN}

    def issue(self) -> str:
        """Another one-time token."""
        token = "mpj_" + secrets.token_hex(6) + "_" + secrets.token_hex(22)[:43]
        self._issued.add(token)
        return token

    @property
    def listeners(self) -> int:
        """Open hint sockets."""
        return len(self._sockets)

    def hint(self, generation: int) -> None:
        """Push to every socket."""
        for queue in self._sockets:
            queue.put_nowait(Hint(topic="routes", generation=generation))

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "websocket":
            await self._hints(scope, receive, send)
            return
        request = asgi.Request(scope, receive, send, {})
        body = await request.body(10_000_000)
        call = request.path.removeprefix("/internal/v1/gateways")
        if self.down:
            await request.respond(503, b"down", b"text/plain")
        elif call == "/join":
            await self._join(request, codec.decode(body, JoinRequest))
        elif request.header("authorization") != f"Bearer {CREDENTIAL}":
            await self._refuse(request, 401, ErrorCode.UNAUTHENTICATED)
        elif self.removed:
            await self._refuse(request, 410, ErrorCode.REMOVED)
        elif call == "/routes":
            self.table_reads += 1
            await request.respond(200, codec.encode(self.table))
        elif call == "/report":
            self.reports.append(codec.decode(body, GatewayReport))
            reply = GatewayReply(generation=self.table.generation, interval_seconds=60.0)
            await request.respond(200, codec.encode(reply))
        elif call == "/usage":
            await self._usage(request, codec.decode(body, UsageBatch))

    async def _join(self, request: asgi.Request, join: JoinRequest) -> None:
        known = join.token in self._issued
        if not known or any(earlier.token == join.token for earlier in self.joins):
            await self._refuse(request, 401, ErrorCode.TOKEN_USED)
            return
        self.removed = False
        self.joins.append(join)
        await request.respond(200, codec.encode(JoinReply(id=f"gateway-{len(self.joins)}", credential=CREDENTIAL)))

    async def _usage(self, request: asgi.Request, batch: UsageBatch) -> None:
        if self.refuse_usage_of and any(record.request_id == self.refuse_usage_of for record in batch.records):
            await self._refuse(request, 400, ErrorCode.MALFORMED)
            return
        self.received += len(batch.records)
        new = [record for record in batch.records if record.id not in self.booked]
        self.booked.update({record.id: record for record in new})
        reply = UsageReply(accepted=len(new), duplicates=len(batch.records) - len(new))
        await request.respond(200, codec.encode(reply))

    async def _refuse(self, request: asgi.Request, status: int, code: ErrorCode) -> None:
        await request.respond(status, codec.encode(ErrorBody(code=code, message="refused")))

    async def _hints(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()
        if self.down or dict(scope["headers"]).get(b"authorization") != f"Bearer {CREDENTIAL}".encode():
            await send({"type": "websocket.close", "code": 4401})
            return
        await send({"type": "websocket.accept"})
        queue: asyncio.Queue[Hint] = asyncio.Queue()
        self._sockets.append(queue)

        async def push() -> None:
            while True:
                await send({"type": "websocket.send", "text": codec.encode(await queue.get()).decode()})

        async def gone() -> None:
            while (message := await receive())["type"] != "websocket.disconnect":
                self.acknowledged[id(queue)] = codec.decode(message["text"], Hint).generation

        await asgi.race(push(), gone())
        self._sockets.remove(queue)


# --- the engine ---
