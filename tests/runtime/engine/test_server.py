"""The HTTP surface of a real engine process: the official client, streams, errors, cancelling."""

import http.client
import json
import threading
from typing import Any

import openai
import pytest

from tests.build.engines import EngineHandle, wait_for

pytestmark = pytest.mark.engine

MESSAGES: list[Any] = [{"role": "user", "content": "hello there, 水?"}]
ALL_BYTES = "the mill turns"


@pytest.fixture
def client(served: EngineHandle) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=served.token, max_retries=0)


def sse(served: EngineHandle, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[str]:
    """Lines of a stream, the empty ones left out."""
    status, data = served.call("POST", path, {"model": "tiny", "stream": True, **body}, headers)
    assert status == 200
    return [line for line in data.decode().split("\n") if line]


def events(lines: list[str]) -> list[dict[str, Any]]:
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1] if line.startswith("data: ")]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "millpond"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    assert whole.object == "chat.completion"
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0
    deltas = [chunk.choices[0] for chunk in chunks[:-1]]
    assert deltas[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == whole.choices[0].finish_reason


def test_completions_of_several_prompts_and_choices(client: openai.OpenAI, served: EngineHandle) -> None:
    arguments: dict[str, Any] = {"model": "tiny", "prompt": ["hello", "the mill"], "n": 2, "max_tokens": 6, "seed": 4}
    whole = client.completions.create(**arguments)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24
    texts = ["", "", "", ""]
    for chunk in client.completions.create(**arguments, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0] != texts[1]


def test_prompts_as_tokens(client: openai.OpenAI) -> None:
    by_tokens: Any = [[5, 6, 7], [8, 9]]
    both = client.completions.create(model="tiny", prompt=by_tokens, max_tokens=4, temperature=0)
    one = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4, temperature=0)
    assert both.choices[0].text == one.choices[0].text
    assert one.usage is not None
    assert one.usage.prompt_tokens == 3


def test_stop_strings_are_never_shown(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "tiny", "prompt": ALL_BYTES, "max_tokens": 40, "temperature": 0}
    free = client.completions.create(**arguments).choices[0].text
    stop = free[6:9]
    cut = client.completions.create(**arguments, stop=[stop])
    assert cut.choices[0].text == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**arguments, stop=stop, stream=True)]
    assert "".join(pieces) == cut.choices[0].text
    assert all(pieces[:-1])  # no empty events but the last
    never = client.completions.create(**arguments, stop=["\x00 never \x00"], stream=True)
    assert "".join(chunk.choices[0].text for chunk in never) == free  # what was held back is shown at the end


def test_log_probabilities(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 4
    for entry in content:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert len(entry.top_logprobs) == 3
    echoed = client.completions.create(model="tiny", prompt="the mill", echo=True, logprobs=0, max_tokens=0)
    assert echoed.choices[0].text == "the mill"
    logprobs = echoed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens or []) == "the mill"
    assert echoed.usage is not None
    assert echoed.usage.completion_tokens == 0


def test_metering_comments_rise_and_end_at_the_usage(served: EngineHandle) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "temperature": 0, "stream_options": {"include_usage": True}}
    lines = sse(served, "/v1/completions", body, {"x-millpond-metered": "1"})
    counts = [json.loads(line[8:]) for line in lines if line.startswith(": usage ")]
    completion = [count["completion_tokens"] for count in counts]
    assert completion == sorted(completion)
    usage = events(lines)[-1]["usage"]
    assert counts[-1]["completion_tokens"] == usage["completion_tokens"]
    assert counts[-1]["prompt_tokens"] == usage["prompt_tokens"]
    assert not any(line.startswith(":") for line in sse(served, "/v1/completions", body))


