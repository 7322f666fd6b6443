"""Tokens to text while they come: whole characters only, and nothing of a stop string."""

import codecs
import dataclasses

from runtime.engine.tokenizer import TextTokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that may be shown now; ``stopped`` when a stop string was completed."""

    text: str
    stopped: bool = False


class OutputText:
    """The text of one choice as it grows.

    A character whose bytes are not all there waits; at the end it is dropped. Text that could be the start of a stop
    string waits until it is one (and is cut) or cannot become one (and is shown).
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        stops: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        shown_special: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._include_stop = include_stop
        self._hidden = tokenizer.special_ids - shown_special if skip_special else frozenset()
        self._held = ""

    def push(self, token: int) -> TextDelta:
        """Add ``token``; return the text that may be shown now."""
        if token in self._hidden:
            return TextDelta("")
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        if not self._stops:
            return TextDelta(text)
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda item: (item[0], -len(item[1])))
            shown = self._held[: at + len(stop)] if self._include_stop else self._held[:at]
            self._held = ""
            return TextDelta(shown, stopped=True)
        keep = self._possible_stop()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return TextDelta(shown)

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0

    def finish(self) -> str:
        """Return the held text when the output ended for another reason; bytes of half a character are dropped."""
        text, self._held = self._held, ""
        return text
