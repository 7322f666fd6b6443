"""Tokens in the books are the tokens that engines counted, whoever gave up and whatever broke."""

import asyncio
import contextlib
import json
import random
from collections import Counter

import aiohttp
import pytest

from runtime.wire import codec
from runtime.wire.inference import HEADER_USAGE, Usage
from runtime.wire.routes import Budget, RateLimits
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    a_key,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    plain,
    serving,
    until,
)

TOKENS = 6
PROMPT = 7
PARALLEL = 24
BUDGET = 1_000_000


class CountingEngine(FakeEngine):
    """Keeps what it computed for each request, and computes nothing more for one that was cancelled."""

    def __init__(self) -> None:
        super().__init__(TOKENS)
        self.totals: Counter[str] = Counter()

    def _count(self, request_id: str) -> None:
        if request_id in self.cancelled:
            raise ConnectionAbortedError("cancelled")
        super()._count(request_id)
        self.totals[request_id] += 1


async def leave_at(gateway, body, chunks):
    """Read ``chunks`` pieces of the answer, then hang up."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            gateway.url + "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ACME_KEY}"}
        ) as response,
    ):
        for _ in range(chunks):
            await response.content.readany()
        response.close()


async def leave_before_the_answer(gateway, engine, body):
    """Hang up as soon as the engine has begun."""
    begun = len(engine.requests)
    call = asyncio.create_task(leave_at(gateway, body, 0))
    await until(lambda: len(engine.requests) > begun or call.done(), "the engine has begun")
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_what_is_booked_is_what_was_computed(start_gateway, control, seed):
    dice = random.Random(seed)
    engine = CountingEngine()
    limits = RateLimits(max_parallel_requests=PARALLEL, tokens_per_minute=10**9)
    async with serving(plain(engine)) as url:
        key = a_key(ACME_KEY, "acme", limits=limits, budget=Budget(limit=BUDGET))
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url))), keys=[key], generation=2)
        async with start_gateway(cancel_timeout_seconds=5.0) as gateway:
            await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
            engine.gate.clear()
            driving = asyncio.create_task(drive(engine, dice))

            async def one(kind):
                body = ask(stream=kind in ("stream", "leave in it"), max_tokens=TOKENS)
                if kind == "leave in it":
                    await leave_at(gateway, body, dice.randrange(1, TOKENS))
                elif kind == "leave before it":
                    await leave_before_the_answer(gateway, engine, body)
                else:
                    await leave_at(gateway, body, 100)

            kinds = ["stream", "whole", "leave in it", "leave before it"] * 6
            dice.shuffle(kinds)
            await asyncio.gather(*(one(kind) for kind in kinds))
            await until(lambda: not gateway.core.running, "nothing runs in the gateway")
            driving.cancel()
            engine.gate.set()
            await until(lambda: not engine.running, "nothing runs in the engine")
            await until(lambda: len(control[0].booked) == len(engine.requests), "every request is booked")
            await everything_is_back(gateway, control[0], engine)


async def drive(engine, dice):
    """Let tokens be computed a few at a time."""
    while True:
        engine.allow(dice.randrange(1, 8))
        await asyncio.sleep(0.002)  # other tasks take their turn; nothing depends on how long it is


async def everything_is_back(gateway, books, engine):
    outcomes = Counter(record.outcome for record in books.booked.values())
    assert outcomes["ok"] >= 12
    assert outcomes["aborted"] >= 1
    assert not outcomes["error"]
    for record in books.booked.values():
        computed = engine.totals[f"req_{record.id}"]
        assert record.billable
        assert record.completion_tokens == computed, record.outcome
        assert record.prompt_tokens == PROMPT
    spent = sum(record.prompt_tokens + record.completion_tokens for record in books.booked.values())
    # Every slot is free, and the budget holds what was computed and nothing more.
    answers = await asyncio.gather(*(gateway.post(ask(max_tokens=TOKENS)) for _ in range(PARALLEL)))
    assert [status for status, _, _ in answers] == [200] * PARALLEL
    _, _, headers = await gateway.post(ask(max_tokens=TOKENS))
    held = len(json.dumps(ask(max_tokens=TOKENS))) + TOKENS
    left = BUDGET - spent - PARALLEL * (PROMPT + TOKENS) - held
    assert int(headers["x-millpond-budget-remaining"]) == left


async def test_what_the_platform_lost_is_recorded_and_not_billed(start_gateway, control):
    engine = CountingEngine()
    engine.mode, engine.cut_after = "cut", 3
    async with serving(plain(engine)) as url:
        key = a_key(ACME_KEY, "acme", budget=Budget(limit=BUDGET))
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url))), keys=[key], generation=2)
        async with start_gateway() as gateway:
            await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
            await leave_at(gateway, ask(stream=True, max_tokens=TOKENS), 100)
            await until(lambda: control[0].booked, "it is recorded")
            (record,) = control[0].booked.values()
            assert record.completion_tokens == engine.totals[f"req_{record.id}"] == 3
            assert (record.outcome, record.billable) == ("error", False)
            engine.mode = "answer"
            _, _, headers = await gateway.post(ask(max_tokens=TOKENS))
            assert int(headers["x-millpond-budget-remaining"]) > BUDGET - 200


async def test_several_choices_cost_one_prompt_and_all_their_tokens(start_gateway, control, engine):
    engine[0].tokens = 12  # as an engine counts three choices of four
    async with start_gateway() as gateway:
        status, body, _ = await gateway.post(ask(n=3, max_tokens=4))
        assert (status, body["usage"]["completion_tokens"]) == (200, 12)
        await until(lambda: control[0].booked, "the call is booked")
        (record,) = control[0].booked.values()
        assert (record.prompt_tokens, record.completion_tokens) == (7, 12)


class LateEngine(FakeEngine):
    """Runs out of time in every request, in an answer's place or within a stream, and says what it has computed."""

    async def _infer(self, request):
        body = json.loads(await request.body(10_000))
        usage = codec.encode(Usage(prompt_tokens=PROMPT, completion_tokens=3))
        error = {"error": {"message": "too late", "type": "timeout_error", "param": None, "code": "deadline"}}
        if not body.get("stream"):
            await request.json(504, error, headers=[(HEADER_USAGE.encode(), usage)])
            return
        await request.start(200, [(b"content-type", b"text/event-stream")])
        said = b": usage " + usage + b"\n\ndata: {}\n\ndata: " + json.dumps(error).encode() + b"\n\n"
        await request.write(said, more=False)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_names_a_deadline_pays_what_was_computed_until_then(start_gateway, control, stream):
    async with serving(plain(LateEngine())) as url:
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url))))
        async with start_gateway() as gateway:
            for headers in ({"x-millpond-deadline-ms": "1"}, {}):
                sent = {"authorization": f"Bearer {ACME_KEY}", **headers}
                path = gateway.url + "/v1/chat/completions"
                async with gateway.http.post(path, json=ask(stream=stream), headers=sent) as answer:
                    assert answer.status == (200 if stream else 504)
                    assert b"too late" in await answer.read()
                    assert HEADER_USAGE not in answer.headers
            await until(lambda: len(control[0].booked) == 2, "both are booked")
    named, own = sorted(control[0].booked.values(), key=lambda record: record.started_at)
    for record in (named, own):
        assert (record.prompt_tokens, record.completion_tokens) == (PROMPT, 3)
    assert (named.billable, own.billable) == (True, False)
