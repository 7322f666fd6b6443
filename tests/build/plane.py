"""A real web process and real gateways on a database of their own, before a trivial engine.

``python -m tests.build.plane URL`` seeds the database: a tenant with an endpoint whose one replica is the engine at
``URL``, a person's token and join tokens. Nobody runs the loops: what is seeded stands still.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psycopg

from tests import services
from tests.build import gateway_peers as peers
from tests.build.gateway_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
GATEWAYS = 3


class Plane(NamedTuple):
    """Where things are; ``token`` acts as an owner of the tenant ``acme``, whose endpoint is ``chat``."""

    web: str
    gateways: list[str]
    token: str


@contextlib.asynccontextmanager
async def running(gateways: int = GATEWAYS) -> AsyncIterator[Plane]:
    """Start everything, yield it, and take it down."""
    services.ensure()
    name = f"plane_{os.getpid()}_{secrets.token_hex(3)}"
    main = os.environ["DATABASE_URL"]
    with tempfile.TemporaryDirectory() as folder, database(main, name) as url:
        async with contextlib.AsyncExitStack() as stack:
            home = Path(folder)
            engine = await stack.enter_async_context(peers.serving(peers.plain(FakeEngine(tokens=2))))
            port = free_port()
            env = environment(home, url, port)
            await run(env, "-m", "django", "migrate", "--no-input", "--verbosity", "0")
            facts = json.loads(await run(env, "-m", "tests.build.plane", engine, str(gateways)))
            web = f"http://127.0.0.1:{port}"
            command = ["-m", "uvicorn", "controlplane.asgi:application", "--port", str(port), "--log-level", "warning"]
            await stack.enter_async_context(process(env, command, home / "web.log"))
            await answers(f"{web}/readyz")
            urls = [
                await stack.enter_async_context(gateway(env, home / f"gateway-{number}", web, token))
                for number, token in enumerate(facts["join_tokens"])
            ]
            yield Plane(web, urls, facts["token"])


def environment(home: Path, url: str, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "MILLPOND_HOME": str(home),
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "MILLPOND_WEB_PORT": str(port),
        "MILLPOND_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
    }


@contextlib.contextmanager
def database(main: str, name: str) -> Any:
    head, question, query = main.partition("?")
    with psycopg.connect(main, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield f"{head.rsplit('/', 1)[0]}/{name}{question}{query}"
        finally:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(env: dict[str, str], *words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=env, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, problem = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{words}: {problem.decode()[-3000:]}")
    return output


@contextlib.asynccontextmanager
async def process(env: dict[str, str], words: list[str], log: Path) -> AsyncIterator[None]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=env, cwd=ROOT, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def gateway(env: dict[str, str], folder: Path, web: str, token: str, port: int = 0) -> AsyncIterator[str]:
    """A gateway process that joins with ``token``; yields its URL."""
    token_file = _private(folder, token)
    mine = {
        **env,
        "MILLPOND_CONTROL_URL": web,
        "MILLPOND_GATEWAY_DIR": str(folder / "state"),
        "MILLPOND_GATEWAY_NAME": folder.name,
        "MILLPOND_GATEWAY_PORT": str(port),
        "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(token_file),
    }
    address = folder / "state" / "address.json"
    async with process(mine, ["-m", "runtime.gateway"], folder / "log"):
        await peers.until(address.exists, f"{folder.name} listens", START_SECONDS)
        url = str(json.loads(address.read_text())["url"])
        await answers(f"{url}/health")
        yield url


def _private(folder: Path, token: str) -> Path:
    folder.mkdir()
    path = folder / "token"
    path.write_text(token)
    return path


async def answers(url: str) -> None:
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)


def seed(engine: str, gateways: int) -> dict[str, Any]:
    """Fill the database that Django is set up for; return the secrets."""
    from fleet.models import MachineKind
    from kernel import scope
    from ledger import generations
    from scheduling import cycle
    from serving import services as serving
    from serving.models import Replica
    from tenants import services as tenancy
    from tests.build import catalog
    from tests.build.controlplane import actor_for, make_tenant, owner_of
    from tests.build.machines import FakeAgent, join_token

    tenant = make_tenant("acme")
    owner = owner_of(tenant)
    version = catalog.checked_version(tenant)
    agent = FakeAgent()
    agent.join()
    agent.report()
    serving.deploy_version(
        actor=actor_for(owner), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    cycle.run()
    agent.obey(address=engine)
    agent.report()
    with scope.all_tenants():
        Replica.objects.update(token=peers.ENGINE_TOKEN)
    _token, text = tenancy.create_user_token(actor=actor_for(owner), user=owner, name="plane")
    return {
        "token": text,
        "join_tokens": [join_token(MachineKind.GATEWAY) for _ in range(gateways)],
        "generation": generations.current(generations.ROUTES),
    }


if __name__ == "__main__":
    import django
    from django.conf import settings

    django.setup()
    settings.ALLOWED_HOSTS = ["testserver"]
    print(json.dumps(seed(sys.argv[1], int(sys.argv[2]))))
