"""Output that follows a schema, a regular expression or a grammar; and what happens to those that are none."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from runtime.engine import errors
from runtime.engine.causal.grammar import GrammarService, GrammarSpec
from runtime.engine.causal.sequences import ConstraintFailed, SamplingParams
from tests.build.engines import EngineHandle, LocalEngine

pytestmark = pytest.mark.engine

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["x", "y"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture
def client(served: EngineHandle) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=served.token, max_retries=0)


def ask(served: EngineHandle, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 300, "seed": 4, **fields}
    status, data = served.call("POST", "/v1/chat/completions", body)
    return status, json.loads(data)


def text_of(served: EngineHandle, **fields: Any) -> str:
    status, body = ask(served, **fields)
    assert status == 200, body
    assert body["choices"][0]["finish_reason"] == "stop", body
    return str(body["choices"][0]["message"]["content"])


def test_a_schema_through_the_official_client(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(4):
        arguments: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 300, "seed": seed}
        whole = client.chat.completions.create(**arguments, response_format=wanted).choices[0]
        assert whole.finish_reason == "stop"
        value = json.loads(whole.message.content or "")
        assert set(value) == {"name", "age", "kind"}
        assert 0 <= value["age"] <= 120
        assert value["kind"] in "xy"
        stream = client.chat.completions.create(**arguments, response_format=wanted, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.message.content


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_way_to_ask(served: EngineHandle, temperature: float) -> None:
    assert isinstance(json.loads(text_of(served, response_format={"type": "json_object"}, seed=0)), dict)
    assert text_of(served, guided_regex="[ab]{3}c", temperature=temperature)[3] == "c"
    assert text_of(served, structured_outputs={"regex": "x{2,4}"}).strip("x") == ""
    choices = ["yes", "no\n", 'q"\\uote', "水"]
    assert text_of(served, guided_choice=choices, temperature=temperature) in choices
    assert text_of(served, structured_outputs={"choice": choices}) in choices
    assert text_of(served, guided_grammar='start: "a" /b{1,3}/').strip("b") == "a"
    assert json.loads(text_of(served, guided_json=json.dumps(PERSON)))["kind"] in "xy"
    assert json.loads(text_of(served, structured_outputs={"json": PERSON}))["kind"] in "xy"
    assert ask(served, structured_outputs={"json_object": False}, max_tokens=2)[0] == 200
    assert ask(served, response_format={"type": "text"}, max_tokens=2)[0] == 200


def test_completions_and_several_choices_each_follow_it(served: EngineHandle) -> None:
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 3, "max_tokens": 50, "guided_regex": "[0-9]{4}"}
    status, data = served.call("POST", "/v1/completions", body)
    assert status == 200
    texts = [choice["text"] for choice in json.loads(data)["choices"]]
    assert all(len(text) == 4 and text.isdigit() for text in texts)
    assert len(set(texts)) > 1


def test_limits_of_tokens_and_penalties_do_not_break_it(served: EngineHandle) -> None:
    status, body = ask(served, guided_regex="[ab]{9}", max_tokens=2)
    assert (status, body["choices"][0]["finish_reason"]) == (200, "length")
    # the grammar has come to its end: more tokens than it has cannot be forced
    assert text_of(served, guided_regex="ab", min_tokens=40) == "ab"
    assert text_of(served, guided_regex="ab", logit_bias={"2": -100}) == "ab"
    assert text_of(served, guided_regex="a|b", top_p=0.01, top_k=1, presence_penalty=2, min_p=0.9) in ("a", "b")


def test_the_empty_schema_is_any_value_and_numbers_end(local: LocalEngine) -> None:
    spec = GrammarSpec(kind="json", text="{}", param="x", numbers=True)
    grammar = asyncio.run(GrammarService(local.source.tokenizer, local.source.eos_ids).compile(spec, b""))
    digits = tuple((local.source.tokenizer.encode(str(digit), special=False)[0], 100.0) for digit in range(10))
    pending = local.submit(
        [5, 6],
        200,
        sampling=SamplingParams(temperature=1.0, logit_bias=digits),
        ignore_eos=False,
        constraint=grammar,
    )
    text = pending.text()
    assert len(text) <= 60
    json.loads(text)


DEEP: dict[str, Any] = {"type": "string"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": ""}, "guided_json"),
    ({"guided_json": "nope"}, "guided_json"),
    ({"guided_json": []}, "guided_json"),
    ({"guided_json": {"type": "nonsense"}}, "guided_json"),
    ({"guided_json": {"type": 5}}, "guided_json"),
    ({"guided_json": {"not": {"type": "string"}}}, "guided_json"),
    ({"guided_json": {"$ref": "http://127.0.0.1/x.json"}}, "guided_json"),
    ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
    ({"guided_json": {"type": "string", "pattern": "(((("}}, "guided_json"),
    ({"guided_json": {"description": "x" * (1 << 20)}}, "guided_json"),
    ({"guided_json": {"enum": ["x"] * 5000}}, "guided_json"),
    ({"guided_json": DEEP}, "guided_json"),
    ({"guided_json": {"allOf": [{"anyOf": [{"properties": {f"a{j}": {}}} for j in range(6)]}] * 8}}, "guided_json"),
    ({"guided_regex": "((("}, "guided_regex"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "(?=a)b"}, "guided_regex"),
    ({"guided_regex": "a" * 9000}, "guided_regex"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_grammar": "start: ((("}, "guided_grammar"),
    ({"guided_grammar": "no start"}, "guided_grammar"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_choice": "yes"}, "guided_choice"),
    ({"guided_choice": ["x"] * 501}, "guided_choice"),
    ({"guided_choice": ["x"], "guided_regex": "x"}, "guided_choice"),
    ({"guided_regex": "x", "ignore_eos": True}, "ignore_eos"),
    ({"guided_decoding_backend": "other"}, "guided_decoding_backend"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"yaml": 1}}, "structured_outputs.yaml"),
    ({"structured_outputs": "json"}, "structured_outputs"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": ["json_object"]}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        "response_format.json_schema.schema",
    ),
]


def test_grammars_that_are_none_cost_nobody_else_anything(served: EngineHandle) -> None:
    """In any order with good ones, each in under a second; a stream beside them says what it says alone."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 450, "temperature": 0, "ignore_eos": True}
    texts: list[str] = []

    def watch() -> None:
        _, data = served.call("POST", "/v1/completions", body)
        texts.append(json.loads(data)["choices"][0]["text"])

    watch()
    beside = threading.Thread(target=watch)
    beside.start()
    for number, (fields, param) in enumerate(REFUSED):
        began = time.monotonic()
        status, answer = ask(served, **fields)
        assert status == 400, (fields, answer)
        assert answer["error"]["param"] == param, answer
        assert time.monotonic() - began < 5.0  # a bound that only a hang passes
        if number % 8 == 0:
            assert text_of(served, guided_regex="[ab]c")[1] == "c"
    beside.join()
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
        {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        {"type": "array", "minItems": 10**8, "maxItems": 10**12},
        {"type": "string", "minLength": 10**9},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
        {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    ],
    ids=["self", "recursive", "draft-07 items", "many items", "long string", "many properties", "wild pattern"],
)
def test_schemas_that_look_dangerous_end_one_way_or_the_other(served: EngineHandle, schema: dict[str, Any]) -> None:
    status, body = ask(served, guided_json=schema, max_tokens=12)
    assert status in (200, 400), body
    if status == 200:
        assert body["choices"][0]["finish_reason"] in ("length", "stop")


