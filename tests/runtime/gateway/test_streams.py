"""Streams: nothing is held back, a client who leaves stops the engine and pays what was computed, a cut is an error."""

import asyncio
import json

import aiohttp
import openai
import pytest

from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import ACME_KEY, a_replica, a_table, a_variant, an_endpoint, ask, plain, serving, until


def headers():
    return {"authorization": f"Bearer {ACME_KEY}"}


async def the_record(control):
    await until(lambda: control[0].booked, "the call is booked")
    (record,) = control[0].booked.values()
    return record


async def test_chunks_pass_one_by_one_and_metering_comments_do_not(gateway, engine):
    engine[0].tokens = 4
    engine[0].gate.clear()
    async with gateway.http.post(
        gateway.url + "/v1/chat/completions", json=ask(stream=True), headers=headers()
    ) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        seen = b""
        for number in range(4):
            # The engine computes one token only when it is let to: each must arrive before the next exists.
            engine[0].allow(1)
            while f"tok{number} ".encode() not in seen:
                seen += await response.content.readany()
            assert max(engine[0].computed.values(), default=4) == number + 1
        rest = await response.read()
    assert b": usage" not in seen + rest
    assert (seen + rest).endswith(b"data: [DONE]\n\n")
    assert (seen + rest).count(b"\n\n") == 6


@pytest.mark.parametrize("computed", [0, 1, 2])
async def test_a_client_who_leaves_a_stream_stops_the_engine_and_pays_what_was_computed(
    gateway, engine, control, computed
):
    engine[0].tokens = 100
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as own:
        call = asyncio.create_task(
            own.post(gateway.url + "/v1/chat/completions", json=ask(stream=True), headers=headers())
        )
        await until(lambda: engine[0].running == 1, "the engine works")
        engine[0].allow(computed)
        await until(lambda: max(engine[0].computed.values()) == computed, "the tokens are computed")
        call.cancel()
    await until(lambda: engine[0].running == 0, "the engine is free")
    assert len(engine[0].cancelled) == 1
    record = await the_record(control)
    assert (record.status, record.outcome, record.billable) == (499, "aborted", True)
    assert (record.prompt_tokens, record.completion_tokens) == (7, computed)
    assert gateway.core.traffic.outstanding("replica-1") == 0
    assert not gateway.core.running


async def test_a_client_who_leaves_a_plain_call_pays_what_was_computed(gateway, engine, control):
    engine[0].tokens = 100
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as own:
        call = asyncio.create_task(own.post(gateway.url + "/v1/chat/completions", json=ask(), headers=headers()))
        await until(lambda: engine[0].running == 1, "the engine works")
        engine[0].allow(5)
        await until(lambda: max(engine[0].computed.values()) == 5, "five tokens are computed")
        call.cancel()
    record = await the_record(control)
    assert (record.status, record.outcome, record.completion_tokens) == (499, "aborted", 5)
    await until(lambda: engine[0].running == 0, "the engine is free")


async def test_a_cancel_that_comes_before_the_engine_knows_the_request_is_repeated(gateway, engine, control):
    engine[0].tokens = 100
    engine[0].deaf = 2
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as own:
        call = asyncio.create_task(own.post(gateway.url + "/v1/chat/completions", json=ask(), headers=headers()))
        await until(lambda: engine[0].running == 1, "the engine works")
        engine[0].allow(3)
        await until(lambda: max(engine[0].computed.values()) == 3, "three tokens are computed")
        call.cancel()
    assert (await the_record(control)).completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_complete_before_the_cancel_is_billed_by_what_it_says(
    gateway, engine, control, stream
):
    engine[0].deaf = 4
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as own:
        call = asyncio.create_task(
            own.post(gateway.url + "/v1/chat/completions", json=ask(stream=stream), headers=headers())
        )
        await until(lambda: engine[0].running == 1, "the engine works")
        call.cancel()
    await until(lambda: engine[0].deaf < 4, "the cancel has come")
    engine[0].gate.set()
    record = await the_record(control)
    assert (record.outcome, record.prompt_tokens, record.completion_tokens) == ("aborted", 7, 3)
    assert engine[0].cancelled == []