def test_tenants_do_not_share_prefixes(served: EngineHandle) -> None:
    body = {"model": "tiny", "prompt": "one two three four five six seven eight nine ten " * 3, "max_tokens": 1}

    def cached(tenant: str, salt: str) -> int:
        headers = {"x-millpond-tenant": tenant, "x-millpond-prefix-salt": salt}
        _, data = served.call("POST", "/v1/completions", body, headers)
        return int(json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("a", "s1") == 0
    assert cached("a", "s1") > 0
    assert cached("b", "s1") == 0
    assert cached("a", "s2") == 0


def test_a_client_that_leaves_frees_everything(served: EngineHandle) -> None:
    before = served.state().stats.requests_aborted_total
    host = served.url.removeprefix("http://")
    for stream in (True, False):
        connection = http.client.HTTPConnection(host, timeout=30)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "stream": stream, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {served.token}"})
        if stream:
            assert connection.getresponse().read(10)
        else:
            wait_for(lambda: served.state().stats.num_requests_running)
        assert connection.sock is not None
        connection.sock.close()
        connection.close()
        wait_for(lambda: served.state().stats.num_requests_running == 0)
    state = served.state()
    assert state.stats.requests_aborted_total == before + 2
    assert state.ledger is not None
    assert state.ledger.kv_blocks_used == 0


def test_cancel_by_id_returns_the_usage(served: EngineHandle) -> None:
    lines: list[list[str]] = []
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 450, "ignore_eos": True, "stream": True}

    def ask() -> None:
        _, data = served.call("POST", "/v1/completions", body, {"x-request-id": "mine"})
        lines.append([line for line in data.decode().split("\n") if line])

    asker = threading.Thread(target=ask)
    asker.start()
    wait_for(lambda: served.state().stats.num_requests_running)
    status, data = served.call("DELETE", "/internal/v1/requests/mine")
    assert status == 200
    assert json.loads(data)["completion_tokens"] >= 0
    asker.join()
    last = json.loads(lines[0][-1].removeprefix("data: "))
    assert last["error"]["code"] == "cancelled"  # in band, no [DONE], no finish reason
    # It has ended now; whoever missed the answer may ask again.
    assert served.call("DELETE", "/internal/v1/requests/mine") == (200, data)
    assert served.call("DELETE", "/internal/v1/requests/other")[0] == 404


def test_deadlines(served: EngineHandle) -> None:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 450, "ignore_eos": True}
    status, data = served.call("POST", "/v1/completions", body, {"x-millpond-deadline-ms": "30"})
    assert status == 504
    assert json.loads(data)["error"]["code"] == "deadline_exceeded"
    assert served.call("POST", "/v1/completions", body, {"x-millpond-deadline-ms": "soon"})[0] == 400


def test_too_long_a_prompt_is_an_error_before_any_stream(served: EngineHandle) -> None:
    for stream in (False, True):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a b " * 600}], "stream": stream}
        status, data = served.call("POST", "/v1/chat/completions", body)
        assert status == 400
        error = json.loads(data)["error"]
        assert error["code"] == "context_length_exceeded"
        assert "512" in error["message"]


def test_texts_beyond_any_context_are_refused_without_counting(served: EngineHandle) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a" * (4 << 20)}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * (2 << 20)}]}),
    ):
        status, data = served.call("POST", path, {"model": "tiny", **body})
        assert status == 400
        assert json.loads(data)["error"]["code"] == "context_length_exceeded"


def test_who_may_call(served: EngineHandle) -> None:
    assert served.call("GET", "/health", headers={"authorization": ""})[0] == 200
    for path in ("/v1/models", "/internal/v1/state", "/metrics"):
        for wrong in ("", "Bearer", "Bearer nope", "Basic c2VjcmV0", f"bearer {served.token}x"):
            status, data = served.call("GET", path, headers={"authorization": wrong})
            assert status == 401
            assert json.loads(data)["error"]["type"] == "authentication_error"


def test_paths_and_methods_that_are_not_there(served: EngineHandle) -> None:
    assert served.call("GET", "/v1/nothing")[0] == 404
    assert served.call("GET", "/v1/completions")[0] == 405


