"""A whole gateway over HTTP in the test's own loop, between a control plane and an engine."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from runtime.gateway.__main__ import config_of
from runtime.gateway.app import App
from runtime.gateway.core import Core, build
from runtime.gateway.settings import Settings
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    JOIN_TOKEN,
    FakeControl,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    plain,
    serving,
    until,
)


class Running:
    """A gateway that serves, and ways to call it."""

    def __init__(self, url: str, core: Core, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.core = core
        self.http = http
        self._clients: list[AsyncOpenAI] = []

    def openai(self, key: str = ACME_KEY) -> AsyncOpenAI:
        """The official client with ``key``."""
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        self._clients.append(client)
        return client

    async def post(
        self, body: Any, *, key: str = ACME_KEY, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, Any, Any]:
        """Send JSON (or raw bytes) and return status, decoded answer and headers."""
        sent = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        kind: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(self.url + path, headers=sent, **kind) as response:
            return response.status, await response.json(), response.headers

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Any]:
        """Read a path as JSON."""
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, await response.json(), response.headers

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


StartGateway = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
async def engine() -> AsyncIterator[tuple[FakeEngine, str]]:
    """An engine and its URL."""
    engine = FakeEngine()
    async with serving(plain(engine)) as url:
        yield engine, url


@pytest.fixture
async def control(engine: tuple[FakeEngine, str]) -> AsyncIterator[tuple[FakeControl, str]]:
    """A control plane whose acme has the endpoint "chat" on the engine, and its URL."""
    fake = FakeControl(a_table(an_endpoint("chat", a_variant(a_replica(engine[1])))))
    async with serving(plain(fake)) as url:
        yield fake, url


@pytest.fixture
def start_gateway(control: tuple[FakeControl, str], tmp_path: Path) -> StartGateway:
    """Starts a gateway in ``tmp_path`` that has joined and has a table; settings may be given."""

    @contextlib.asynccontextmanager
    async def start(*, wait: bool = True, **changes: Any) -> AsyncIterator[Running]:
        token_file = tmp_path / "join-token"
        token_file.write_text(JOIN_TOKEN)
        settings = Settings(
            **{
                "control_url": control[1],
                "directory": tmp_path / "gateway",
                "name": "gateway-a",
                "join_token_file": token_file,
                "reread_seconds": 0.1,
                "deliver_seconds": 0.05,
                "drain_seconds": 1.0,
                **changes,
            }
        )
        core = build(settings, url="http://gateway.test")
        async with serving(config_of(settings, App(core))) as url, aiohttp.ClientSession() as http:
            running = Running(url, core, http)
            if wait:
                await until(lambda: core.keeper.snapshot, "the gateway has a table")
            yield running
            await running.close()

    return start


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> AsyncIterator[Running]:
    """The usual gateway."""
    async with start_gateway() as running:
        yield running
