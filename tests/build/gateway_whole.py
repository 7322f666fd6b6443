"""A whole gateway in the caller's own loop, between a control plane in memory and whatever engines the table names."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from runtime.gateway.__main__ import config_of
from runtime.gateway.app import App
from runtime.gateway.core import Core, build
from runtime.gateway.settings import Settings
from runtime.wire.routes import RouteTable
from tests.build.gateway_peers import JOIN_TOKEN, FakeControl, plain, serving, until


@contextlib.asynccontextmanager
async def whole_gateway(
    folder: Path, table: RouteTable, **changes: Any
) -> AsyncIterator[tuple[str, Core, FakeControl]]:
    """Serve ``table``; yield the gateway's URL, its parts, and the control plane that books its usage."""
    token_file = folder / "join-token"
    token_file.write_text(JOIN_TOKEN)
    control = FakeControl(table)
    async with serving(plain(control)) as control_url:
        values: dict[str, Any] = {
            "control_url": control_url,
            "directory": folder / "gateway",
            "name": "gateway-a",
            "join_token_file": token_file,
            "reread_seconds": 0.2,
            "deliver_seconds": 0.05,
            "drain_seconds": 1.0,
        }
        settings = Settings(**{**values, **changes})
        core = build(settings, url="http://gateway.test")
        async with serving(config_of(settings, App(core))) as url:
            await until(lambda: core.keeper.snapshot, "the gateway has a table")
            yield url, core, control