def test_metrics_and_state_agree(served: EngineHandle) -> None:
    _, data = served.call("GET", "/metrics")
    text = data.decode()
    for name in ("kv_cache_usage_perc", "time_to_first_token_seconds_bucket", "requests_total", "memory_level"):
        assert f"millpond_engine_{name}" in text
    state = served.state()
    assert (state.replica_id, state.generation, state.max_model_len) == ("replica-1", 3, 512)
    assert state.ledger is not None
    assert state.ledger.weights_bytes > 0
    assert state.ledger.kv_total_bytes <= 8 << 20


POISON: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"model": NaN}',
    b"[" * 100_000,
    b'{"a":' * 5000,
    {"prompt": "x"},
    {"model": 5, "prompt": "x"},
    {"model": "tiny"},
    {"model": "tiny", "prompt": None},
    {"model": "tiny", "prompt": []},
    {"model": "tiny", "prompt": [[]]},
    {"model": "tiny", "prompt": [1.5]},
    {"model": "tiny", "prompt": [-1]},
    {"model": "tiny", "prompt": [10**9]},
    {"model": "tiny", "prompt": [True]},
    {"model": "tiny", "prompt": ["a", 1]},
    {"model": "tiny", "prompt": ["x"] * 65},
    {"model": "tiny", "prompt": ""},
    {"model": "tiny", "prompt": "x", "n": 0},
    {"model": "tiny", "prompt": "x", "n": 10**6},
    {"model": "tiny", "prompt": "x", "n": "2"},
    {"model": "tiny", "prompt": "x", "max_tokens": -1},
    {"model": "tiny", "prompt": "x", "max_tokens": 0},
    {"model": "tiny", "prompt": "x", "max_tokens": 10**30},
    {"model": "tiny", "prompt": "x", "max_tokens": 1.5},
    {"model": "tiny", "prompt": "x", "temperature": -0.1},
    {"model": "tiny", "prompt": "x", "temperature": "hot"},
    b'{"model": "tiny", "prompt": "x", "temperature": 1e400}',
    {"model": "tiny", "prompt": "x", "top_p": 0},
    {"model": "tiny", "prompt": "x", "top_p": 1.01},
    {"model": "tiny", "prompt": "x", "top_k": -2},
    {"model": "tiny", "prompt": "x", "min_p": 2},
    {"model": "tiny", "prompt": "x", "presence_penalty": 3},
    {"model": "tiny", "prompt": "x", "frequency_penalty": -3},
    {"model": "tiny", "prompt": "x", "repetition_penalty": 0},
    {"model": "tiny", "prompt": "x", "logit_bias": {"99999": 1}},
    {"model": "tiny", "prompt": "x", "logit_bias": {"1": 101}},
    {"model": "tiny", "prompt": "x", "logit_bias": {"a": 1}},
    {"model": "tiny", "prompt": "x", "logit_bias": [1]},
    {"model": "tiny", "prompt": "x", "logprobs": 21},
    {"model": "tiny", "prompt": "x", "logprobs": -1},
    {"model": "tiny", "prompt": "x", "echo": True, "logprobs": 10**6, "max_tokens": 0},
    {"model": "tiny", "prompt": "x", "prompt_logprobs": -1},
    {"model": "tiny", "prompt": "x", "stop": ""},
    {"model": "tiny", "prompt": "x", "stop": ["a"] * 17},
    {"model": "tiny", "prompt": "x", "stop": ["a" * 257]},
    {"model": "tiny", "prompt": "x", "stop": 5},
    {"model": "tiny", "prompt": "x", "stop_token_ids": [-1]},
    {"model": "tiny", "prompt": "x", "seed": 2**70},
    {"model": "tiny", "prompt": "x", "seed": 1.5},
    {"model": "tiny", "prompt": "x", "stream": "yes"},
    {"model": "tiny", "prompt": "x", "stream_options": {"include_usage": True}},
    {"model": "tiny", "prompt": "x", "stream": True, "stream_options": {"x": 1}},
    {"model": "tiny", "prompt": "x", "stream": True, "stream_options": []},
    {"model": "tiny", "prompt": "x", "best_of": 3},
    {"model": "tiny", "prompt": "x", "suffix": "y"},
    {"model": "tiny", "prompt": "x", "min_tokens": 20},
    {"model": "tiny", "prompt": "x", "prefix_salt": "mine"},
    {"model": "tiny", "prompt": "x", "response_format": {"type": "json_schema"}},
    {"model": "tiny", "prompt": "x", "chat_template": "{{ 1 }}"},
]