async def test_compiling_that_takes_too_long_is_refused(local: LocalEngine) -> None:
    service = GrammarService(local.source.tokenizer, local.source.eos_ids, seconds=0.0)
    slow = GrammarSpec(kind="json", text=json.dumps({"enum": [f"x{i}" for i in range(20000)]}), param="guided_json")
    with pytest.raises((errors.InvalidRequest, errors.Overloaded)) as caught:
        await service.compile(slow, b"")
    assert caught.value.code in ("invalid_value", "grammar_queue_full")
    service.close()


async def test_compiled_grammars_are_kept_per_tenant(local: LocalEngine) -> None:
    service = GrammarService(local.source.tokenizer, local.source.eos_ids)
    spec = GrammarSpec(kind="regex", text="a+b", param="guided_regex")
    first = await service.compile(spec, b"one")
    assert await service.compile(spec, b"one") is first
    assert await service.compile(spec, b"two") is not first
    for number in range(70):
        await service.compile(GrammarSpec(kind="regex", text=f"a{number}", param="x"), b"one")
    assert await service.compile(spec, b"one") is not first  # the oldest is given up
    service.close()


class _Broken:
    """A constraint that comes to its limits after two tokens."""

    def fresh(self) -> "_Broken":
        return self

    def mask(self, output: Any) -> bytes:
        if len(output) >= 2:
            raise ConstraintFailed("its fuel is used up")
        return b"\xff" * 40


def test_a_grammar_that_fails_midway_ends_its_own_request_only(local: LocalEngine) -> None:
    alone = local.generate([9, 8, 7], 20)
    beside = local.submit([9, 8, 7], 20)
    broken = local.submit([1, 2, 3], 20, constraint=_Broken()).wait()
    assert broken.error.code == "grammar_failed"
    assert "fuel" in broken.error.message
    assert beside.tokens() == alone
    assert local.pool.used == 0


def test_a_preempted_sequence_keeps_its_place_in_the_grammar(llama_folder: Path, local: LocalEngine) -> None:
    spec = GrammarSpec(kind="regex", text="[0-9]{30}", param="x")
    grammar = asyncio.run(GrammarService(local.source.tokenizer, local.source.eos_ids).compile(spec, b""))

    def fields(seed: int) -> dict[str, Any]:
        sampling = SamplingParams(temperature=1.0)
        return {"sampling": sampling, "seeds": (seed,), "ignore_eos": False, "constraint": grammar}

    alone = [local.submit([5, 6, seed], 40, **fields(seed)).text() for seed in range(3)]
    small = LocalEngine(llama_folder, blocks=12)
    beside = [small.submit([5, 6, seed], 40, **fields(seed)) for seed in range(3)]
    assert [pending.text() for pending in beside] == alone
    assert all(len(text) == 30 and text.isdigit() for text in alone)
    assert small.scheduler.preemptions_total > 0
    small.engine.stop()
