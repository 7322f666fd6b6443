"""Reading a chat: messages as clients send them, into what a chat template expects."""

import dataclasses
import math
from typing import Any, Final

import msgspec

from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai.fields import Body
from runtime.engine.server.openai.params import Common, read_common
from runtime.engine.server.openai.tools import Tools, read_tools

MAX_MESSAGES: Final = 2048
MAX_CALLS: Final = 128
MAX_EXTRAS: Final = 16
_MAX_NAME: Final = 64
_MAX_EXTRA_CHARS: Final = 4096
_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_FIELDS: Final = ("name", "tool_call_id", "refusal")
_NOT_SERVED: Final = "not served by this engine."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatCall:
    """A checked ``/v1/chat/completions``. ``messages`` hold text only; ``extras`` are variables for the template."""

    common: Common
    messages: list[dict[str, Any]]
    tools: Tools | None
    extras: dict[str, Any]


def read_chat(data: bytes, *, vocab_size: int) -> ChatCall:
    """Read the body of ``/v1/chat/completions``.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    body = Body(data)
    messages = read_messages(body.take("messages"))
    common = read_common(body, vocab_size=vocab_size, chat=True)
    tools = read_tools(body)
    if tools is not None and common.structured is not None:
        raise InvalidRequest(
            f"tools cannot be used with {common.structured.param}; set tool_choice to none, or leave one out.",
            param=common.structured.param,
        )
    if tools is not None and tools.forced and common.ignore_eos:
        raise InvalidRequest("ignore_eos cannot be used with a tool_choice that forces a call.", param="ignore_eos")
    extras = template_extras(body.take("chat_template_kwargs"))
    body.refuse_unless("functions", ([],), _NOT_SERVED)
    body.refuse_unless("function_call", ("none", "auto"), _NOT_SERVED)
    body.refuse_unless("modalities", (["text"],), "only text is served.")
    body.refuse_unless("audio", (), _NOT_SERVED)
    body.ignore("reasoning_effort", "verbosity", "prediction")
    body.finish()
    return ChatCall(common=common, messages=messages, tools=tools, extras=extras)


def template_extras(value: Any) -> dict[str, Any]:
    """vLLM's ``chat_template_kwargs``: plain values under names that the engine does not set itself."""
    name = "chat_template_kwargs"
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_EXTRAS:
        raise InvalidRequest(f"{name} has to be an object of at most {MAX_EXTRAS} values.", param=name)
    for key, item in value.items():
        if not key.isidentifier() or len(key) > _MAX_NAME or key in _RESERVED:
            raise InvalidRequest(f"{name}: {key[:_MAX_NAME]!r} cannot be set.", param=name)
        if not _is_plain(item):
            raise InvalidRequest(f"{name}.{key} has to be a string, a number or a truth value.", param=f"{name}.{key}")
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_EXTRA_CHARS
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a chat, checked.

    Raises:
        InvalidRequest: names the part that is wrong.
    """
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages has to be a list with at least one message.", param="messages")
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(f"messages has more than {MAX_MESSAGES} entries.", param="messages")
    return [_message(item, f"messages[{number}]") for number, item in enumerate(value)]


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} has to be an object.", param=where, code="invalid_type")
    stated = value.get("role")
    role = _ROLES.get(stated) if isinstance(stated, str) else None
    if role is None:
        raise InvalidRequest(f"{where}.role has to be one of {', '.join(_ROLES)}.", param=f"{where}.role")
    message: dict[str, Any] = {"role": role, "content": _content(value.get("content"), role, where)}
    for name in _TEXT_FIELDS:
        field = value.get(name)
        if field is not None and not isinstance(field, str):
            raise InvalidRequest(f"{where}.{name} has to be a string.", param=f"{where}.{name}", code="invalid_type")
        if field is not None and name != "refusal":
            message[name] = field
    calls = value.get("tool_calls")
    if calls:
        if role != "assistant" or not isinstance(calls, list) or len(calls) > MAX_CALLS:
            raise InvalidRequest(f"{where}.tool_calls is not a list of tool calls.", param=f"{where}.tool_calls")
        message["tool_calls"] = [_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    for name in value:
        if name not in ("role", "content", "tool_calls", *_TEXT_FIELDS):
            shown = f"{where}.{name[:64]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    return message


def _call(value: Any, where: str) -> dict[str, Any]:
    """A call of an earlier answer. Templates write arguments out themselves: they get the object, not its text."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where} has to have a function with a name.", param=where, code="invalid_type")
    if not isinstance(value.get("id", ""), str):
        raise InvalidRequest(f"{where}.id has to be a string.", param=f"{where}.id", code="invalid_type")
    given = function.get("arguments")
    arguments = _arguments(given, f"{where}.function.arguments")
    return {
        "id": value.get("id", ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(value: Any, where: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(value or "{}") if isinstance(value, str) else value
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise InvalidRequest(f"{where} is not valid JSON: {exc}.", param=where) from exc
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"{where} has to be the JSON text of an object.", param=where, code="invalid_type")
    return decoded


def _content(value: Any, role: str, where: str) -> str:
    """Text of a message. Assistants may have said nothing, as they do beside a tool call."""
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return ""
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{where}.content has to be a string or a list of parts.", param=f"{where}.content", code="invalid_type"
        )
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}.content: only parts of type text are served.", param=f"{where}.content")
        texts.append(part["text"])
    return "\n".join(texts)
