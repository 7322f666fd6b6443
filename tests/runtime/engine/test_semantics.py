"""What OpenAI's words mean here, told by the official client and by raw HTTP: streams, stops, seeds, probabilities."""

import http.client
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.build.engines import EngineHandle, wait_for

pytestmark = pytest.mark.engine

WORDS = ("the mill", "水车 turns", "emoji 🙂🙃", "ďábel", "e\u0301te\u0301", "water and", "x" * 7, "12 34", "\n\t ")


@pytest.fixture
def client(served: EngineHandle) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=served.token, max_retries=0)


def whole(served: EngineHandle, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
    status, data = served.call("POST", path, {"model": "tiny", **fields})
    assert status == 200, data
    found: dict[str, Any] = json.loads(data)
    return found


def streamed(served: EngineHandle, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
    status, data = served.call("POST", path, {"model": "tiny", "stream": True, **fields})
    assert status == 200, data
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def random_request(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    fields: dict[str, Any] = {
        "prompt": " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6))),
        "max_tokens": rng.randint(1, 40),
        "seed": number,
        "n": rng.choice((1, 1, 3)),
    }
    if rng.random() < 0.5:
        fields["stop"] = rng.sample(["e", "th", "0", "aa", " ", "\n", "�"], rng.randint(1, 4))
    if rng.random() < 0.3:
        fields["include_stop_str_in_output"] = True
    if rng.random() < 0.5:
        fields["temperature"] = rng.choice((0, 0.3, 1.7))
    if rng.random() < 0.3:
        fields |= {"top_p": 0.8, "top_k": 20}
    if rng.random() < 0.3:
        fields["logprobs"] = 2
    if rng.random() < 0.2:
        fields["echo"] = True
    return fields


def test_a_stream_says_what_the_whole_answer_says(served: EngineHandle) -> None:
    """Text, ends and usage of 60 seeded requests, alone and in a crowd, streamed and not."""
    requests = [random_request(number) for number in range(60)]
    alone = [whole(served, **fields) for fields in requests]

    def stream(fields: dict[str, Any]) -> list[dict[str, Any]]:
        return streamed(served, **fields, stream_options={"include_usage": True})

    with ThreadPoolExecutor(16) as pool:
        crowd = list(pool.map(stream, requests))
    for fields, one, events in zip(requests, alone, crowd, strict=True):
        *chunks, last = events
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == one["usage"]["completion_tokens"]
        assert last["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert not any(chunk.get("usage") for chunk in chunks)
        for choice in one["choices"]:
            mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in mine) == choice["text"], fields
            assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
            assert all(part["text"] or part["logprobs"] for part in mine[:-1])  # nothing empty but the last
            if choice["logprobs"]:
                joined = [token for part in mine if part["logprobs"] for token in part["logprobs"]["tokens"]]
                assert joined == choice["logprobs"]["tokens"]
            if choice["finish_reason"] == "stop" and fields.get("stop") and not fields.get("echo"):
                shown = choice["text"].count(max(fields["stop"], key=len))
                assert shown <= bool(fields.get("include_stop_str_in_output")), fields


def test_no_usage_unless_it_is_asked_for(served: EngineHandle) -> None:
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        events = streamed(served, prompt="hello", max_tokens=3, stream_options=options)
        assert not any(event.get("usage") for event in events)
        assert all(len(event["choices"]) == 1 for event in events)


def test_every_event_has_what_strict_clients_want(served: EngineHandle) -> None:
    messages = [{"role": "user", "content": "hi"}]
    events = streamed(
        served,
        "/v1/chat/completions",
        messages=messages,
        max_tokens=3,
        ignore_eos=True,
        stream_options={"include_usage": True},
    )
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert len({event["id"] for event in events}) == 1
    assert all(event["choices"] is not None and event["created"] and event["model"] == "tiny" for event in events)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 3


def token_of(served: EngineHandle, text: str) -> list[int]:
    status, data = served.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert status == 200
    tokens: list[int] = json.loads(data)["tokens"]
    return tokens


def test_half_a_character_is_never_shown(served: EngineHandle) -> None:
    first = token_of(served, "水")[0]  # one of three bytes
    bias = {str(first): 100}
    for stream in (False, True):
        if stream:
            events = streamed(served, prompt="x", max_tokens=1, temperature=0, logit_bias=bias, logprobs=0)
            text = "".join(event["choices"][0]["text"] for event in events)
            logprobs = events[0]["choices"][0]["logprobs"]
        else:
            choice = whole(served, prompt="x", max_tokens=1, temperature=0, logit_bias=bias, logprobs=0)["choices"][0]
            text, logprobs = choice["text"], choice["logprobs"]
        assert text == ""
        assert len(logprobs["token_logprobs"]) == 1
        assert logprobs["top_logprobs"] == [{}]
    chat = whole(
        served,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=1,
        temperature=0,
        logit_bias=bias,
        logprobs=True,
    )
    (entry,) = chat["choices"][0]["logprobs"]["content"]
    assert bytes(entry["bytes"]) == "水".encode()[: len(entry["bytes"])]
    assert chat["choices"][0]["message"]["content"] == ""


def test_prompt_probabilities_with_one_token_more(served: EngineHandle) -> None:
    """How evaluation harnesses score a text: echo, logprobs, one token that is thrown away."""
    prompt = "the mill stands by the water"
    choice = whole(served, prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0)["choices"][0]
    scored = choice["logprobs"]
    assert scored["token_logprobs"][0] is None
    assert scored["top_logprobs"][0] is None
    assert len(scored["tokens"]) == len(token_of(served, prompt)) + 1
    assert all(value <= 0 for value in scored["token_logprobs"][1:])
    assert all(1 <= len(top) <= 2 for top in scored["top_logprobs"][1:])
    assert scored["text_offset"][0] == 0
    assert choice["text"].startswith(prompt)
    several = whole(served, prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0, n=2)["choices"]
    assert [one["logprobs"]["token_logprobs"][1:-1] for one in several] == [scored["token_logprobs"][1:-1]] * 2
    by_tokens = whole(served, prompt=token_of(served, prompt), max_tokens=0, echo=True)["choices"][0]
    assert by_tokens["text"] == prompt
    events = streamed(served, prompt=prompt, max_tokens=0, echo=True, logprobs=0)
    assert "".join(event["choices"][0]["text"] for event in events) == prompt
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_seed_is_kept_whoever_is_beside_it_and_none_is_no_seed(served: EngineHandle) -> None:
    fields: dict[str, Any] = {"prompt": "the water", "max_tokens": 30, "seed": 42, "temperature": 1.2}
    alone = whole(served, **fields)["choices"][0]["text"]
    noise: list[dict[str, Any]] = [
        {"prompt": f"{number} the wheel", "max_tokens": 40, "temperature": 1.9, "seed": number if number % 2 else None}
        for number in range(20)
    ]
    noise[3] |= {"guided_regex": "[ab]{30}"}
    noise[4] |= {"top_k": 3, "repetition_penalty": 2.0, "logprobs": 5}
    with ThreadPoolExecutor(24) as pool:
        others = [pool.submit(whole, served, **item) for item in noise]
        mine = [pool.submit(whole, served, **fields) for _ in range(4)]
        assert [one.result()["choices"][0]["text"] for one in mine] == [alone] * 4
        assert all(other.result()["choices"] for other in others)
        greedy = list(pool.map(lambda _: whole(served, prompt="a b", max_tokens=20, temperature=0), range(32)))
    assert len({one["choices"][0]["text"] for one in greedy}) == 1
    del fields["seed"]
    assert len({whole(served, **fields)["choices"][0]["text"] for _ in range(3)}) == 3


def test_ends_and_lengths(served: EngineHandle) -> None:
    messages = [{"role": "user", "content": "hi"}]
    one = whole(served, "/v1/chat/completions", messages=messages, max_completion_tokens=4, ignore_eos=True)
    assert (one["usage"]["completion_tokens"], one["choices"][0]["finish_reason"]) == (4, "length")
    both = whole(served, "/v1/chat/completions", messages=messages, max_tokens=9, max_completion_tokens=4, seed=1)
    assert both["usage"]["completion_tokens"] <= 4
    end = {"logit_bias": {"2": 100}, "temperature": 0, "max_tokens": 9}
    ended = whole(served, prompt="x", **end)
    assert (ended["usage"]["completion_tokens"], ended["choices"][0]["finish_reason"]) == (1, "stop")
    assert ended["choices"][0]["text"] == ""
    assert whole(served, prompt="x", **end, min_tokens=5)["usage"]["completion_tokens"] == 6
    assert whole(served, prompt="x", **end, ignore_eos=True)["usage"]["completion_tokens"] == 9
    stopped = whole(served, prompt="x", temperature=0, max_tokens=9, logit_bias={"10": 100}, stop_token_ids=[10])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert whole(served, prompt="x", max_tokens=2, n=2, best_of=2)["usage"]["completion_tokens"] == 4


def test_users_who_leave_at_any_moment_leave_nothing(served: EngineHandle) -> None:
    """60 clients that leave before, during and after the first bytes; then slots, blocks and gauges are at rest."""
    rng = random.Random(4)

    def leave(_: int) -> None:
        connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
        body = {"model": "tiny", "prompt": "x " * rng.randint(1, 100), "max_tokens": 200, "ignore_eos": True}
        body |= {"stream": rng.random() < 0.7, "n": rng.choice((1, 2))}
        connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {served.token}"})
        if body["stream"] and rng.random() < 0.8:
            connection.getresponse().read(rng.randint(1, 2000))
        assert connection.sock is None or connection.sock.close() is None
        connection.close()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(leave, range(60)))
    wait_for(lambda: served.state().stats.num_requests_running == served.state().stats.num_requests_waiting == 0)
    state = served.state()
    assert state.ledger is not None
    assert state.ledger.kv_blocks_used == 0


def test_a_deadline_counts_from_receipt_and_odd_ones_are_refused(served: EngineHandle) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    for odd in ("-1", "1e3", "²", "9" * 13, "soon"):
        connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
        head = {"authorization": f"Bearer {served.token}", "x-millpond-deadline-ms": odd.encode("latin-1")}
        connection.request("POST", "/v1/completions", json.dumps(body), head)  # type: ignore[arg-type]
        assert connection.getresponse().status == 400
        connection.close()


POISON_SEED = 20261129
NUMBERS: list[Any] = [-1, 0, 10**400, -(10**25), 2**63, 1e308, -1e308, 0.5, 1.5, 3]
ODD: list[Any] = [None, True, "", "x", "\x00", [], {}, [[]], [None], {"a": {"b": [1]}}, "NaN", "9" * 500]
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
COMMON = (
    "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stream",
    "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "stream_options",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "response_format", "model",
    "skip_special_tokens", "include_stop_str_in_output", "logprobs", "unheard_of",
)  # fmt: skip
CHAT = ("messages", "tools", "tool_choice", "top_logprobs", "max_completion_tokens", "chat_template_kwargs")
PLAIN = ("prompt", "echo", "best_of", "suffix")


def poison(rng: random.Random) -> tuple[str, bytes]:
    """A body with one to three fields that are wrong or extreme; perhaps not even JSON."""
    chat = rng.random() < 0.5
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    names = rng.sample(COMMON + (CHAT if chat else PLAIN), rng.randint(1, 3))
    raw = ""
    for name in names:
        kind = rng.random()
        if kind < 0.15:
            raw += f', "{name}": {rng.choice(RAW)}'
            body.pop(name, None)
        elif kind < 0.55:
            body[name] = rng.choice(NUMBERS)
        elif kind < 0.9:
            body[name] = rng.choice(ODD)
        else:
            body[name] = [rng.choice(NUMBERS + ODD) for _ in range(rng.randint(1, 70))]
    data = (json.dumps(body)[:-1] + raw + "}").encode()
    if rng.random() < 0.08:
        data = data[: rng.randint(0, len(data) - 1)]
    elif rng.random() < 0.05:
        data = data.replace(b"x", b"\xff\xfe")
    return path, data


def test_three_hundred_poisoned_bodies_beside_twenty_streams(served: EngineHandle) -> None:
    """Nothing is restarted, no stream is disturbed, nothing answers 5xx, and each refusal is in OpenAI's words."""
    prompts = [f"stream {number} of the water" for number in range(20)]
    fields: dict[str, Any] = {"max_tokens": 200, "seed": 7, "temperature": 0.9, "ignore_eos": True}
    alone = {prompt: whole(served, prompt=prompt, **fields)["choices"][0]["text"] for prompt in prompts}
    pid, before = served.process.pid, served.state()
    done = threading.Event()
    disturbed: list[str] = []

    def stream(prompt: str) -> None:
        while True:
            events = streamed(served, prompt=prompt, **fields)
            if "".join(event["choices"][0]["text"] for event in events) != alone[prompt]:
                disturbed.append(prompt)
            if done.is_set():
                return

    streams = [threading.Thread(target=stream, args=(prompt,)) for prompt in prompts]
    for one in streams:
        one.start()
    rng = random.Random(POISON_SEED)
    refused = 0
    try:
        for _ in range(300):
            path, data = poison(rng)
            status, answer = served.call("POST", path, data)
            assert status < 500, (data[:500], answer)
            if status != 200:
                refused += 1
                error = json.loads(answer)["error"]
                assert set(error) == {"message", "type", "param", "code"}, error
                assert error["message"]
                assert status in (400, 404), (data[:300], error)
                assert error["param"] or error["code"] in ("invalid_json", "context_length_exceeded"), (data, error)
    finally:
        done.set()
        for one in streams:
            one.join()
    assert refused > 200
    assert disturbed == []
    assert served.process.pid == pid
    assert served.process.poll() is None
    wait_for(lambda: served.state().stats.num_requests_running == 0)
    after = served.state()
    assert after.stats.requests_failed_total == before.stats.requests_failed_total
    assert after.ledger is not None
    assert after.ledger.kv_blocks_used == 0
