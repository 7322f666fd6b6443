"""What a request says about the form of its output: OpenAI's ``response_format`` and vLLM's names for grammars.

Everything is bounded here before anything is compiled: bytes, depth and number of parts.
"""

import json
from typing import Any, Final

import msgspec

from runtime.engine.causal.grammar import GrammarSpec
from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai.fields import Body

MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 32
MAX_PARTS: Final = 4000
MAX_PATTERN_CHARS: Final = 8192
MAX_LARK_CHARS: Final = 32 << 10
MAX_CHOICES: Final = 500
MAX_CHOICE_CHARS: Final = 1024
_MAX_NAME: Final = 64
ANY_OBJECT: Final = '{"type":"object"}'
_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED: Final = ("json", "regex", "choice", "grammar", "json_object")


def read_structured(body: Body) -> GrammarSpec | None:
    """Take every field about the form of the output out of ``body``; ``None`` when text is free.

    Raises:
        InvalidRequest: a value is wrong or beyond a limit, or two fields ask for something.
    """
    found = [spec for spec in (_response_format(body), *_guided(body), *_structured_outputs(body)) if spec is not None]
    for name in ("guided_decoding_backend", "guided_whitespace_pattern", "structural_tag"):
        body.refuse_unless(name, (), "not served by this engine.")
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0].param} and {found[1].param} both say what the output looks like; give one.",
            param=found[1].param,
        )
    return found[0] if found else None


def _response_format(body: Body) -> GrammarSpec | None:
    value = body.take("response_format")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest("response_format has to be an object.", param="response_format", code="invalid_type")
    kind = value.get("type")
    known = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    for name in value:
        if name not in known:
            shown = f"response_format.{name[:_MAX_NAME]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec(kind="json", text=ANY_OBJECT, param="response_format", numbers=True)
    if kind != "json_schema":
        raise InvalidRequest(
            "response_format.type has to be text, json_object or json_schema.", param="response_format.type"
        )
    return _json_schema(value.get("json_schema"))


def _json_schema(value: Any) -> GrammarSpec:
    where = "response_format.json_schema"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} has to be an object.", param=where, code="invalid_type")
    for name in value:
        if name not in ("name", "schema", "strict", "description"):
            shown = f"{where}.{name[:_MAX_NAME]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    for name in ("name", "description"):
        if value.get(name) is not None and not isinstance(value[name], str):
            raise InvalidRequest(f"{where}.{name} has to be a string.", param=f"{where}.{name}", code="invalid_type")
    if value.get("strict") is not None and not isinstance(value["strict"], bool):
        raise InvalidRequest(f"{where}.strict has to be true or false.", param=f"{where}.strict", code="invalid_type")
    if "schema" not in value:
        raise InvalidRequest(f"{where}.schema is missing.", param=f"{where}.schema")
    return schema_spec(value["schema"], f"{where}.schema")


def schema_spec(value: Any, where: str) -> GrammarSpec:
    """A JSON schema as a grammar."""
    return GrammarSpec(
        kind="json", text=msgspec.json.encode(check_schema(value, where)).decode(), param=where, numbers=True
    )


def check_schema(value: Any, where: str) -> dict[str, Any]:
    """Return ``value`` if it is an object within the limits."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} has to be a JSON schema: an object.", param=where, code="invalid_type")
    size = len(msgspec.json.encode(value))
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"{where} has {size} bytes, the most is {MAX_SCHEMA_BYTES}.", param=where)
    _check_shape(value, where)
    return value


def _check_shape(value: Any, where: str) -> None:
    """Refuse what is nested too deeply or has too many parts, without recursing."""
    parts, level = 0, [value]
    for depth in range(MAX_DEPTH + 1):
        parts += len(level)
        if parts > MAX_PARTS:
            raise InvalidRequest(f"{where} has more than {MAX_PARTS} parts.", param=where)
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
        if depth == MAX_DEPTH:
            raise InvalidRequest(f"{where} is nested more than {MAX_DEPTH} levels deep.", param=where)


def _guided(body: Body) -> list[GrammarSpec | None]:
    return [_by_kind(kind, body.take(name), name) for name, kind in _GUIDED.items()]


def _structured_outputs(body: Body) -> list[GrammarSpec | None]:
    value = body.take("structured_outputs")
    if value is None:
        return []
    if not isinstance(value, dict):
        raise InvalidRequest("structured_outputs has to be an object.", param="structured_outputs", code="invalid_type")
    for name in value:
        if name not in _STRUCTURED:
            shown = f"structured_outputs.{name[:_MAX_NAME]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    found = [_by_kind(kind, value.get(kind), f"structured_outputs.{kind}") for kind in _STRUCTURED]
    if not any(found) and value.get("json_object") is not False:
        raise InvalidRequest(f"structured_outputs needs one of {', '.join(_STRUCTURED)}.", param="structured_outputs")
    return found


def _by_kind(kind: str, value: Any, where: str) -> GrammarSpec | None:
    if value is None:
        return None
    if kind == "json":
        return schema_spec(_decoded(value, where), where)
    if kind == "json_object":
        if not isinstance(value, bool):
            raise InvalidRequest(f"{where} has to be true or false.", param=where, code="invalid_type")
        return GrammarSpec(kind="json", text=ANY_OBJECT, param=where, numbers=True) if value else None
    if kind == "choice":
        return _choice(value, where)
    most = MAX_PATTERN_CHARS if kind == "regex" else MAX_LARK_CHARS
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise InvalidRequest(f"{where} has to be a string of 1 to {most} characters.", param=where)
    return GrammarSpec(kind="regex" if kind == "regex" else "lark", text=value, param=where)


def _decoded(value: Any, where: str) -> Any:
    """vLLM also takes a schema as a string of JSON."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"{where} has more than {MAX_SCHEMA_BYTES} characters.", param=where)
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"{where} is not valid JSON: {exc}.", param=where) from exc


def _choice(value: Any, where: str) -> GrammarSpec:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        raise InvalidRequest(f"{where} has to be a list of 1 to {MAX_CHOICES} strings.", param=where)
    if not all(isinstance(item, str) and 0 < len(item) <= MAX_CHOICE_CHARS for item in value):
        raise InvalidRequest(f"{where}: each entry is a string of 1 to {MAX_CHOICE_CHARS} characters.", param=where)
    alternatives = " | ".join(json.dumps(item, ensure_ascii=False) for item in value)
    return GrammarSpec(kind="lark", text=f"start: {alternatives}", param=where)
