"""The operations of the dialect: from bytes to an :class:`Exchange`, or straight to an answer."""

import asyncio
import dataclasses
import secrets
from typing import Any, Final

from runtime.base import asgi
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.grammar import GrammarService
from runtime.engine.causal.jobs import GenerationRequest
from runtime.engine.server import caller
from runtime.engine.server.openai.answers import AnswerHead
from runtime.engine.server.openai.choices import ChoiceWriter
from runtime.engine.server.openai.exchange import Exchange
from runtime.engine.server.openai.messages import read_chat
from runtime.engine.server.openai.params import Common, read_completion
from runtime.engine.server.openai.tokens import read_detokenize, read_tokenize
from runtime.engine.server.openai.toolcalls import ARGS, ToolFormat, ToolParser, detect
from runtime.engine.server.openai.tools import Tools, forced_grammar, shown_markers
from runtime.engine.templates.renderer import TemplateRenderer
from runtime.wire import inference

MAX_BODY_BYTES: Final = 16 << 20
_INLINE_CHARS: Final = 4096  # longer texts are tokenized in a thread, so that they do not hold up the others
_MAX_REQUEST_ID: Final = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """What a loaded engine offers to one request. ``received_at`` is when it came, on the monotonic clock."""

    engine: CausalEngine
    served_name: str
    renderer: TemplateRenderer | None
    grammars: GrammarService
    clock: Clock
    received_at: float


