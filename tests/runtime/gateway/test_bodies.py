"""Bodies and heads made to hurt: each gets a clear refusal, and nothing of them reaches an engine."""

import asyncio
import json

import pytest

from runtime.gateway.openai.checks import Bounds, check_chat, check_completion, check_embedding, depth_of
from runtime.gateway.refusals import Refusal
from tests.build.gateway_peers import ACME_KEY, ask, until

BOUNDS = Bounds(depth=32, choices=8, stops=4)


def chat(**fields):
    return json.dumps(ask(**fields)).encode()


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(b"", "not a JSON object", id="empty"),
        pytest.param(b"{", "not a JSON object", id="half"),
        pytest.param(b"[]", "not a JSON object", id="list"),
        pytest.param(b'"text"', "not a JSON object", id="string"),
        pytest.param(b'{"model":"chat","messages":[1]} trailing', "not a JSON object", id="trailing"),
        pytest.param(b"\xff\xfe{}", "not a JSON object", id="not utf-8"),
        pytest.param(b'{"model": "chat", "messages": ' + b"[" * 100_000, "nested deeper", id="abyss"),
        pytest.param(
            b'{"model":"chat","messages":' + b'{"a":' * 40 + b"1" + b"}" * 41, "nested deeper", id="deep objects"
        ),
        pytest.param(b'{"messages":[{"role":"user"}]}', "model must be", id="no model"),
        pytest.param(chat(model=7), "model does not fit", id="number as model"),
        pytest.param(chat(model="x" * 257), "model must be", id="endless model"),
        pytest.param(chat(messages=[]), "messages must be", id="no messages"),
        pytest.param(chat(messages="hi"), "messages does not fit", id="text as messages"),
        pytest.param(chat(messages=[{}] * 5000), "at most 4096", id="too many messages"),
        pytest.param(chat(n=9), "n is 9", id="n too large"),
        pytest.param(chat(n=0), "n is 0", id="n zero"),
        pytest.param(chat(n=10**30), "n ", id="n astronomical"),
        pytest.param(chat(n="two"), "n does not fit", id="n as text"),
        pytest.param(chat(n=True), "n does not fit", id="n as truth"),
        pytest.param(chat(stop=["a"] * 5), "at most 4", id="too many stops"),
        pytest.param(chat(stop=["a" * 1025]), "longer than 1024", id="endless stop"),
        pytest.param(chat(stop=[["a"]]), "stop does not fit", id="nested stop"),
        pytest.param(chat(max_tokens=-1), "max_tokens is -1", id="negative max_tokens"),
        pytest.param(chat(max_tokens=1e300), "max_tokens", id="huge max_tokens"),
        pytest.param(chat(max_completion_tokens=10**8), "max_completion_tokens is", id="large max_completion_tokens"),
        pytest.param(chat(top_logprobs=1000), "top_logprobs is 1000", id="too many logprobs"),
        pytest.param(chat(stream="yes"), "stream does not fit", id="stream as text"),
    ],
)
async def test_a_poisoned_chat_body_is_a_400_that_says_what_is_wrong(body, want):
    with pytest.raises(Refusal) as refused:
        check_chat(body, BOUNDS)
    assert refused.value.status == 400
    assert want in refused.value.message


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({}, "prompt is missing", id="no prompt"),
        pytest.param({"prompt": 7}, "prompt does not fit", id="number"),
        pytest.param({"prompt": ["a"] * 9}, "prompts times n is 9", id="too many prompts"),
        pytest.param({"prompt": ["a"] * 4, "n": 3}, "prompts times n is 12", id="product too large"),
        pytest.param({"prompt": "a", "best_of": 99}, "best_of is 99", id="best_of"),
        pytest.param({"prompt": "a", "logprobs": -1}, "logprobs is -1", id="logprobs"),
    ],
)
async def test_a_poisoned_completion_body_is_a_400_that_says_what_is_wrong(fields, want):
    with pytest.raises(Refusal) as refused:
        check_completion(json.dumps({"model": "chat", **fields}).encode(), BOUNDS)
    assert want in refused.value.message


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({}, "input must be", id="no input"),
        pytest.param({"input": ""}, "input must be", id="empty text"),
        pytest.param({"input": []}, "input must be", id="empty list"),
        pytest.param({"input": 7}, "input does not fit", id="number"),
        pytest.param({"input": [{"text": "a"}]}, "input must hold", id="objects"),
        pytest.param({"input": ["a"] * 2049}, "at most 2048", id="too many"),
        pytest.param({"input": "a", "dimensions": 0}, "dimensions is 0", id="dimensions"),
    ],
)
async def test_a_poisoned_embedding_body_is_a_400_that_says_what_is_wrong(fields, want):
    with pytest.raises(Refusal) as refused:
        check_embedding(json.dumps({"model": "chat", **fields}).encode(), BOUNDS)
    assert want in refused.value.message


def test_an_embedding_generates_nothing():
    asked = check_embedding(b'{"model":"m","input":[[1,2],[3]]}', BOUNDS)
    assert asked.operation == "embeddings"
    assert asked.demand(100, 500).most_completion == 0


