"""From a request body to what the engine is asked. Everything a caller controls is bounded here."""

import dataclasses
import hashlib
import secrets
from typing import Any, Final

from runtime.engine.causal.grammar import GrammarSpec
from runtime.engine.causal.sequences import SamplingParams
from runtime.engine.errors import InvalidRequest
from runtime.engine.server.openai.fields import Body, is_number, shown
from runtime.engine.server.openai.structured import read_structured

MAX_CHOICES: Final = 64
MAX_N: Final = 16
MAX_PROMPTS: Final = 64
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_STOP_TOKENS: Final = 64
MAX_BIASES: Final = 300
MAX_TOP_LOGPROBS: Final = 20
_SEED_LIMIT: Final = 2**63 - 1
_DEFAULT_COMPLETION_TOKENS: Final = 16
_NOT_SERVED: Final = "not served by this engine."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """What both dialect operations share. ``max_tokens`` is ``None`` where the request leaves it open."""

    model: str
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    seed: int | None
    stops: tuple[str, ...]
    include_stop: bool
    skip_special: bool
    ignore_eos: bool
    stream: bool
    include_usage: bool
    structured: GrammarSpec | None

    def seeds(self, count: int) -> tuple[int, ...]:
        """One seed for each of ``count`` choices: derived from the request's, or random."""
        if self.seed is None:
            return tuple(secrets.randbits(64) for _ in range(count))
        if count == 1:
            return (self.seed % 2**64,)
        return tuple(_mix(self.seed, index) for index in range(count))


