"""Output that has to follow a grammar: which tokens may come next, and the compiling of grammars. No torch.

llguidance does the parsing. A compiled grammar is immutable; each choice works on a copy of its own, which catches up
with the tokens of its sequence when it is asked, so that neither a preemption nor a step that failed leaves a trace.

What a caller can make expensive is bounded three times: by the size of what is sent (``server.openai.structured``), by
llguidance's fuel for compiling and for each step, and by a limit on the wait.
"""

import asyncio
import concurrent.futures
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from runtime.base import logs
from runtime.engine import errors
from runtime.engine.causal.sequences import ConstraintFailed
from runtime.engine.tokenizer import TextTokenizer

_log = logs.get(__name__)

_COMPILE_SECONDS: Final = 2.0
_WORKERS: Final = 2
_MAX_PENDING: Final = 16
_MAX_CACHED: Final = 64
_RETRY_AFTER_SECONDS: Final = 1
_MAX_ERROR: Final = 300
# A number of JSON has no end of its own: a model that likes digits would write them up to the last token.
_MAX_NUMBER_BYTES: Final = 40
_WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,32}"
_DIGITS: Final = frozenset(b"0123456789")
_NUMBER_BYTES: Final = frozenset(b"0123456789+-.eE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrammarSpec:
    """What a caller asks for. ``kind`` is ``json`` (a schema as JSON), ``regex`` or ``lark``; ``param`` is the field.

    ``numbers`` bounds the length of JSON numbers in the output.
    """

    kind: str
    text: str
    param: str
    numbers: bool = False


class Grammar:
    """One choice's place in a grammar. :meth:`mask` is called by the engine's thread only."""

    def __init__(self, matcher: LLMatcher, tokenizer: TextTokenizer, digit_first: np.ndarray | None) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._digit_first = digit_first
        self._numbers = _NumberWatch() if digit_first is not None else None
        self._read = 0

    def fresh(self) -> "Grammar":
        """A copy at the beginning, for another choice."""
        return Grammar(self._matcher.deep_copy(), self._tokenizer, self._digit_first)

    def mask(self, output: Seq[int]) -> bytes:
        """One bit per token, least significant first: which may follow ``output``, the tokens generated so far.

        Raises:
            ConstraintFailed: the grammar cannot go on: a limit was passed, or a token came that it does not allow.
        """
        for token in output[self._read :]:
            if not self._matcher.consume_token(token):
                raise ConstraintFailed(self._matcher.get_error()[:_MAX_ERROR])
            if self._numbers is not None:
                self._numbers.feed(self._tokenizer.token_bytes(token))
        self._read = len(output)
        allowed: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintFailed(self._matcher.get_error()[:_MAX_ERROR])
        if self._numbers is not None and self._numbers.length >= _MAX_NUMBER_BYTES:
            assert self._digit_first is not None
            shorter = np.frombuffer(allowed, np.uint8) & ~self._digit_first
            if shorter.any():  # else the schema itself asks for more digits
                return bytes(shorter)
        return allowed


class _NumberWatch:
    """Length in bytes of the JSON number that the output ends with; 0 inside strings and elsewhere."""

    def __init__(self) -> None:
        self.length = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> None:
        """Read on."""
        for byte in data:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif byte == ord("\\"):
                    self._escaped = True
                elif byte == ord('"'):
                    self._in_string = False
            elif byte == ord('"'):
                self._in_string, self.length = True, 0
            else:
                self.length = self.length + 1 if byte in _NUMBER_BYTES else 0


class _Vocabulary:
    """The tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: TextTokenizer, eos_ids: frozenset[int]) -> None:
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids | eos_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(whole, special=False)


class GrammarService:
    """Compiles grammars away from the event loop and keeps the latest ones."""

    def __init__(self, tokenizer: TextTokenizer, eos_ids: frozenset[int], *, seconds: float = _COMPILE_SECONDS) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._seconds = seconds
        self._limits = LLParserLimits(
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=100_000,
            max_lexer_states=10_000,
            max_grammar_size=200_000,
            verbose_errors=False,
        )
        self._pool = concurrent.futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="grammar")
        self._pending = 0
        self._cache: OrderedDict[tuple[bytes, GrammarSpec], Grammar] = OrderedDict()
        self._vocabulary: tuple[LLTokenizer, np.ndarray] | None = None
        self._vocabulary_lock = asyncio.Lock()

    async def compile(self, spec: GrammarSpec, salt: bytes) -> Grammar:
        """The grammar of ``spec``. Tenants do not share compiled grammars: the time of a hit would tell.

        Raises:
            errors.InvalidRequest: it is no grammar, asks for too much, or takes too long to compile.
            errors.Overloaded: too many grammars are being compiled.
        """
        if not self._eos_ids:
            raise errors.InvalidRequest(
                "This model has no token that ends a text, so its output cannot be structured.", param=spec.param
            )
        key = (salt, spec)
        found = self._cache.get(key)
        if found is None:
            if self._pending >= _MAX_PENDING:
                raise _busy()
            self._pending += 1
            try:
                found = await self._compile(spec)
            finally:
                self._pending -= 1
            self._cache[key] = found
            while len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return found

    async def _compile(self, spec: GrammarSpec) -> Grammar:
        async with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = await asyncio.wrap_future(self._pool.submit(self._read_vocabulary))
        vocabulary, digit_first = self._vocabulary
        work = self._pool.submit(_build, spec, vocabulary, self._limits)
        try:
            async with asyncio.timeout(self._seconds):
                matcher = await asyncio.shield(asyncio.wrap_future(work))
        except TimeoutError:
            if work.cancel():  # it never began
                raise _busy() from None
            _log.warning("grammar_compile_timeout", kind=spec.kind, characters=len(spec.text))
            raise errors.InvalidRequest(
                f"{spec.param}: compiling it takes longer than {self._seconds:g} seconds; make it simpler.",
                param=spec.param,
            ) from None
        except _Refused as exc:
            raise errors.InvalidRequest(f"{spec.param} cannot be used: {exc}", param=spec.param) from None
        return Grammar(matcher, self._tokenizer, digit_first if spec.numbers else None)

    def _read_vocabulary(self) -> tuple[LLTokenizer, np.ndarray]:
        """Every token by its bytes, and a mask of those that begin with a digit."""
        vocabulary = _Vocabulary(self._tokenizer, self._eos_ids)
        wrapped = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=sorted(self._eos_ids))
        digits = np.array([bool(token) and token[0] in _DIGITS for token in vocabulary.tokens])
        padded = np.zeros(-(-len(digits) // 32) * 32, dtype=bool)  # llguidance counts in words of 32 bits
        padded[: len(digits)] = digits
        return wrapped, np.packbits(padded, bitorder="little")

    def close(self) -> None:
        """Compile nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Refused(Exception):
    """llguidance did not take the grammar."""


def _build(spec: GrammarSpec, vocabulary: LLTokenizer, limits: LLParserLimits) -> LLMatcher:
    """Compile in a worker thread; llguidance lets go of the interpreter meanwhile."""
    try:
        matcher = LLMatcher(vocabulary, _source(spec), log_level=0, limits=limits)
        if matcher.is_error():
            raise _Refused(_first_line(matcher.get_error()))
        if not any(matcher.compute_bitmask()):
            raise _Refused("no text matches it")
        if matcher.is_error():
            raise _Refused(_first_line(matcher.get_error()))
    except _Refused:
        raise
    except BaseException as exc:  # the boundary to Rust code, panics included: the caller's grammar is to blame
        raise _Refused(_first_line(str(exc)) or type(exc).__name__) from None
    return matcher


def _source(spec: GrammarSpec) -> str:
    if spec.kind == "json":
        return str(LLMatcher.grammar_from_json_schema(spec.text, overrides={"whitespace_pattern": _WHITESPACE}))
    if spec.kind == "regex":
        return str(LLMatcher.grammar_from_regex(spec.text))
    return str(LLMatcher.grammar_from_lark(spec.text))


def lark_json(schema: Any) -> str:
    """``schema`` as a term of a Lark grammar."""
    options = {"whitespace_pattern": _WHITESPACE}
    body = schema if isinstance(schema, bool) else {**schema, "x-guidance": options}
    return "%json " + json.dumps(body)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:_MAX_ERROR]


def _busy() -> errors.Overloaded:
    return errors.Overloaded(
        "Too many grammars are being compiled.", code="grammar_queue_full", retry_after=_RETRY_AFTER_SECONDS
    )
