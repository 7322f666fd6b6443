"""Traffic between two variants, on real parts: the split, sticky callers, changes of weight, a candidate that fails.

Starts a web process, two gateways and two trivial engines (the second answers with three tokens, so an answer tells who
gave it); a process beside them runs the platform's loops at their own periods, with an agent that does what it is told.
Everything is asked for over REST, and everything is called through the gateways. Prints a table and, as its last line,
one JSON object.
"""

import argparse
import asyncio
import collections
import contextlib
import datetime
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from tests import services
from tests.build import gateway_peers as peers
from tests.build import plane
from tests.build.gateway_engine import FakeEngine

GATEWAYS: Final = 2
SHARE: Final = 50  # thousandths
TOKENS: Final = {2: "baseline", 3: "candidate"}
PARALLEL: Final = 24
BEAT_SECONDS: Final = 2.0
OUTBOX_BEATS: Final = 2
THINK_SECONDS: Final = 0.05  # between two calls of one caller while weights change


class Stage(NamedTuple):
    """Where things are, and how to call them."""

    web: str
    gateways: list[str]
    engines: dict[str, FakeEngine]
    facts: dict[str, Any]
    http: aiohttp.ClientSession

    async def rest(self, method: str, path: str, body: Any = None) -> Any:
        """REST as an owner of the tenant."""
        headers = {"authorization": f"Bearer {self.facts['token']}"}
        async with self.http.request(
            method, f"{self.web}/api/v1/tenants/acme/{path}", json=body, headers=headers
        ) as answer:
            text = await answer.text()
            assert answer.status < 300, (method, path, answer.status, text)
            return json.loads(text) if text else None

    async def call(self, number: int, session: str = "") -> str:
        """One chat through a gateway: who answered, or ``failed``."""
        headers = {"authorization": f"Bearer {self.facts['key']}"}
        if session:
            headers["x-millpond-sticky"] = session
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.gateways[number % len(self.gateways)]}/v1/chat/completions"
        try:
            async with self.http.post(url, json=body, headers=headers) as answer:
                got = await answer.json()
                return TOKENS[got["usage"]["completion_tokens"]] if answer.status == 200 else "failed"
        except aiohttp.ClientError:
            return "failed"

    async def calls(self, count: int, sessions: list[str] | None = None) -> list[str]:
        """``count`` calls, a few at a time; who answered each, in order."""
        found = [""] * count
        numbers = iter(range(count))

        async def one() -> None:
            for number in numbers:
                found[number] = await self.call(number, sessions[number] if sessions else "")

        await asyncio.gather(*(one() for _ in range(PARALLEL)))
        return found

    async def until(self, check: Callable[[Any], bool], path: str, seconds: float = 60.0) -> Any:
        """What REST says once it is as wanted."""
        async with asyncio.timeout(seconds):
            while True:
                if check(found := await self.rest("GET", path)):
                    return found
                await asyncio.sleep(0.1)

    async def settled(self, seconds: float = 1.5) -> None:
        """Gateways have read what was changed: they are told at once, and look for themselves every second."""
        await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Stage]:
    """Start everything, yield it, take it down."""
    services.ensure()
    name = f"rollouts_{os.getpid()}_{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory() as folder, plane.database(os.environ["DATABASE_URL"], name) as url:
        async with contextlib.AsyncExitStack() as stack:
            home = Path(folder)
            engines = {who: FakeEngine(tokens=tokens) for tokens, who in TOKENS.items()}
            urls = [await stack.enter_async_context(peers.serving(peers.plain(one))) for one in engines.values()]
            port = plane.free_port()
            env = plane.environment(home, url, port)
            await plane.run(env, "-m", "django", "migrate", "--no-input", "--verbosity", "0")
            facts = await stack.enter_async_context(_hand(env, urls, home / "hand.log"))
            web = f"http://127.0.0.1:{port}"
            command = ["-m", "uvicorn", "controlplane.asgi:application", "--port", str(port), "--log-level", "warning"]
            await stack.enter_async_context(plane.process(env, command, home / "web.log"))
            await plane.answers(f"{web}/readyz")
            gateways = [
                await stack.enter_async_context(plane.gateway(env, home / f"gateway-{number}", web, token))
                for number, token in enumerate(facts["join_tokens"])
            ]
            http = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(30))
            )
            yield Stage(web, gateways, engines, facts, http)


