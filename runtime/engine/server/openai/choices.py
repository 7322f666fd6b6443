"""One choice on its way out: how its news become parts of an answer."""

import secrets
from typing import Any

from runtime.engine.causal.jobs import Job, Output, TokenPiece
from runtime.engine.causal.sequences import FinishReason
from runtime.engine.server.openai import answers
from runtime.engine.server.openai.toolcalls import CallArguments, CallStart, Content, Piece, ToolParser
from runtime.engine.tokenizer import TextTokenizer


class ChoiceWriter:
    """Collects the outputs of one choice (whole answers) or turns each into events (streams).

    Both ways read the text through the same parser, so that they cannot say different things.
    """

    def __init__(
        self,
        index: int,
        tokenizer: TextTokenizer,
        *,
        chat: bool,
        top_logprobs: int | None,
        echo: str,
        parser: ToolParser | None = None,
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._chat = chat
        self._top = top_logprobs
        self._echo = echo
        self._parser = parser
        self._news: list[Piece] = []
        self._pieces: list[TokenPiece | int] = []
        self._finish: FinishReason | None = None
        self._started = False
        self._completion_logprobs = answers.CompletionLogprobs(tokenizer, top_logprobs or 0)

    def add(self, output: Output, job: Job) -> None:
        """Keep ``output`` for the whole answer."""
        if not self._started:
            self._start(job)
        self._read(output)
        self._pieces.extend(output.pieces)
        self._finish = output.finish or self._finish

    def _read(self, output: Output) -> None:
        if self._parser is None:
            if output.text:
                self._news.append(Content(output.text))
            return
        self._news.extend(self._parser.feed(output.text))
        if output.finish is not None:
            self._news.extend(self._parser.finish(cut=output.finish is FinishReason.LENGTH))

    def _start(self, job: Job) -> None:
        """Put the echoed prompt in front."""
        self._started = True
        if not self._echo:
            return
        self._news.append(Content(self._echo))
        if self._top is not None:
            choice = job.choices[self._index]
            scored = job.prompt_logprobs.get(self._index - self._index % job.request.n, {})
            self._pieces.append(choice.sequence.tokens[0])
            self._pieces.extend(scored[position] for position in sorted(scored))

    def _logprobs(self) -> dict[str, Any] | None:
        pieces, self._pieces = self._pieces, []
        if self._top is None:
            return None
        if self._chat:
            return answers.chat_logprobs(tuple(p for p in pieces if isinstance(p, TokenPiece)), self._tokenizer)
        return self._completion_logprobs.body(pieces)

    def _reason(self) -> str | None:
        """``tool_calls`` only when every call is whole: half a call is no call."""
        parser = self._parser
        called = parser is not None and parser.calls > 0 and parser.complete == parser.calls
        return answers.public_reason(self._finish, called=called)

    def whole(self) -> dict[str, Any]:
        """The finished choice."""
        text = "".join(piece.text for piece in self._news if isinstance(piece, Content))
        body: dict[str, Any] = {"index": self._index, "finish_reason": self._reason()}
        if self._chat:
            calls = _whole_calls(self._news)
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                message |= {"content": text or None, "tool_calls": calls}
            body["message"] = message
        else:
            body["text"] = text
        body["logprobs"] = self._logprobs()
        return body

    def take_opening(self) -> dict[str, Any] | None:
        """The first event of a chat stream, which names the role; ``None`` from then on."""
        if not self._chat or self._started:
            return None
        delta = {"role": "assistant", "content": ""}
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def events(self, output: Output, job: Job) -> list[dict[str, Any]]:
        """``output`` as events; none when there is nothing to say yet."""
        self.add(output, job)
        news, self._news = self._news, []
        deltas: list[dict[str, Any]] = [_delta(piece) if self._chat else {"text": _text(piece)} for piece in news]
        if output.finish is not None and (not self._chat or not deltas or "tool_calls" in deltas[-1]):
            deltas.append({} if self._chat else {"text": ""})
        if self._pieces and not deltas:
            deltas.append({} if self._chat else {"text": ""})
        bodies = []
        for number, delta in enumerate(_joined(deltas) if not self._chat else deltas):
            body: dict[str, Any] = {"index": self._index, "finish_reason": None}
            body |= {"delta": delta} if self._chat else delta
            body["logprobs"] = self._logprobs() if number == 0 else None
            bodies.append(body)
        if bodies:
            bodies[-1]["finish_reason"] = answers.public_reason(output.finish) and self._reason()
        return bodies


def _text(piece: Piece) -> str:
    return piece.text if isinstance(piece, Content) else ""


def _joined(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Text of a completion that came together is one event."""
    return [{"text": "".join(delta["text"] for delta in deltas)}] if deltas else []


def _delta(piece: Piece) -> dict[str, Any]:
    """A piece as the delta of a chat stream: id, type and name come once per call."""
    if isinstance(piece, Content):
        return {"content": piece.text}
    if isinstance(piece, CallStart):
        function = {"name": piece.name, "arguments": ""}
        return {"tool_calls": [{"index": piece.index, "id": _call_id(), "type": "function", "function": function}]}
    return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}


def _whole_calls(news: list[Piece]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in news:
        if isinstance(piece, CallStart):
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": _call_id(), "type": "function", "function": function})
        elif isinstance(piece, CallArguments):
            calls[piece.index]["function"]["arguments"] += piece.text
    return calls


def _call_id() -> str:
    return "call_" + secrets.token_hex(12)
