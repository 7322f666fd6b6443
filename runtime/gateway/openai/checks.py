"""What a client may ask: everything that costs is bounded here, before a limit is taken or an engine is asked. Pure.

Rule for fields: those read here are checked; all others pass on unchanged and the engine decides. Nothing in a body can
set what the platform adds, because that travels in headers which are written from scratch.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from runtime.gateway.limits import Demand
from runtime.gateway.refusals import Reason, Refusal

T = TypeVar("T")

MAX_MODEL_CHARS: Final = 256
MAX_MESSAGES: Final = 4096
MAX_INPUTS: Final = 2048
TOOLS_TOKENS: Final = 512
MAX_STOP_CHARS: Final = 1024
MAX_TOKENS: Final = 10_000_000
MAX_LOGPROBS: Final = 20

_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Made once: telling msgspec a type anew costs more than decoding with it.
_TEXT: Final = msgspec.json.Decoder(str | None)
_FLAG: Final = msgspec.json.Decoder(bool | None)
_NUMBER: Final = msgspec.json.Decoder(int | None)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)
_TEXT_OR_LIST: Final = msgspec.json.Decoder(str | list[msgspec.Raw] | None)
_TEXT_OR_TEXTS: Final = msgspec.json.Decoder(str | list[str] | None)
_encoder = msgspec.json.Encoder()


class Bounds(msgspec.Struct, frozen=True):
    """The limits of this gateway that the checks need."""

    depth: int
    choices: int
    stops: int


class Ask(msgspec.Struct, frozen=True):
    """One checked request. ``completion_tokens`` is what it allows per choice, ``None`` when it does not say;
    ``prompt_bound`` is what its prompts have at most, in tokens.
    """

    operation: str  # "chat.completions", "completions" or "embeddings"
    model: str
    stream: bool
    choices: int
    completion_tokens: int | None
    prompt_bound: int
    fields: dict[str, msgspec.Raw]

    def body_for(self, served_name: str) -> bytes:
        """The body to send to an engine that serves ``served_name``."""
        return _encoder.encode({**self.fields, "model": msgspec.Raw(_encoder.encode(served_name))})

    def demand(self, max_model_len: int, default_completion: int) -> Demand:
        """What this request may come to: a prompt has no more tokens than bytes, nor than the model takes.

        Where the request names no maximum, ``default_completion`` is taken from limits per minute, and budgets are
        held to all that the model can take.
        """
        asked, prompt = self.completion_tokens, self.prompt_bound
        completion = default_completion if asked is None else asked
        most = completion
        if max_model_len > 0:
            prompt = min(prompt, max_model_len * self.choices)
            completion = min(completion, max_model_len)
            most = max_model_len if asked is None else completion
        return Demand(prompt, completion * self.choices, most * self.choices)


def check_chat(body: bytes, bounds: Bounds) -> Ask:
    """Check the body of a chat completion; :class:`Refusal` (400) says which field is wrong and what is allowed."""
    fields = _fields(body, bounds)
    messages = _field(fields, "messages", _LIST)
    if not messages:
        raise _bad("messages must be a non-empty list.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise _bad(f"messages holds {len(messages)} entries; at most {MAX_MESSAGES} are allowed.", "messages")
    _in_range(fields, "top_logprobs", 0, MAX_LOGPROBS)
    ask = _ask("chat.completions", body, fields, bounds, prompts=1)
    # Templates write instructions of their own around tools.
    instructed = "tools" in fields or "functions" in fields
    return msgspec.structs.replace(ask, prompt_bound=ask.prompt_bound + TOOLS_TOKENS) if instructed else ask


def check_completion(body: bytes, bounds: Bounds) -> Ask:
    """Check the body of a completion; :class:`Refusal` (400) says which field is wrong and what is allowed."""
    fields = _fields(body, bounds)
    prompt = _field(fields, "prompt", _TEXT_OR_LIST)
    if prompt is None:
        raise _bad("prompt is missing.", "prompt")
    prompts = 1
    if isinstance(prompt, list):
        first = bytes(prompt[0])[:1] if prompt else b""
        prompts = len(prompt) if first in (b'"', b"[") else 1
    _in_range(fields, "best_of", 1, bounds.choices)
    _in_range(fields, "logprobs", 0, MAX_LOGPROBS)
    return _ask("completions", body, fields, bounds, prompts=prompts)


def check_embedding(body: bytes, bounds: Bounds) -> Ask:
    """Check the body of an embedding; :class:`Refusal` (400) says which field is wrong and what is allowed."""
    fields = _fields(body, bounds)
    given = _field(fields, "input", _TEXT_OR_LIST)
    if not given:
        raise _bad("input must be a text or a non-empty list.", "input")
    if isinstance(given, list) and bytes(given[0])[:1] in (b'"', b"[") and len(given) > MAX_INPUTS:
        raise _bad(f"input holds {len(given)} entries; at most {MAX_INPUTS} are allowed.", "input")
    if isinstance(given, list) and bytes(given[0])[:1] not in b'"[0123456789':
        raise _bad("input must hold texts, tokens, or lists of tokens.", "input")
    _in_range(fields, "dimensions", 1, MAX_TOKENS)
    return Ask(
        operation="embeddings",
        model=_model(fields),
        stream=False,
        choices=1,
        completion_tokens=0,
        prompt_bound=len(body),
        fields=fields,
    )


def depth_of(body: bytes) -> int:
    """Deepest nesting of objects and lists in JSON text (or what passes for it)."""
    depth = deepest = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def _fields(body: bytes, bounds: Bounds) -> dict[str, msgspec.Raw]:
    if body.count(b"[") + body.count(b"{") > bounds.depth and depth_of(body) > bounds.depth:
        raise _bad(f"The body is nested deeper than {bounds.depth} levels.", None)
    try:
        body.decode("utf-8")
        # A dictionary keeps one value per name, so engine and gateway can never read a repeated field differently.
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _bad(f"The body is not a JSON object: {exc}.", None) from None


def _ask(operation: str, body: bytes, fields: dict[str, msgspec.Raw], bounds: Bounds, *, prompts: int) -> Ask:
    model = _model(fields)
    _check_stop(fields, bounds.stops)
    choices = (_in_range(fields, "n", 1, bounds.choices) or 1) * prompts
    if choices > bounds.choices:
        raise _bad(f"prompts times n is {choices}; at most {bounds.choices} choices are allowed.", "n")
    best_of = _in_range(fields, "best_of", 1, bounds.choices) or 1
    # Engines differ in which of the two counts when both are given: the larger one is a bound. Completions know one.
    names = ("max_tokens", "max_completion_tokens") if operation == "chat.completions" else ("max_tokens",)
    named = [_in_range(fields, name, 0, MAX_TOKENS) for name in names]
    limit = max((number for number in named if number is not None), default=None)
    return Ask(
        operation=operation,
        model=model,
        stream=bool(_field(fields, "stream", _FLAG)),
        choices=max(choices, best_of * prompts),
        completion_tokens=limit,
        prompt_bound=len(body),
        fields=fields,
    )


def _model(fields: dict[str, msgspec.Raw]) -> str:
    model: str | None = _field(fields, "model", _TEXT)
    if not model or len(model) > MAX_MODEL_CHARS:
        raise _bad(f"model must be a name of 1 to {MAX_MODEL_CHARS} characters.", "model")
    return model


def _check_stop(fields: dict[str, msgspec.Raw], most: int) -> None:
    stop = _field(fields, "stop", _TEXT_OR_TEXTS)
    if stop is None:
        return
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > most:
        raise _bad(f"stop holds {len(stops)} sequences; at most {most} are allowed.", "stop")
    if any(len(text) > MAX_STOP_CHARS for text in stops):
        raise _bad(f"A stop sequence is longer than {MAX_STOP_CHARS} characters.", "stop")


def _in_range(fields: dict[str, msgspec.Raw], name: str, least: int, most: int) -> int | None:
    if name not in fields:
        return None
    value: int | None = _field(fields, name, _NUMBER)
    if value is not None and not least <= value <= most:
        raise _bad(f"{name} is {value}; it must be {least} to {most}.", name)
    return value


def _field(fields: dict[str, msgspec.Raw], name: str, kind: msgspec.json.Decoder[Any]) -> Any:
    """The value of a field by the decoder of its ``kind``; ``None`` when it is absent or null."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return kind.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise _bad(f"{name} does not fit: {exc}.", name) from None


def _bad(message: str, param: str | None) -> Refusal:
    return Refusal(Reason.BAD_REQUEST, 400, message, code="invalid_value", param=param)