def test_depth_counts_structure_and_not_text():
    assert depth_of(b'{"a": [1, [2]], "b": "[[[[{{{{"}') == 3
    assert depth_of(rb'{"a": "\"[[[", "b": ["\\"]}') == 2
    assert check_chat(chat(messages=[{"role": "user", "content": "[" * 1000}]), BOUNDS).model == "chat"


def test_a_repeated_field_has_one_value_for_gateway_and_engine():
    asked = check_chat(b'{"n":99,"model":"a","messages":[{}],"model":"b","n":2}', BOUNDS)
    assert json.loads(asked.body_for("served")) == {"n": 2, "model": "served", "messages": [{}]}
    assert (asked.model, asked.choices) == ("b", 2)


def test_fields_that_are_not_checked_pass_unchanged():
    body = chat(temperature=0.5, seed=42, response_format={"type": "json_object"}, anything=[1.25, None, "ö"])
    assert json.loads(check_chat(body, BOUNDS).body_for("chat")) == json.loads(body)


@pytest.mark.parametrize(
    ("fields", "model_len", "want_prompt", "want_completion"),
    [
        pytest.param({"max_tokens": 10}, 0, None, 10, id="max_tokens"),
        pytest.param({"max_tokens": 10, "n": 3}, 0, None, 30, id="times n"),
        pytest.param({"max_completion_tokens": 5}, 0, None, 5, id="the newer name"),
        pytest.param({"max_completion_tokens": 5, "max_tokens": 10}, 0, None, 10, id="the larger of both"),
        pytest.param({"max_completion_tokens": 0, "max_tokens": 10}, 0, None, 10, id="nothing is not the larger"),
        pytest.param({}, 0, None, 500, id="default"),
        pytest.param({"max_tokens": 10_000}, 20, 20, 20, id="no more than the model takes"),
    ],
)
def test_the_bound_is_the_bytes_sent_plus_what_may_be_generated(fields, model_len, want_prompt, want_completion):
    body = chat(**fields)
    demand = check_chat(body, BOUNDS).demand(model_len, 500)
    assert demand.prompt == (len(body) if want_prompt is None else want_prompt)
    assert demand.completion == want_completion
    assert demand.tokens == demand.prompt + demand.completion


def test_a_name_that_completions_do_not_have_bounds_nothing():
    body = b'{"model":"m","prompt":"x","max_completion_tokens":1,"max_tokens":900}'
    assert check_completion(body, BOUNDS).demand(0, 500).completion == 900
    body = b'{"model":"m","prompt":"x","max_completion_tokens":1}'
    assert check_completion(body, BOUNDS).demand(0, 500).completion == 500


def test_budgets_are_held_to_what_the_model_can_take_where_no_maximum_is_named():
    demand = check_chat(chat(n=2), BOUNDS).demand(4000, 500)
    assert (demand.completion, demand.most_completion) == (1000, 8000)
    demand = check_chat(chat(n=2, max_tokens=10), BOUNDS).demand(4000, 500)
    assert (demand.completion, demand.most_completion) == (20, 20)


async def test_a_body_beyond_the_limit_is_a_413_and_the_gateway_goes_on(start_gateway, engine):
    async with start_gateway(max_body_bytes=10_000) as gateway:
        status, body, _ = await gateway.post(ask(messages=[{"role": "user", "content": "x" * 20_000}]))
        assert (status, body["error"]["code"]) == (413, "body_too_large")

        async def pieces():
            for _ in range(20):
                yield b"x" * 1000

        async with gateway.http.post(
            gateway.url + "/v1/chat/completions", data=pieces(), headers={"authorization": f"Bearer {ACME_KEY}"}
        ) as response:
            assert response.status == 413
        assert (await gateway.post(ask()))[0] == 200
    assert len(engine[0].requests) == 1


async def test_a_head_beyond_the_limit_is_a_431(start_gateway):
    async with start_gateway(max_head_bytes=8192) as gateway:
        status, body, _ = await gateway.get("/v1/models", authorization="Bearer " + "x" * 7000, cookie="y" * 2000)
        assert (status, body["error"]["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("piece", [b"x", b"a: b\r\n"], ids=["one endless line", "endless lines"])
async def test_a_head_without_end_is_cut_off_before_it_is_collected(start_gateway, piece):
    async with start_gateway(max_head_bytes=8192) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nz: ")
        sent = 0
        try:
            while sent < 50_000_000 and not reader.at_eof():
                writer.write(piece * 1000)
                sent += len(piece) * 1000
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
        assert sent < 5_000_000


async def test_a_head_that_never_comes_is_not_waited_for(start_gateway):
    async with start_gateway(head_timeout_seconds=0.1) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        writer.write(b"GET /v1/models HT")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_body_that_never_comes_is_a_408(start_gateway):
    async with start_gateway(body_timeout_seconds=0.1) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nauthorization: Bearer "
            + ACME_KEY.encode()
            + b'\r\n\r\n{"half'
        )
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await until(lambda: not gateway.core.running, "nothing runs")
