"""What the books say of requests whose answer nobody saw to its end: what the engine computed, once."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from runtime.gateway.identity import upstream_id_of
from runtime.gateway.journal import Journal
from runtime.wire import codec
from runtime.wire.inference import Usage
from runtime.wire.routes import Budget, RateLimits
from runtime.wire.usage import UsageRecord
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    a_key,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    until,
)
from tests.runtime.gateway.test_process import AUTH, Process

BUDGET = 1_000_000
LIMITED = a_key(ACME_KEY, "acme", limits=RateLimits(max_parallel_requests=1), budget=Budget(limit=BUDGET))


def computed(engine: FakeEngine, record: UsageRecord) -> int:
    return engine.ended[upstream_id_of(record.id, record.request_id)]


@contextlib.asynccontextmanager
async def reading(url: str, chunks: int) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of which ``chunks`` pieces were read."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + "/v1/chat/completions", json=ask(stream=True, max_tokens=9), headers=AUTH) as response,
    ):
        for _ in range(chunks):
            await response.content.readany()
        yield response


async def test_an_engine_that_does_not_answer_is_asked_until_it_does(start_gateway, control, engine):
    fake = engine[0]
    fake.tokens, fake.silent = 9, True
    control[0].table = a_table(*control[0].table.endpoints, keys=[LIMITED], generation=2)
    fake.gate.clear()
    fake.allow(2)
    async with start_gateway() as gateway:
        await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
        async with reading(gateway.url, 1) as response:
            fake.allow(3)
            response.close()
        await until(lambda: fake.hung_up, "the engine notices that nobody listens")
        fake.gate.set()
        # Nobody waits for the first any more, so it takes no parallel slot; its budget is held until it is known.
        status, _, headers = await gateway.post(ask(max_tokens=9))
        assert status == 200
        assert not [record for record in control[0].booked.values() if record.outcome == "aborted"]
        assert int(headers["x-millpond-budget-remaining"]) < BUDGET - 100
        fake.silent = False
        await until(lambda: len(control[0].booked) == 2, "both are booked")
        (left,) = [record for record in control[0].booked.values() if record.outcome == "aborted"]
        assert (left.status, left.billable, left.prompt_tokens) == (499, True, 7)
        assert left.completion_tokens == computed(fake, left) >= 1
        _, _, headers = await gateway.post(ask(max_tokens=9))
        spent = sum(record.prompt_tokens + record.completion_tokens for record in control[0].booked.values())
        assert int(headers["x-millpond-budget-remaining"]) >= BUDGET - spent - 16 - 100


async def test_an_engine_that_never_answers_is_given_up_and_what_was_seen_is_booked(start_gateway, control, engine):
    fake = engine[0]
    fake.silent = True
    fake.gate.clear()
    fake.allow(1)
    async with start_gateway(final_usage_seconds=0.2) as gateway:
        async with reading(gateway.url, 1) as response:
            response.close()
        await until(lambda: control[0].booked, "it is booked")
        fake.gate.set()
    (record,) = control[0].booked.values()
    assert (record.outcome, record.prompt_tokens, record.completion_tokens) == ("aborted", 7, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_answer_is_booked_as_the_engine_counted_it_and_not_billed(
    start_gateway, control, engine, stream
):
    fake = engine[0]
    fake.tokens, fake.mode, fake.cut_after = 6, "cut", 4
    async with start_gateway() as gateway:
        with contextlib.suppress(aiohttp.ClientError):
            async with gateway.http.post(
                gateway.url + "/v1/chat/completions", json=ask(stream=stream, max_tokens=9), headers=AUTH
            ) as response:
                await response.read()
        await until(lambda: control[0].booked, "it is booked")
    (record,) = control[0].booked.values()
    assert (record.outcome, record.billable, record.prompt_tokens) == ("error", False, 7)
    assert record.completion_tokens == computed(fake, record) == (4 if stream else 6)


async def drop_posts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine that computes five tokens, closes the connection without a word, and remembers when asked."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"DELETE"):
        body = codec.encode(Usage(prompt_tokens=7, completion_tokens=5))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        await writer.drain()
    writer.close()


async def test_what_a_dropped_attempt_computed_has_a_line_of_its_own(start_gateway, control, engine):
    server = await asyncio.start_server(drop_posts, "127.0.0.1", 0)
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    async with server, start_gateway() as gateway:
        endpoint = an_endpoint("chat", a_variant(a_replica(url, 1), a_replica(engine[1], 2)))
        control[0].table = a_table(endpoint, generation=2)
        await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
        answered = 0
        async with asyncio.timeout(15):
            while not (lost := [record for record in control[0].booked.values() if record.replica_id == "replica-1"]):
                status, _, _ = await gateway.post(ask(max_tokens=9))
                assert status == 200
                answered += 1
                await asyncio.sleep(0.05)
    record = lost[0]
    assert (record.status, record.outcome, record.billable) == (502, "aborted", False)
    assert (record.prompt_tokens, record.completion_tokens) == (7, 5)
    served = [record for record in control[0].booked.values() if record.replica_id == "replica-2"]
    assert len(served) == answered
    assert {record.outcome for record in served} == {"ok"}


@pytest.fixture
async def process(control, tmp_path) -> AsyncIterator[Process]:
    process = Process(tmp_path, control[1])
    await process.start()
    yield process
    await process.end()


async def test_what_ran_when_the_gateway_was_killed_is_booked_by_the_next_and_not_billed(process, control, engine):
    fake = engine[0]
    fake.tokens = 400
    fake.gate.clear()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(reading(process.url, 0))
        await until(lambda: fake.running == 3, "all three are under way")
        fake.allow(12)
        await until(lambda: sum(fake.computed.values()) == 12, "twelve tokens are computed")
        await process.end()
        fake.silent = True  # as if cut off: the next process cannot settle it either, and is killed too
        await process.start()
        await process.end()
        fake.silent = False
        await process.start()
        await until(lambda: len(control[0].booked) == 3, "all three are booked")
    fake.gate.set()
    fake.tokens = 9
    for record in control[0].booked.values():
        assert (record.status, record.outcome, record.billable) == (502, "aborted", False)
        assert record.prompt_tokens == 7
        assert record.completion_tokens == computed(fake, record)
    assert sum(record.completion_tokens for record in control[0].booked.values()) >= 12
    await process.end()
    await process.start()
    async with (
        aiohttp.ClientSession() as http,
        http.post(process.url + "/v1/chat/completions", json=ask(max_tokens=9), headers=AUTH) as response,
    ):
        assert response.status == 200
    await until(lambda: len(control[0].booked) == 4, "the next call is booked, and nothing a second time")


def a_record(ident: str) -> UsageRecord:
    return UsageRecord(
        id=ident, request_id=ident, tenant_id="t", owner_tenant_id="t", key_id="k", endpoint_id="e", deployment_id="d",
        revision_id="r", replica_id="p", operation="chat.completions", status=200, outcome="ok", started_at=1.0,
        duration_ms=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
async def test_a_journal_knows_what_was_open_whenever_it_ends(tmp_path: Path, seed: int):
    dice = random.Random(seed)
    started: list[str] = []
    running: set[str] = set()
    delivered: list[str] = []
    for life in range(5):
        journal = Journal(tmp_path, segment_bytes=4000, max_bytes=10**9, fsync_seconds=1, fsync_records=1000)
        assert {record.id for record in journal.cut} == running
        for step in range(dice.randrange(50)):
            what = dice.random()
            if what < 0.5 or not running:
                started.append(f"{life}-{step}")
                running.add(started[-1])
                journal.note_open(a_record(started[-1]))
            elif what < 0.9:
                ended = dice.choice(sorted(running))
                running.remove(ended)
                journal.append(a_record(ended))
            else:
                batch = journal.read(dice.randrange(1, 9))
                delivered += [record.id for record in batch.records]
                await journal.commit(batch)
        # It ends without a word, as a killed process does.
    journal = Journal(tmp_path, segment_bytes=4000, max_bytes=10**9, fsync_seconds=1, fsync_records=1000)
    for ident in sorted(running):
        journal.append(a_record(ident))
    assert journal.pending == len(started) - len(delivered)
    while (batch := journal.read(7)).records:
        delivered += [record.id for record in batch.records]
        await journal.commit(batch)
    await journal.commit(batch)
    assert journal.pending == 0
    assert sorted(delivered) == sorted(started)
    await journal.close()
