"""``/v1/completions`` and ``/v1/chat/completions``: from bytes to an :class:`Exchange`."""

import asyncio
import dataclasses
import secrets
from typing import Any, Final

from runtime.base import asgi
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.jobs import GenerationRequest
from runtime.engine.server.openai.answers import AnswerHead
from runtime.engine.server.openai.choices import ChoiceWriter
from runtime.engine.server.openai.exchange import Exchange
from runtime.engine.server.openai.messages import read_chat
from runtime.engine.server.openai.params import Common, read_completion
from runtime.engine.templates.renderer import TemplateRenderer
from runtime.wire import inference

MAX_BODY_BYTES: Final = 16 << 20
_INLINE_CHARS: Final = 4096  # longer texts are tokenized in a thread, so that they do not hold up the others
_MAX_REQUEST_ID: Final = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """What a loaded engine offers to requests."""

    engine: CausalEngine
    served_name: str
    renderer: TemplateRenderer | None
    clock: Clock


async def completion(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /v1/completions``."""
    call = read_completion(await _body(http), vocab_size=serving.engine.tokenizer.vocab_size)
    _check_model(serving, call.common.model)
    prompts: list[tuple[int, ...]] = []
    echoes: list[str] = []
    for prompt in call.prompts:
        tokens = await _encode(serving, prompt, special=True) if isinstance(prompt, str) else prompt
        prompts.append(tuple(tokens))
        echo = prompt if isinstance(prompt, str) else serving.engine.tokenizer.decode(list(prompt))
        echoes.extend([echo if call.echo else ""] * call.common.n)
    await _exchange(serving, http, call.common, prompts, echoes, chat=False).run(http)


async def chat(serving: Serving, http: asgi.Request) -> None:
    """Answer ``POST /v1/chat/completions``."""
    call = read_chat(await _body(http), vocab_size=serving.engine.tokenizer.vocab_size)
    _check_model(serving, call.common.model)
    if serving.renderer is None:
        raise errors.InvalidRequest(
            "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
        )
    text = await serving.renderer.render({"messages": call.messages, "add_generation_prompt": True})
    tokens = await _encode(serving, text, special=False)  # the template writes the special tokens itself
    await _exchange(serving, http, call.common, [tuple(tokens)], [""] * call.common.n, chat=True).run(http)


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


def _exchange(
    serving: Serving,
    http: asgi.Request,
    common: Common,
    prompts: list[tuple[int, ...]],
    echoes: list[str],
    *,
    chat: bool,
) -> Exchange:
    """Put the request together; refuses prompts that leave no room."""
    longest = max(len(prompt) for prompt in prompts)
    max_tokens = _max_tokens(serving, common, longest, at_least=0 if any(echoes) else 1)
    if min(len(prompt) for prompt in prompts) == 0:
        raise errors.InvalidRequest("prompt has no tokens.", param="messages" if chat else "prompt")
    request_id = http.header(inference.HEADER_REQUEST_ID)[:_MAX_REQUEST_ID] or secrets.token_hex(12)
    tenant = http.header(inference.HEADER_TENANT)
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
        salt=_salt(http, tenant),
        deadline=_deadline(serving, http),
    )
    prefix = "chatcmpl-" if chat else "cmpl-"
    head = AnswerHead(id=prefix + request_id, created=int(serving.clock.now()), model=common.model, chat=chat)
    tokenizer = serving.engine.tokenizer
    top = common.sampling.top_logprobs
    writers = [
        ChoiceWriter(index, tokenizer, chat=chat, top_logprobs=top, echo=echo) for index, echo in enumerate(echoes)
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


def _deadline(serving: Serving, http: asgi.Request) -> float | None:
    """The engine's time at which the caller stops waiting; the header counts milliseconds from now."""
    text: Any = http.header(inference.HEADER_DEADLINE_MS)
    if not text:
        return None
    if not text.isdigit() or len(text) > 12:
        raise errors.InvalidRequest(f"{inference.HEADER_DEADLINE_MS} has to be a number of milliseconds.")
    return serving.clock.monotonic() + int(text) / 1000.0