@contextlib.asynccontextmanager
async def _hand(env: dict[str, str], engines: list[str], log: Path) -> AsyncIterator[dict[str, Any]]:
    """The process that seeds the database and then runs the loops until its input ends."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.benchmarks.rollouts", "--hand", *engines, env=env, cwd=plane.ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(_tail(log))
        yield json.loads(line)
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()


def _tail(log: Path) -> str:
    return log.read_text()[-3000:]


def hand(baseline_url: str, candidate_url: str) -> None:
    """Seed, say what was made, and beat: the loops of the worker, and an agent whose replicas serve at once."""
    from threading import Event, Thread

    from fleet.models import MachineKind
    from kernel import scope
    from ledger import outbox
    from rollouts import advance
    from scheduling import cycle as scheduling
    from serving import services as serving
    from serving.models import Replica
    from serving.reconcile import cycle as reconciling
    from tenants import services as tenancy
    from tests.build import catalog
    from tests.build.controlplane import actor_for, make_tenant, owner_of
    from tests.build.machines import GIB, FakeAgent, join_token

    tenant = make_tenant("acme")
    actor = actor_for(owner_of(tenant))
    model = catalog.make_model(tenant)
    one, two = (catalog.checked_version(tenant, model=model) for _ in range(2))
    agent = FakeAgent(memory_bytes=64 * GIB, cpus=64, host_bytes=256 * GIB)
    agent.join()
    agent.report()
    first = serving.deploy_version(
        actor=actor, tenant=tenant, endpoint_name="chat", model=model.name, version=one.number, config={}, replicas=1
    )

    def beat(number: int) -> None:
        if number % OUTBOX_BEATS == 0:
            outbox.drain()
        reconciling.run()
        scheduling.run()
        advance.run()
        with scope.all_tenants():
            Replica.objects.exclude(token=peers.ENGINE_TOKEN).update(token=peers.ENGINE_TOKEN)
            of_first = {str(ident) for ident in first.replicas.values_list("id", flat=True)}
        before = set(agent.replicas)
        agent.obey()
        for ident in set(agent.replicas) - before:
            agent.change(
                ident, agent.replicas[ident].phase, address=baseline_url if ident in of_first else candidate_url
            )
        agent.report()

    beat(0)
    beat(1)
    _row, token = tenancy.create_user_token(actor=actor, user=owner_of(tenant), name="bench")
    _key, key = tenancy.create_api_key(actor=actor, tenant=tenant, name="bench", scopes=["inference"])
    joins = [join_token(MachineKind.GATEWAY) for _ in range(GATEWAYS)]
    said = {
        "token": token, "key": key, "join_tokens": joins, "model": model.name, "second": two.number,
        "baseline": str(first.id),
    }  # fmt: skip
    print(json.dumps(said), flush=True)
    over = Event()
    Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    number = 1
    while not over.wait(BEAT_SECONDS):
        number += 1
        beat(number)


async def split(stage: Stage, count: int) -> dict[str, Any]:
    """95/5 over ``count`` calls; the share is within 0.65 points in 99.7 % of all fair draws of 10,000."""
    answered = collections.Counter(await stage.calls(count))
    share = 100 * answered["candidate"] / count
    return {
        "split_calls": count,
        "split_failed": answered["failed"],
        "split_candidate_percent": round(share, 2),
        "split_off_points": round(abs(share - SHARE / 10), 2),
    }


async def sticky(stage: Stage, sessions: int, each: int) -> dict[str, Any]:
    """Every session calls ``each`` times, at either gateway and in mixed order: how many met both variants."""
    await stage.rest("PATCH", "endpoints/chat", {"sticky": "header"})
    await stage.settled()
    names = [f"session-{number}" for number in range(sessions) for _ in range(each)]
    random.Random(3).shuffle(names)
    met: dict[str, set[str]] = {}
    for name, who in zip(names, await stage.calls(len(names), names), strict=True):
        met.setdefault(name, set()).add(who)
    await stage.rest("PATCH", "endpoints/chat", {"sticky": "none"})
    moved = sum(len(seen) > 1 for seen in met.values())
    return {
        "sticky_sessions": sessions,
        "sticky_moved": moved,
        "sticky_on_candidate_percent": round(100 * sum("candidate" in seen for seen in met.values()) / sessions, 2),
    }


async def changes(stage: Stage, second: str, count: int) -> dict[str, Any]:
    """``count`` changes of weight while calls go on without a pause."""
    over = asyncio.Event()
    ended: collections.Counter[str] = collections.Counter()

    async def caller(number: int) -> None:
        while not over.is_set():
            ended[await stage.call(number)] += 1
            number += 1
            await asyncio.sleep(THINK_SECONDS)

    load = [asyncio.create_task(caller(number)) for number in range(8)]
    chance = random.Random(5)
    began = time.monotonic()
    for number in range(count):
        ident = stage.facts["baseline"] if number % 2 else second
        await stage.rest("PATCH", f"deployments/{ident}", {"weight": chance.randint(1, 1000)})
    seconds = time.monotonic() - began
    await stage.settled()
    over.set()
    await asyncio.gather(*load)
    return {
        "weight_changes": count,
        "weight_changes_seconds": round(seconds, 1),
        "weight_changes_calls": sum(ended.values()),
        "weight_changes_failed": ended["failed"],
    }


async def failing(stage: Stage, rate: float) -> dict[str, Any]:
    """A canary whose every answer is an error: what users met, and how long the way back took."""
    candidate = stage.engines["candidate"]
    candidate.mode = "fail"
    over = asyncio.Event()
    ended: list[tuple[float, str]] = []
    reached: list[float] = []
    infer = candidate._infer

    async def noted(request: Any) -> None:
        reached.append(time.time())
        await infer(request)

    candidate._infer = noted  # type: ignore[method-assign]  # the time of each request that still reaches it
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        ended.append((time.time(), await stage.call(number)))

    async def load() -> None:
        number = 0
        while not over.is_set():
            task = asyncio.create_task(one(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(1 / rate)

    body = {
        "model": stage.facts["model"], "version": str(stage.facts["second"]), "shares": [10, 100],
        "hold_seconds": 60, "min_requests": 50,
    }  # fmt: skip
    running_load = asyncio.create_task(load())
    rollout = await stage.rest("POST", "endpoints/chat/rollouts", body)
    path = f"rollouts/{rollout['id']}"
    shown = await stage.until(lambda row: row["state"] in ("rolled_back", "paused", "promoted"), path, 120.0)
    await asyncio.sleep(4.0)
    over.set()
    await running_load
    await asyncio.gather(*tasks)
    log = (await stage.rest("GET", f"{path}/log"))["data"]
    verdict = next(line for line in log if line["kind"] == "verdict")
    said = datetime.datetime.fromisoformat(verdict["at"]).timestamp()
    began = datetime.datetime.fromisoformat(shown["step_began_at"]).timestamp() if shown["step_began_at"] else said
    return {
        "failing_state": shown["state"],
        "failing_calls": len(ended),
        "failing_failed_calls": sum(who == "failed" for _, who in ended),
        "failing_reached_candidate": len(reached),
        "failing_seconds_to_verdict": round(said - began, 1),
        "failing_seconds_verdict_to_baseline": round(max(0.0, max(reached, default=said) - said), 2),
        "failing_sentence": verdict["sentence"],
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All four, one after the other, on one platform."""
    async with running() as stage:
        body = {
            "endpoint": "chat", "model": stage.facts["model"], "version": str(stage.facts["second"]), "replicas": 1,
            "weight": 0,
        }  # fmt: skip
        second = (await stage.rest("POST", "deployments", body))["id"]
        await stage.until(lambda row: row["ready_replicas"] == 1, f"deployments/{second}")
        wish = {"endpoint": "chat", "name": "split", "candidate": second, "share": SHARE}
        experiment = await stage.rest("POST", "experiments", wish)
        await stage.settled()
        figures = await split(stage, options.calls)
        figures |= await sticky(stage, options.sessions, 5)
        await stage.rest("POST", f"experiments/{experiment['id']}/end", {})
        figures |= await changes(stage, second, options.changes)
        await stage.rest("PATCH", f"deployments/{stage.facts['baseline']}", {"weight": 100})
        await stage.rest("PATCH", f"deployments/{second}", {"weight": 0})
        await stage.settled()
        return figures | await failing(stage, options.rate)


def show(figures: dict[str, Any]) -> None:
    """The table."""
    wanted = {
        "split_off_points": "at most 0.65",
        "split_failed": "0",
        "sticky_moved": "0",
        "weight_changes_failed": "0",
        "failing_seconds_verdict_to_baseline": "at most 10",
    }
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):38} {value!s:>12}  {wanted.get(name, '')}")


def main() -> None:
    """Measure, or be the hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--rate", type=float, default=40.0, help="calls a second while the candidate fails")
    parser.add_argument("--hand", nargs=2, metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hand:
        import django
        from django.conf import settings

        django.setup()
        settings.ALLOWED_HOSTS = ["testserver"]
        hand(*options.hand)
        return
    began = time.monotonic()
    figures = asyncio.run(measure(options))
    figures["seconds"] = round(time.monotonic() - began, 1)
    show(figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
