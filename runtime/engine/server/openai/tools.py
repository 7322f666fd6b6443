"""Tools of a chat: reading them, and the grammar that makes a model call one."""

import dataclasses
import json
import re
from typing import Any, Final

import msgspec

from runtime.engine.causal.grammar import GrammarSpec, lark_json
from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai import toolcalls
from runtime.engine.server.openai.fields import Body
from runtime.engine.server.openai.structured import MAX_SCHEMA_BYTES, check_schema
from runtime.engine.server.openai.toolcalls import ToolFormat
from runtime.engine.tokenizer import TextTokenizer

MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 256 << 10
_MOST_CALLS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MODES: Final = ("none", "auto", "required")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """What may be called. ``forced`` names are the ones of which one has to be; empty leaves it to the model."""

    definitions: tuple[dict[str, Any], ...]
    forced: tuple[str, ...]
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        """Every function that may be called."""
        return frozenset(tool["function"]["name"] for tool in self.definitions)


def read_tools(body: Body) -> Tools | None:
    """Take tools and tool choice out of ``body``; ``None`` when nothing may be called.

    Raises:
        InvalidRequest: names the field that is wrong.
    """
    value, choice = body.take("tools"), body.take("tool_choice")
    parallel = body.boolean("parallel_tool_calls", True)
    definitions = _definitions(value)
    mode, named = _choice(choice)
    if not definitions:
        if mode != "none" and choice not in (None, "auto"):
            raise InvalidRequest("tool_choice needs tools.", param="tool_choice")
        return None
    tools = Tools(definitions=definitions, forced=(), parallel=parallel)
    if named is not None:
        if named not in tools.names:
            raise InvalidRequest(f"tool_choice: there is no tool {named[:64]!r} among tools.", param="tool_choice")
        return dataclasses.replace(tools, forced=(named,), parallel=False)
    if mode == "required":
        return dataclasses.replace(tools, forced=tuple(tool["function"]["name"] for tool in definitions))
    return None if mode == "none" else tools


def _choice(value: Any) -> tuple[str, str | None]:
    """(mode, name of the one function)."""
    if value is None:
        return "auto", None
    if isinstance(value, str) and value in _MODES:
        return value, None
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest(
            f"tool_choice has to be one of {', '.join(_MODES)}, or name a function: "
            '{"type": "function", "function": {"name": ...}}.',
            param="tool_choice",
        )
    return "named", name


def _definitions(value: Any) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise InvalidRequest(f"tools has to be a list of at most {MAX_TOOLS} tools.", param="tools")
    found = tuple(_definition(item, f"tools[{number}]") for number, item in enumerate(value))
    names = [tool["function"]["name"] for tool in found]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools: two of them have the same name.", param="tools")
    if len(msgspec.json.encode(found)) > MAX_TOOLS_BYTES:
        raise InvalidRequest(f"tools has more than {MAX_TOOLS_BYTES >> 10} KiB.", param="tools")
    return found


def _definition(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type") != "function":
        raise InvalidRequest(f'{where} has to be {{"type": "function", "function": {{...}}}}.', param=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.function.name has to be 1 to 64 letters, digits, dots, dashes or underscores.",
            param=f"{where}.function.name",
        )
    described = function.get("description")
    if described is not None and not isinstance(described, str):
        param = f"{where}.function.description"
        raise InvalidRequest(f"{param} has to be a string.", param=param, code="invalid_type")
    for key in function:
        if key not in ("name", "description", "parameters", "strict"):
            shown = f"{where}.function.{key[:64]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    parameters = function.get("parameters")
    schema = {} if parameters is None else check_schema(parameters, f"{where}.function.parameters")
    clean = {"name": name, "description": described or "", "parameters": {"type": "object", **schema}}
    return {"type": "function", "function": clean}


def forced_grammar(
    tools: Tools, kind: ToolFormat, tokenizer: TextTokenizer, *, new_mistral: bool
) -> GrammarSpec | None:
    """The grammar of an answer that is a call of one of the forced tools, or several; ``None`` when none is forced."""
    if not tools.forced:
        return None
    chosen = [tool["function"] for tool in tools.definitions if tool["function"]["name"] in tools.forced]
    if len(msgspec.json.encode(chosen)) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"tools to choose from have more than {MAX_SCHEMA_BYTES >> 10} KiB.", param="tools")
    rules = [f"a{number}: {lark_json(function['parameters'])}" for number, function in enumerate(chosen)]
    objects = " | ".join(f"o{number}" for number in range(len(chosen)))
    separate = kind is ToolFormat.MISTRAL and new_mistral
    key = "parameters" if kind is ToolFormat.LLAMA3 else "arguments"
    for number, function in enumerate(chosen):
        if separate:
            mark = _mark(toolcalls.ARGS, tokenizer)
            rules.append(f"o{number}: {_text(function['name'])} {mark} a{number}")
        else:
            head = f'{{"name": {json.dumps(function["name"])}, "{key}": '
            rules.append(f"o{number}: {_text(head)} a{number} {_text('}')}")
    rules.append(f"call: {objects}")
    rules.append(_start(kind, tokenizer, separate=separate, more=_MOST_CALLS - 1 if tools.parallel else 0))
    return GrammarSpec(kind="lark", text="\n".join(reversed(rules)), param="tools", numbers=True)


def _start(kind: ToolFormat, tokenizer: TextTokenizer, *, separate: bool, more: int) -> str:
    def repeated(one: str, between: str) -> str:
        return f"{one} ({between} {one}){{0,{more}}}" if more else one

    if kind is ToolFormat.HERMES:
        opening, closing = _mark(toolcalls.OPEN, tokenizer), _mark(toolcalls.CLOSE, tokenizer)
        newline = _text("\n")
        return "start: " + repeated(f"{opening} {newline} call {newline} {closing}", newline)
    if kind is ToolFormat.LLAMA3:
        return "start: call"
    mark = _mark(toolcalls.TOOL_CALLS, tokenizer)
    if separate:
        return "start: " + repeated(f"{mark} call", "") if more else f"start: {mark} call"
    return f"start: {mark} {_text('[')} {repeated('call', _text(', '))} {_text(']')}"


def _text(text: str) -> str:
    return json.dumps(text)


def _mark(text: str, tokenizer: TextTokenizer) -> str:
    """A marker as text, or as the one special token that stands for it."""
    token = tokenizer.token_id(text)
    return f"<[{token}]>" if token is not None and token in tokenizer.special_ids else _text(text)


def shown_markers(kind: ToolFormat, tokenizer: TextTokenizer) -> frozenset[int]:
    """Special tokens whose text the parser has to see."""
    tokens = (tokenizer.token_id(mark) for mark in toolcalls.MARKERS[kind])
    return frozenset(token for token in tokens if token is not None) & tokenizer.special_ids
