"""The JSON that goes back, for both operations and both ways of sending it."""

import dataclasses
from typing import Any

from runtime.engine.causal.jobs import TokenPiece
from runtime.engine.causal.sequences import FinishReason
from runtime.engine.errors import RequestError
from runtime.engine.tokenizer import TextTokenizer
from runtime.wire.inference import Usage


def error_body(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    return {
        "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code},
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerHead:
    """What every answer to one request repeats."""

    id: str
    created: int
    model: str
    chat: bool

    def _base(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """An answer in one piece."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._base(kind, choices), "usage": usage_body(usage)}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """One event of a stream."""
        return self._base("chat.completion.chunk" if self.chat else "text_completion", [choice])

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last event of a stream that was asked for usage."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._base(kind, []), "usage": usage_body(usage)}


def public_reason(finish: FinishReason | None, *, called: bool = False) -> str | None:
    """``stop``, ``length``, or ``tool_calls`` for an answer that has ``called`` and is whole.

    An end of any other kind is an error and never dressed up as one of these.
    """
    if finish is FinishReason.STOP and called:
        return "tool_calls"
    return finish.value if finish in (FinishReason.STOP, FinishReason.LENGTH) else None


def chat_logprobs(pieces: tuple[TokenPiece, ...], tokenizer: TextTokenizer) -> dict[str, Any]:
    """Log-probabilities as chat completions give them."""

    def entry(token: int, value: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": tokenizer.token_text(token), "logprob": value, "bytes": list(raw)}

    content = []
    for piece in pieces:
        top = [entry(token, value) for token, value in piece.top]
        content.append({**entry(piece.token, piece.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Log-probabilities as completions give them; keeps count of the text they stand for."""

    def __init__(self, tokenizer: TextTokenizer, wanted: int) -> None:
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._offset = 0

    def body(self, pieces: list[TokenPiece | int]) -> dict[str, Any]:
        """``pieces`` in order; a bare token is the first of a prompt, which has no probability."""
        body: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            token = piece if isinstance(piece, int) else piece.token
            text = self._tokenizer.token_text(token)
            body["tokens"].append(text)
            body["text_offset"].append(self._offset)
            self._offset += len(text)
            if isinstance(piece, int):
                body["token_logprobs"].append(None)
                body["top_logprobs"].append(None)
                continue
            body["token_logprobs"].append(piece.logprob)
            body["top_logprobs"].append(self._top(piece) if self._wanted else {})
        return body

    def _top(self, piece: TokenPiece) -> dict[str, float]:
        top = {self._tokenizer.token_text(token): value for token, value in piece.top}
        top.setdefault(self._tokenizer.token_text(piece.token), piece.logprob)
        return top