async def test_many_clients_who_leave_at_once_leave_nothing_behind(gateway, engine, control):
    engine[0].tokens = 100
    engine[0].gate.clear()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as own:
        calls = [
            asyncio.create_task(
                own.post(gateway.url + "/v1/chat/completions", json=ask(stream=bool(i % 2)), headers=headers())
            )
            for i in range(60)
        ]
        await until(lambda: engine[0].running == 60, "all calls run")
        for call in calls:
            call.cancel()
    await until(lambda: engine[0].running == 0 and len(control[0].booked) == 60, "all is free and booked")
    assert gateway.core.traffic.outstanding("replica-1") == 0
    assert not gateway.core.running


async def test_a_stream_that_the_engine_cuts_ends_with_one_error_event(gateway, engine, control):
    engine[0].mode = "cut"
    engine[0].cut_after = 2
    async with gateway.http.post(
        gateway.url + "/v1/chat/completions", json=ask(stream=True), headers=headers()
    ) as response:
        text = (await response.read()).decode()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [("error" in event) for event in events] == [False, False, True]
    assert events[-1]["error"]["code"] == "stream_cut"
    assert "[DONE]" not in text
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    record = await the_record(control)
    assert (record.outcome, record.billable, record.completion_tokens) == ("error", False, 2)

    with pytest.raises(openai.APIError, match="failed before the answer was complete"):
        async for _ in await gateway.openai().chat.completions.create(**ask(), stream=True):
            pass


async def test_an_answer_that_the_engine_cuts_is_a_502_and_not_billed(gateway, engine, control):
    engine[0].mode = "cut"
    status, body, _ = await gateway.post(ask())
    assert (status, body["error"]["code"]) == (502, "engine_error")
    record = await the_record(control)
    assert (record.status, record.outcome, record.billable) == (502, "error", False)


@pytest.mark.parametrize(
    ("mode", "want_status", "want_code"),
    [("refuse", 400, "too_long"), ("fail", 502, "engine_error"), ("busy", 503, "overloaded")],
)
async def test_an_engines_refusal_reaches_the_client_as_what_it_is(gateway, engine, mode, want_status, want_code):
    engine[0].mode = mode
    for stream in (False, True):
        status, body, headers = await gateway.post(ask(stream=stream))
        assert (status, body["error"]["code"]) == (want_status, want_code)
    if mode == "busy":
        assert headers["retry-after"] == "4"


async def test_a_replica_that_cannot_be_reached_is_passed_over_before_the_first_byte(start_gateway, control, engine):
    nowhere = "http://127.0.0.1:9"
    control[0].table = a_table(
        an_endpoint("chat", a_variant(a_replica(nowhere, 1), a_replica(nowhere, 2), a_replica(engine[1], 3))),
        an_endpoint("dead", a_variant(a_replica(nowhere, 4))),
    )
    async with start_gateway() as gateway:
        assert [(await gateway.post(ask()))[0] for _ in range(6)] == [200] * 6
        status, body, headers = await gateway.post(ask(model="dead"))
    assert (status, body["error"]["code"]) == (503, "upstream_unreachable")
    assert "retry-after" in headers


async def test_work_goes_to_the_replica_with_less_of_it(start_gateway, control, engine):
    other = FakeEngine()
    async with serving(plain(other)) as other_url:
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(engine[1], 1), a_replica(other_url, 2))))
        for each in (engine[0], other):
            each.gate.clear()
        async with start_gateway() as gateway:
            calls = [asyncio.create_task(gateway.post(ask())) for _ in range(10)]
            await until(lambda: engine[0].running + other.running == 10, "all run")
            assert engine[0].running == other.running == 5
            for each in (engine[0], other):
                each.gate.set()
            assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 10


async def test_silence_is_bridged_with_comments(start_gateway, engine):
    engine[0].gate.clear()
    async with (
        start_gateway(keepalive_seconds=0.05) as gateway,
        gateway.http.post(gateway.url + "/v1/chat/completions", json=ask(stream=True), headers=headers()) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        engine[0].gate.set()
        assert b"[DONE]" in await response.read()


async def test_a_client_who_stops_reading_is_taken_for_gone(start_gateway, engine, control):
    engine[0].tokens, engine[0].padding = 10_000, 100_000
    async with start_gateway(write_timeout_seconds=0.2) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]), limit=1024)
        body = json.dumps(ask(stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME_KEY}\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        record = await the_record(control)
        assert (record.status, record.outcome) == (499, "aborted")
        assert 0 < record.completion_tokens < 10_000
        await until(lambda: engine[0].running == 0, "the engine is free")
        del reader
        writer.close()
