"""Reading a chat: messages as clients send them, into what a chat template expects."""

import dataclasses
from typing import Any, Final

from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai.fields import Body
from runtime.engine.server.openai.params import Common, read_common

MAX_MESSAGES: Final = 2048
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_FIELDS: Final = ("name", "tool_call_id", "refusal")
_NOT_SERVED: Final = "not served by this engine."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatCall:
    """A checked ``/v1/chat/completions``. ``messages`` hold text only."""

    common: Common
    messages: list[dict[str, Any]]


def read_chat(data: bytes, *, vocab_size: int) -> ChatCall:
    """Read the body of ``/v1/chat/completions``.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    body = Body(data)
    messages = _messages(body.take("messages"))
    common = read_common(body, vocab_size=vocab_size, chat=True)
    body.refuse_unless("tools", ([],), _NOT_SERVED)
    body.refuse_unless("tool_choice", ("none", "auto"), _NOT_SERVED)
    body.refuse_unless("functions", ([],), _NOT_SERVED)
    body.refuse_unless("function_call", ("none", "auto"), _NOT_SERVED)
    body.refuse_unless("response_format", ({"type": "text"},), _NOT_SERVED)
    body.refuse_unless("modalities", (["text"],), "only text is served.")
    body.refuse_unless("audio", (), _NOT_SERVED)
    body.ignore("parallel_tool_calls")
    body.finish()
    return ChatCall(common=common, messages=messages)


def _messages(value: Any) -> list[dict[str, Any]]:
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
        if role != "assistant" or not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise InvalidRequest(f"{where}.tool_calls is not a list of tool calls.", param=f"{where}.tool_calls")
        message["tool_calls"] = calls
    for name in value:
        if name not in ("role", "content", "tool_calls", *_TEXT_FIELDS):
            shown = f"{where}.{name[:64]}"
            raise InvalidRequest(f"Unknown parameter: {shown!r}.", param=shown, code="unknown_parameter")
    return message


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