async def completion(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /v1/completions``."""
    call = read_completion(await _body(http), vocab_size=serving.engine.tokenizer.vocab_size)
    _check_model(serving, call.common.model)
    prompts: list[tuple[int, ...]] = []
    echoes: list[str] = []
    for prompt in call.prompts:
        tokens = await _encode(serving, prompt, special=True) if isinstance(prompt, str) else prompt
        prompts.append(tuple(tokens))
        echo = (
            ""
            if not call.echo
            else prompt
            if isinstance(prompt, str)
            else serving.engine.tokenizer.decode(list(prompt))
        )
        echoes.extend([echo] * call.common.n)
    exchange = await _exchange(serving, http, call.common, prompts, echoes, chat=False)
    await exchange.run(http)


async def chat(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /v1/chat/completions``."""
    call = read_chat(await _body(http), vocab_size=serving.engine.tokenizer.vocab_size)
    _check_model(serving, call.common.model)
    kind = _tool_format(serving, call.tools)
    tokens = await _render(serving, call.messages, call.tools, call.extras)
    common = call.common
    if call.tools is not None and kind is not None:
        spec = forced_grammar(call.tools, kind, serving.engine.tokenizer, new_mistral=ARGS in _template(serving))
        common = dataclasses.replace(common, structured=spec or common.structured)
    exchange = await _exchange(
        serving, http, common, [tuple(tokens)], [""] * common.n, chat=True, tools=(kind, call.tools) if kind else None
    )
    await exchange.run(http)


async def _render(
    serving: Serving,
    messages: list[dict[str, Any]],
    tools: Tools | None,
    extras: dict[str, Any],
    *,
    generation: bool = True,
) -> list[int]:
    """Tokens of a chat, as the model's template writes it."""
    if serving.renderer is None:
        raise errors.InvalidRequest(
            "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
        )
    variables = {
        **extras,
        "messages": messages,
        "tools": list(tools.definitions) if tools is not None else None,
        "add_generation_prompt": generation,
    }
    text = await serving.renderer.render(variables)
    return await _encode(serving, text, special=False)  # the template writes the special tokens itself


def _template(serving: Serving) -> str:
    return serving.renderer.template if serving.renderer is not None else ""


def _tool_format(serving: Serving, tools: Tools | None) -> ToolFormat | None:
    """How this model calls tools; ``None`` when there are none to call."""
    if tools is None or serving.renderer is None:
        return None
    kind = detect(_template(serving))
    if kind is None:
        raise errors.InvalidRequest(
            "This model's chat template has no tools, or writes calls in a form this engine does not read.",
            param="tools",
            code="unsupported_parameter",
        )
    return kind


async def tokenize(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /tokenize``: the tokens of a text, or of a chat as its template writes it."""
    call = read_tokenize(await _body(http))
    if call.model is not None:
        _check_model(serving, call.model)
    if call.messages is not None:
        tokens = await _render(serving, call.messages, call.tools, call.extras, generation=call.generation)
    else:
        tokens = await _encode(serving, call.prompt, special=call.special)
    tokenizer = serving.engine.tokenizer
    body: dict[str, Any] = {"count": len(tokens), "max_model_len": serving.engine.max_model_len, "tokens": tokens}
    if call.texts:
        body["token_strs"] = [tokenizer.token_text(token) for token in tokens]
    await http.json(200, body)


async def detokenize(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /detokenize``: the text of tokens, special ones included."""
    tokenizer = serving.engine.tokenizer
    model, tokens = read_detokenize(await _body(http), vocab_size=tokenizer.vocab_size)
    if model is not None:
        _check_model(serving, model)
    await http.json(200, {"prompt": tokenizer.decode(tokens, skip_special=False)})


async def _body(http: asgi.Request) -> bytes:
    try:
        return await http.body(MAX_BODY_BYTES)
    except asgi.BodyTooLarge:
        raise errors.BodyTooLong(
            f"The body has more than {MAX_BODY_BYTES >> 20} MiB.", code="request_too_large"
        ) from None


async def _encode(serving: Serving, text: str, *, special: bool) -> list[int]:
    tokenizer, limit = serving.engine.tokenizer, serving.engine.max_model_len
    if len(text) > limit * tokenizer.most_bytes_per_token:  # certain without counting, which would take seconds
        raise errors.InvalidRequest(
            f"This model's context is {limit} tokens; a text of {len(text)} characters has more.",
            param="prompt" if special else "messages",
            code="context_length_exceeded",
        )
    if len(text) <= _INLINE_CHARS:
        return tokenizer.encode(text, special=special)
    return await asyncio.to_thread(tokenizer.encode, text, special=special)


def _check_model(serving: Serving, name: str) -> None:
    if name != serving.served_name:
        raise errors.NotFound(
            f"The model {name[:256]!r} does not exist here; this engine serves {serving.served_name!r}.",
            code="model_not_found",
            param="model",
        )


async def _exchange(
    serving: Serving,
    http: asgi.Request,
    common: Common,
    prompts: list[tuple[int, ...]],
    echoes: list[str],
    *,
    chat: bool,
    tools: tuple[ToolFormat, Tools | None] | None = None,
) -> Exchange:
    """Put the request together; refuses prompts that leave no room, and grammars that are none."""
    longest = max(len(prompt) for prompt in prompts)
    max_tokens = _max_tokens(serving, common, longest, at_least=0 if any(echoes) else 1)
    if min(len(prompt) for prompt in prompts) == 0:
        raise errors.InvalidRequest("prompt has no tokens.", param="messages" if chat else "prompt")
    request_id = http.header(inference.HEADER_REQUEST_ID)[:_MAX_REQUEST_ID] or secrets.token_hex(12)
    tenant = http.header(inference.HEADER_TENANT)
    salt = _salt(http, tenant)
    constraint = await serving.grammars.compile(common.structured, salt) if common.structured is not None else None
    tokenizer = serving.engine.tokenizer
    request = GenerationRequest(
        request_id=request_id,
        prompts=tuple(prompts),
        n=common.n,
        max_tokens=max_tokens,
        sampling=common.sampling,
        seeds=common.seeds(len(echoes)),
        stops=common.stops,
        include_stop=common.include_stop,
        skip_special=common.skip_special,
        ignore_eos=common.ignore_eos,
        tenant=tenant,
        weight=caller.weight(http),
        priority=caller.priority(http),
        salt=salt,
        deadline=deadline_of(http, serving.received_at),
        constraint=constraint,
        shown_special=shown_markers(tools[0], tokenizer) if tools is not None else frozenset(),
    )
    prefix = "chatcmpl-" if chat else "cmpl-"
    head = AnswerHead(id=prefix + request_id, created=int(serving.clock.now()), model=common.model, chat=chat)
    top = common.sampling.top_logprobs
    writers = [
        ChoiceWriter(index, tokenizer, chat=chat, top_logprobs=top, echo=echo, parser=_parser(tools))
        for index, echo in enumerate(echoes)
    ]
    return Exchange(
        engine=serving.engine,
        request=request,
        head=head,
        writers=writers,
        stream=common.stream,
        include_usage=common.include_usage,
        metered=bool(http.header(inference.HEADER_METERED)),
    )


def _parser(tools: tuple[ToolFormat, Tools | None] | None) -> ToolParser | None:
    if tools is None or tools[1] is None:
        return None
    return ToolParser(tools[0], tools[1].names, forced=bool(tools[1].forced))


def _max_tokens(serving: Serving, common: Common, prompt: int, *, at_least: int) -> int:
    """Tokens to generate; refuses what passes the context instead of cutting it."""
    limit = serving.engine.max_model_len
    wanted = at_least if common.max_tokens is None else common.max_tokens
    if prompt + wanted > limit:
        raise errors.InvalidRequest(
            f"This model's context is {limit} tokens; the prompt has {prompt} and {wanted} more are asked for.",
            param="max_tokens" if prompt < limit else "prompt",
            code="context_length_exceeded",
        )
    return limit - prompt if common.max_tokens is None else common.max_tokens


def _salt(http: asgi.Request, tenant: str) -> bytes:
    """Where prefix names start. Set by the platform alone: without its headers everybody is the same tenant."""
    return b"\x00".join(part.encode() for part in (tenant, http.header(inference.HEADER_PREFIX_SALT)))


def deadline_of(http: asgi.Request, received_at: float) -> float | None:
    """The engine's time at which the caller stops waiting; the header counts milliseconds from receipt."""
    text = http.header(inference.HEADER_DEADLINE_MS)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise errors.InvalidRequest(f"{inference.HEADER_DEADLINE_MS} has to be a number of milliseconds.")
    return received_at + int(text) / 1000.0