def _mix(seed: int, index: int) -> int:
    data = seed.to_bytes(9, "little", signed=True) + index.to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def read_common(body: Body, *, vocab_size: int, chat: bool) -> Common:
    """Take the shared fields out of ``body``.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    model = body.take("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model has to be the name of a model.", param="model", code="missing_model")
    n = body.integer("n", 1, 1, MAX_N) or 1
    max_tokens = _max_tokens(body, chat=chat)
    stream = body.boolean("stream", False)
    include_usage = _stream_options(body, stream=stream)
    structured = read_structured(body)
    ignore_eos = body.boolean("ignore_eos", False)
    if structured is not None and ignore_eos:
        raise InvalidRequest(f"ignore_eos cannot be used with {structured.param}: it has an end.", param="ignore_eos")
    common = Common(
        model=model,
        n=n,
        max_tokens=max_tokens,
        sampling=_sampling(body, vocab_size, max_tokens, chat=chat),
        seed=body.integer("seed", None, -_SEED_LIMIT - 1, _SEED_LIMIT),
        stops=body.strings("stop", most=MAX_STOPS, longest=MAX_STOP_CHARS),
        include_stop=body.boolean("include_stop_str_in_output", False),
        skip_special=body.boolean("skip_special_tokens", True),
        ignore_eos=ignore_eos,
        stream=stream,
        include_usage=include_usage,
        structured=structured,
    )
    body.ignore(
        "user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier", "spaces_between_special_tokens"
    )
    body.refuse_unless("store", (False,), "answers are not kept.")
    return common


def _max_tokens(body: Body, *, chat: bool) -> int | None:
    low = 1 if chat else 0
    value = body.integer("max_tokens", None, low)
    if chat:
        newer = body.integer("max_completion_tokens", None, low)
        return newer if newer is not None else value
    return _DEFAULT_COMPLETION_TOKENS if value is None else value


def _stream_options(body: Body, *, stream: bool) -> bool:
    options = body.take("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise InvalidRequest("stream_options has to be an object.", param="stream_options", code="invalid_type")
    if not stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            where = f"stream_options.{name[:64]}"
            raise InvalidRequest(f"Unknown parameter: {where!r}.", param=where, code="unknown_parameter")
        if value is not None and not isinstance(value, bool):
            name = f"stream_options.{name}"
            raise InvalidRequest(f"{name} has to be true or false.", param=name, code="invalid_type")
    return bool(options.get("include_usage"))


def _sampling(body: Body, vocab_size: int, max_tokens: int | None, *, chat: bool) -> SamplingParams:
    top_k = body.integer("top_k", 0, -1, 2**31) or 0
    min_tokens = body.integer("min_tokens", 0, 0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest("min_tokens is more than max_tokens.", param="min_tokens")
    return SamplingParams(
        temperature=body.number("temperature", 1.0, 0.0, 2.0),
        top_p=body.number("top_p", 1.0, 0.0, 1.0, above=True),
        top_k=max(0, top_k),
        min_p=body.number("min_p", 0.0, 0.0, 1.0),
        presence_penalty=body.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=body.number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=body.number("repetition_penalty", 1.0, 0.0, 10.0, above=True),
        logit_bias=_logit_bias(body.take("logit_bias"), vocab_size),
        top_logprobs=_top_logprobs(body, chat=chat),
        min_tokens=min_tokens,
        stop_token_ids=_stop_tokens(body.take("stop_token_ids"), vocab_size),
    )


def _top_logprobs(body: Body, *, chat: bool) -> int | None:
    if not chat:
        return body.integer("logprobs", None, 0, MAX_TOP_LOGPROBS)
    wanted = body.boolean("logprobs", False)
    top = body.integer("top_logprobs", None, 0, MAX_TOP_LOGPROBS)
    if top is not None and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    return (top or 0) if wanted else None


def _logit_bias(value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise InvalidRequest("logit_bias has to be an object.", param="logit_bias", code="invalid_type")
    if len(value) > MAX_BIASES:
        raise InvalidRequest(f"logit_bias has more than {MAX_BIASES} entries.", param="logit_bias")
    pairs = []
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise InvalidRequest(f"logit_bias: {key[:32]!r} is not a token of this model.", param="logit_bias")
        if not is_number(bias) or not -100 <= bias <= 100:
            raise InvalidRequest("logit_bias: each value has to be in [-100, 100].", param="logit_bias")
        pairs.append((int(key), float(bias)))
    return tuple(pairs)


def _stop_tokens(value: Any, vocab_size: int) -> frozenset[int]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKENS:
        raise InvalidRequest(
            f"stop_token_ids has to be a list of at most {MAX_STOP_TOKENS} tokens.", param="stop_token_ids"
        )
    return frozenset(check_tokens(value, vocab_size, "stop_token_ids"))


def check_tokens(value: list[Any], vocab_size: int, name: str) -> list[int]:
    """Return ``value`` if every item is a token of the model."""
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab_size:
            raise InvalidRequest(
                f"{name}: {shown(item)} is not a token of this model (0 to {vocab_size - 1}).", param=name
            )
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionCall:
    """A checked ``/v1/completions``. Each prompt is text or a list of tokens."""

    common: Common
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool


def read_completion(data: bytes, *, vocab_size: int) -> CompletionCall:
    """Read the body of ``/v1/completions``.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    body = Body(data)
    prompts = _prompts(body.take("prompt"), vocab_size)
    common = read_common(body, vocab_size=vocab_size, chat=False)
    echo = body.boolean("echo", False)
    if common.max_tokens == 0 and not echo:
        raise InvalidRequest("max_tokens 0 needs echo: nothing else would be returned.", param="max_tokens")
    if len(prompts) * common.n > MAX_CHOICES:
        raise InvalidRequest(f"prompts times n is more than {MAX_CHOICES}.", param="n")
    best_of = body.integer("best_of", common.n, 1, MAX_N)
    if best_of != common.n:
        raise InvalidRequest("best_of other than n is not served.", param="best_of", code="unsupported_parameter")
    body.refuse_unless("suffix", ("",), _NOT_SERVED)
    body.finish()
    if echo and common.structured is not None:
        raise InvalidRequest(f"echo cannot be used with {common.structured.param}.", param="echo")
    if echo and common.sampling.top_logprobs is not None:
        common = dataclasses.replace(common, sampling=dataclasses.replace(common.sampling, prompt_logprobs=True))
    return CompletionCall(common=common, prompts=prompts, echo=echo)


def _prompts(value: Any, vocab_size: int) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            "prompt has to be a string, a list of strings, a list of tokens, or a list of lists of tokens.",
            param="prompt",
            code="invalid_type",
        )
    if all(isinstance(item, int) for item in value):
        return (tuple(check_tokens(value, vocab_size, "prompt")),)
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt has more than {MAX_PROMPTS} entries.", param="prompt")
    return tuple(_one_prompt(item, vocab_size) for item in value)


def _one_prompt(item: Any, vocab_size: int) -> str | tuple[int, ...]:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item:
        return tuple(check_tokens(item, vocab_size, "prompt"))
    raise InvalidRequest("prompt: each entry has to be a string or a list of tokens.", param="prompt")