CHAT_POISON: list[Any] = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [None]},
    {"messages": [{}]},
    {"messages": [{"role": "root", "content": "x"}]},
    {"messages": [{"role": ["user"], "content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
    {"messages": [{"role": "user", "content": "x", "extra": 1}]},
    {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
    {"messages": [{"role": "user", "content": "x"}] * 2049},
    {"messages": MESSAGES, "max_tokens": 0},
    {"messages": MESSAGES, "top_logprobs": 2},
    {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21},
    {"messages": MESSAGES, "logprobs": 5},
    {"messages": MESSAGES, "tools": [{"type": "function"}]},
    {"messages": MESSAGES, "echo": True},
    {"messages": MESSAGES, "prompt": "x"},
]


def test_poison_bodies_are_refused_by_name_and_disturb_nobody(served: EngineHandle) -> None:
    reference: list[str] = []
    disturbed: list[str] = []
    body = {"prompt": "hello", "max_tokens": 400, "temperature": 0, "ignore_eos": True}

    def watch(into: list[str]) -> None:
        into.append("".join(event["choices"][0]["text"] for event in events(sse(served, "/v1/completions", body))))

    watch(reference)
    beside = threading.Thread(target=watch, args=(disturbed,))
    beside.start()
    cases = [("/v1/completions", item) for item in POISON]
    cases += [("/v1/chat/completions", {"model": "tiny", **item}) for item in CHAT_POISON]
    for path, item in cases:
        status, data = served.call("POST", path, item)
        assert status == 400, (item, status, data)
        error = json.loads(data)["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        if isinstance(item, dict):
            assert error["param"] or error["code"] == "context_length_exceeded", (item, error)
    beside.join()
    assert disturbed == reference
    assert served.call("POST", "/v1/completions", {"model": "other", "prompt": "x"})[0] == 404


def test_too_large_a_body_is_refused_before_it_is_sent(served: EngineHandle) -> None:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("authorization", f"Bearer {served.token}")
    connection.putheader("content-length", str(17 << 20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_values_at_the_edges_are_taken(client: openai.OpenAI) -> None:
    for extra in (
        {"temperature": 2, "top_p": 1e-9},
        {"temperature": 1e-30},
        {"presence_penalty": 2, "frequency_penalty": -2, "extra_body": {"repetition_penalty": 1.3, "top_k": -1}},
        {"logit_bias": {"10": 100}},
        {"extra_body": {"min_p": 1.0, "min_tokens": 3, "top_k": 5}},
        {"seed": -(2**63), "user": "somebody"},
        {"stop": ["a", "b"]},
    ):
        fields: Any = extra
        assert client.completions.create(model="tiny", prompt="x", max_tokens=3, **fields).usage is not None
    biased = client.completions.create(model="tiny", prompt="x", max_tokens=3, logit_bias={"10": 100})
    assert len(set(biased.choices[0].text)) == 1


def test_an_assistant_who_said_nothing(client: openai.OpenAI) -> None:
    history: Any = [*MESSAGES, {"role": "assistant", "content": None}, {"role": "assistant", "content": ""}, *MESSAGES]
    assert client.chat.completions.create(model="tiny", messages=history, max_tokens=2).choices
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert client.chat.completions.create(model="tiny", messages=parts, max_tokens=2).choices
