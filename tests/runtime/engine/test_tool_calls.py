"""Tool calls: told apart from text however it is cut, forced by grammar, and the same streamed and whole."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.causal.grammar import GrammarService
from runtime.engine.causal.sequences import SamplingParams
from runtime.engine.server.openai import toolcalls
from runtime.engine.server.openai.toolcalls import CallArguments, CallStart, Content, ToolFormat, ToolParser
from runtime.engine.server.openai.tools import Tools, forced_grammar
from tests.build.engines import EngineHandle, LocalEngine, engine_process
from tests.build.models import HERMES_TEMPLATE, with_template

pytestmark = pytest.mark.engine

NAMES = frozenset({"get_weather", "add"})
HERMES, MISTRAL, LLAMA3 = ToolFormat.HERMES, ToolFormat.MISTRAL, ToolFormat.LLAMA3
ONE = [("get_weather", {"city": 'a } \\ " ü'})]
TWO = [("get_weather", {"city": "x"}), ("add", {"a": [1, {"b": 2}]})]


def written(calls: list[tuple[str, dict[str, Any]]], key: str = "arguments") -> list[str]:
    return [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]


def hermes(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written(calls))


CASES = [
    pytest.param(HERMES, "just text < with a mark", "just text < with a mark", [], id="no call"),
    pytest.param(HERMES, hermes(ONE), "", ONE, id="hermes"),
    pytest.param(HERMES, hermes(TWO), "", TWO, id="hermes, two"),
    pytest.param(HERMES, "Let me see.\n" + hermes(ONE), "Let me see.", ONE, id="hermes, text before"),
    pytest.param(
        HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", {"a": 1})], id="order"
    ),
    pytest.param(HERMES, "<tool_call>oh no</tool_call>", "oh no", [], id="hermes, no object"),
    pytest.param(HERMES, '<tool_call>{"x": 1}</tool_call>', '{"x": 1}', [], id="hermes, no name"),
    pytest.param(MISTRAL, f"[TOOL_CALLS] [{', '.join(written(TWO))}]", "", TWO, id="mistral list"),
    pytest.param(MISTRAL, f"[TOOL_CALLS]{written(ONE)[0]}", "", ONE, id="mistral object"),
    pytest.param(MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1}', "", [("add", {"a": 1})], id="mistral name"),
    pytest.param(
        MISTRAL,
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 2}',
        "",
        [("add", {"a": 1}), ("add", {"a": 2})],
        id="mistral names",
    ),
    pytest.param(LLAMA3, written(ONE, "parameters")[0], "", ONE, id="llama3"),
    pytest.param(LLAMA3, "<|python_tag|>" + "; ".join(written(TWO, "parameters")), "", TWO, id="llama3, two"),
    pytest.param(LLAMA3, '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', [], id="llama3, an answer in JSON"),
    pytest.param(LLAMA3, "text first {", "text first {", [], id="llama3, text"),
]


def read(kind: ToolFormat, parts: list[str], *, cut: bool = False) -> tuple[str, list[tuple[str, str]], ToolParser]:
    """(content, calls as name and arguments, the parser), after ``parts``."""
    parser = ToolParser(kind, NAMES)
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.finish(cut=cut)
    content, calls = "", []
    for piece in pieces:
        if isinstance(piece, Content):
            content += piece.text
        elif isinstance(piece, CallStart):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        else:
            assert isinstance(piece, CallArguments)
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    return content, calls, parser


@pytest.mark.parametrize(("kind", "text", "content", "calls"), CASES)
def test_calls_and_text_are_told_apart(kind: ToolFormat, text: str, content: str, calls: list[Any]) -> None:
    said, found, parser = read(kind, [text])
    assert said == content
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert parser.complete == parser.calls == len(calls)


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from([param.values for param in CASES]), data=st.data())
def test_however_the_text_is_cut_it_says_the_same(case: Any, data: st.DataObject) -> None:
    kind, text = case[0], case[1]
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=len(text))))
    edges = [0, *places, len(text)]
    parts = [text[first:last] for first, last in itertools.pairwise(edges)]
    assert read(kind, parts)[:2] == read(kind, [text])[:2]


@pytest.mark.parametrize("length", range(1, len(hermes(ONE))))
def test_an_answer_cut_anywhere_shows_no_markup_and_no_whole_call(length: int) -> None:
    said, calls, parser = read(HERMES, list(hermes(ONE)[:length]), cut=True)
    assert said in ("", "<")  # one sign alone may be text
    assert all(json.dumps(ONE[0][1], ensure_ascii=False).startswith(arguments) for _, arguments in calls)
    if parser.complete < parser.calls:
        with pytest.raises(json.JSONDecodeError):
            json.loads(calls[0][1])


def test_arguments_stream_while_they_grow() -> None:
    parser = ToolParser(HERMES, NAMES)
    seen = [piece for char in hermes(ONE) for piece in parser.feed(char)]
    assert isinstance(seen[0], CallStart)
    assert len(seen) > 5


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (HERMES_TEMPLATE, HERMES),
        ("{{ tools }}[TOOL_CALLS]", MISTRAL),
        ('{% if role == "ipython" %}{{ tools }}{"name": .., "parameters": ..}', LLAMA3),
        ("{{ tools }}<tool_call><function=x>", None),
        ("{{ messages }}<tool_call>", None),
        ("{{ tools }}", None),
    ],
)
def test_formats_are_known_by_the_template(template: str, kind: ToolFormat | None) -> None:
    assert toolcalls.detect(template) is kind


def definition(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", 'a"b']}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
DEFINITIONS = (definition("get_weather", CITY), definition("add", SUM))


@pytest.mark.parametrize(
    ("kind", "new_mistral"), [(HERMES, False), (MISTRAL, False), (MISTRAL, True), (LLAMA3, False)], ids=str
)
@pytest.mark.parametrize("forced", [("get_weather", "add"), ("add",)], ids=["required", "named"])
def test_forced_calls_are_calls(
    local: LocalEngine, kind: ToolFormat, new_mistral: bool, forced: tuple[str, ...]
) -> None:
    tokenizer = local.source.tokenizer
    tools = Tools(definitions=DEFINITIONS, forced=forced, parallel=False)
    spec = forced_grammar(tools, kind, tokenizer, new_mistral=new_mistral)
    assert spec is not None
    grammar = asyncio.run(GrammarService(tokenizer, local.source.eos_ids).compile(spec, b""))
    for seed in range(3):
        pending = local.submit(
            [5, 6, 7],
            150,
            sampling=SamplingParams(temperature=0.8),
            seeds=(seed,),
            ignore_eos=False,
            constraint=grammar,
        )
        said, calls, _ = read(kind, [pending.text()])
        assert said == ""
        ((name, arguments),) = calls
        assert name in forced
        value = json.loads(arguments)
        assert value["city"] in ("Rome", 'a"b') if name == "get_weather" else 0 <= value["a"] <= 99


@pytest.fixture(scope="module")
def tooled(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """An engine whose chat template has tools."""
    folder = with_template(llama_folder, tmp_path_factory.mktemp("tooled") / "model", HERMES_TEMPLATE)
    with engine_process(folder) as handle:
        yield handle.wait_ready()


@pytest.fixture
def client(tooled: EngineHandle) -> openai.OpenAI:
    return openai.OpenAI(base_url=tooled.url + "/v1", api_key=tooled.token, max_retries=0)


MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]


def test_a_required_call_streams_as_the_client_expects(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 5,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**arguments).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    assert whole.message.tool_calls is not None
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", 'a"b')
    deltas: list[Any] = []
    reasons = []
    for chunk in client.chat.completions.create(**arguments, stream=True):
        assert not chunk.choices[0].delta.content
        deltas += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    first, *rest = deltas
    assert (first.index, first.type, first.function.name, first.function.arguments) == (
        0,
        "function",
        "get_weather",
        "",
    )
    assert first.id.startswith("call_")
    assert all(delta.id is None and delta.type is None and delta.function.name is None for delta in rest)
    assert "".join(delta.function.arguments for delta in rest) == call.function.arguments
    assert reasons[-1] == "tool_calls"
    assert not any(reasons[:-1])


def test_several_calls_keep_their_numbers(client: openai.OpenAI) -> None:
    for seed in range(40):
        stream = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            tools=TOOLS,
            tool_choice="required",
            seed=seed,
            max_tokens=300,
            stream=True,
        )
        joined: dict[int, str] = {}
        ids = set()
        for chunk in stream:
            for delta in chunk.choices[0].delta.tool_calls or []:
                assert delta.function is not None
                joined[delta.index] = joined.get(delta.index, "") + (delta.function.arguments or "")
                ids |= {delta.id} if delta.id else set()
        if len(joined) > 1 and chunk.choices[0].finish_reason == "tool_calls":
            assert list(joined) == list(range(len(joined)))
            assert all(json.loads(arguments) for arguments in joined.values())
            assert len(ids) == len(joined)
            return
    pytest.fail("no seed gave two calls")


def test_a_call_cut_by_its_length_says_so(client: openai.OpenAI) -> None:
    for stream in (False, True):
        arguments: dict[str, Any] = {
            "model": "tiny",
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "max_tokens": 5,
        }
        if stream:
            chunks = list(client.chat.completions.create(**arguments, stream=True))
            content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            choice = client.chat.completions.create(**arguments).choices[0]
            content, reason = choice.message.content or "", choice.finish_reason
        assert (content, reason) == ("", "length")


def test_what_the_template_is_given(tooled: EngineHandle) -> None:
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]

    def rendered(**fields: Any) -> str:
        status, data = tooled.call("POST", "/tokenize", {"messages": history, **fields})
        assert status == 200, data
        status, data = tooled.call("POST", "/detokenize", {"model": "tiny", "tokens": json.loads(data)["tokens"]})
        assert status == 200
        return str(json.loads(data)["prompt"])

    text = rendered(tools=TOOLS)
    assert "<tool_call>get_weather Rome</tool_call>" in text
    assert '"city"' in text
    assert text.endswith("assistant\n")
    without = rendered(tools=TOOLS, tool_choice="none", add_generation_prompt=False)
    assert '"city"' not in without
    assert without.endswith("sunny<|im_end|>\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "x", "more": 1}}]}, "tools[0].function.more"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools"),
        ({"tools": TOOLS * 200}, "tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "y"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "nonsense"}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_wrong_tools_are_refused_by_name(tooled: EngineHandle, fields: dict[str, Any], param: str) -> None:
    status, data = tooled.call("POST", "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, **fields})
    assert status == 400, data
    assert json.loads(data)["error"]["param"] == param


def test_a_template_without_tools_refuses_them(served: EngineHandle) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS}
    status, data = served.call("POST", "/v1/chat/completions", body)
    assert (status, json.loads(data)["error"]["param"]) == (400, "tools")
    assert served.call("POST", "/v1/chat/completions", {**body, "tool_choice": "none", "max_tokens": 2})[0] == 200
