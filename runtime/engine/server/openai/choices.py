"""One choice on its way out: how its news become parts of an answer."""

from typing import Any

from runtime.engine.causal.jobs import Job, Output, TokenPiece
from runtime.engine.causal.sequences import FinishReason
from runtime.engine.server.openai import answers
from runtime.engine.tokenizer import TextTokenizer


class ChoiceWriter:
    """Collects the outputs of one choice (whole answers) or turns each into an event (streams)."""

    def __init__(
        self, index: int, tokenizer: TextTokenizer, *, chat: bool, top_logprobs: int | None, echo: str
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._chat = chat
        self._top = top_logprobs
        self._echo = echo
        self._text: list[str] = []
        self._pieces: list[TokenPiece | int] = []
        self._finish: FinishReason | None = None
        self._started = False
        self._completion_logprobs = answers.CompletionLogprobs(tokenizer, top_logprobs or 0)

    def add(self, output: Output, job: Job) -> None:
        """Keep ``output`` for the whole answer."""
        if not self._started:
            self._start(job)
        self._text.append(output.text)
        self._pieces.extend(output.pieces)
        self._finish = output.finish or self._finish

    def _start(self, job: Job) -> None:
        """Put the echoed prompt in front."""
        self._started = True
        if not self._echo:
            return
        self._text.append(self._echo)
        if self._top is not None:
            choice = job.choices[self._index]
            scored = job.prompt_logprobs.get(self._index, {})
            self._pieces.append(choice.sequence.tokens[0])
            self._pieces.extend(scored[position] for position in sorted(scored))

    def _logprobs(self) -> dict[str, Any] | None:
        pieces, self._pieces = self._pieces, []
        if self._top is None:
            return None
        if self._chat:
            return answers.chat_logprobs(tuple(p for p in pieces if isinstance(p, TokenPiece)), self._tokenizer)
        return self._completion_logprobs.body(pieces)

    def whole(self) -> dict[str, Any]:
        """The finished choice."""
        text = "".join(self._text)
        body: dict[str, Any] = {"index": self._index, "finish_reason": answers.public_reason(self._finish)}
        if self._chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
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

    def event(self, output: Output, job: Job) -> dict[str, Any]:
        """``output`` as one event."""
        self.add(output, job)
        text = "".join(self._text)
        self._text.clear()
        body: dict[str, Any] = {"index": self._index, "finish_reason": answers.public_reason(output.finish)}
        if self._chat:
            body["delta"] = {"content": text} if text else {}
        else:
            body["text"] = text
        body["logprobs"] = self._logprobs()
        return body
