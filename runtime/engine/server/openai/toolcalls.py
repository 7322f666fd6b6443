"""Tool calls in the text of a model, as it comes: content and calls told apart, arguments passed on while they grow.

Pure. Three ways of writing a call are read: Hermes and Qwen (``<tool_call>{...}</tool_call>``), Mistral
(``[TOOL_CALLS][{...}]`` and ``[TOOL_CALLS]name[ARGS]{...}``) and Llama 3 (the whole answer is ``{...}``).
"""

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from typing import Final

PYTHON_TAG: Final = "<|python_tag|>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_HEADER: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_MAX_HELD: Final = 1 << 20


class ToolFormat(enum.StrEnum):
    """How a model writes a call."""

    HERMES = "hermes"
    MISTRAL = "mistral"
    LLAMA3 = "llama3"


#: What stands in the text around calls; where a vocabulary has it as a special token, the token has to be shown.
MARKERS: Final = {
    ToolFormat.HERMES: (OPEN, CLOSE),
    ToolFormat.MISTRAL: (TOOL_CALLS, ARGS),
    ToolFormat.LLAMA3: (PYTHON_TAG,),
}


def detect(template: str) -> ToolFormat | None:
    """The format that a chat template asks its model for; ``None`` when it has no tools, or in a form not read here."""
    if "tools" not in template:
        return None
    if OPEN in template and "<function=" not in template:
        return ToolFormat.HERMES
    if TOOL_CALLS in template:
        return ToolFormat.MISTRAL
    if "parameters" in template and ("ipython" in template or PYTHON_TAG in template):
        return ToolFormat.LLAMA3
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow."""

    index: int
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Content | CallStart | CallArguments


class _Depth:
    """Follows one JSON object through its text."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Read ``text``; the position behind the brace that closes the object, or ``None`` when it goes on."""
        for position, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None


class ToolParser:
    """Splits the text of one choice. :meth:`feed` as it comes, then :meth:`finish`; pieces come in order."""

    def __init__(self, kind: ToolFormat, names: frozenset[str], *, forced: bool = False) -> None:
        self._kind = kind
        self._names = names
        self._forced = forced  # by its grammar the answer is calls and nothing else
        self._pending = ""
        self._space = ""  # before a call it is not for the user
        self._pieces: list[Piece] = []
        self._object = _Depth()
        self._seen = 0  # how much of the pending text ``_object`` has read
        self._outer: _Depth | None = None
        self.calls = 0
        self.complete = 0
        self._mode: Callable[[], bool] = self._llama_start if kind is ToolFormat.LLAMA3 else self._content

    def feed(self, text: str) -> list[Piece]:
        """Read ``text``; return what is certain now."""
        self._pending += text
        while self._pending and self._mode():
            pass
        found, self._pieces = self._pieces, []
        return found

    def finish(self, *, cut: bool) -> list[Piece]:
        """The text has ended. Half a marker or a call without a name is dropped when it was ``cut``, else text."""
        waits = self._mode in (self._header, self._llama_start, self._mistral)
        half = cut and bool(waits or self._forced or self.calls or len(self._pending) > 1)
        if (waits or self._mode == self._content) and not half:
            self._say(self._pending)
            if self._space and self.calls == 0:
                self._pieces.append(Content(self._space))
        self._pending = self._space = ""
        found, self._pieces = self._pieces, []
        return found

    def _say(self, text: str) -> None:
        """Text for the user; white space at its end waits for what comes after it."""
        kept = text.rstrip()
        if kept:
            self._pieces.append(Content(self._space + kept))
            self._space = ""
        self._space += text[len(kept) :]

    def _content(self) -> bool:
        marks = MARKERS[self._kind]
        found = [(at, mark) for mark in marks if (at := self._pending.find(mark)) >= 0]
        if not found:
            held = max(_overlap(self._pending, mark) for mark in marks)
            self._say(self._pending[: len(self._pending) - held])
            self._pending = self._pending[len(self._pending) - held :]
            return False
        at, mark = min(found)
        self._say(self._pending[:at])
        self._pending = self._pending[at + len(mark) :]
        if mark == TOOL_CALLS:
            self._mode = self._mistral
        elif mark in (OPEN, PYTHON_TAG):
            self._begin_object()
        return True

    def _begin_object(self) -> None:
        self._object, self._seen = _Depth(), 0
        self._mode = self._header

    def _header(self) -> bool:
        """Wait for the name of a call, and for the first brace of its arguments."""
        start = self._pending.lstrip()
        if not start:
            return False
        if start[0] != "{":
            self._mode = self._content  # no call at all
            return True
        match = _HEADER.match(self._pending)
        if match is not None and self._known(name := json.loads(match[1], strict=False)):
            self._start(name)
            self._outer = _Depth()
            self._outer.end(self._pending[: match.end()])
            self._pending = self._pending[match.end() :]
            self._mode = self._arguments
            return True
        end = self._object.end(self._pending[self._seen :])
        if end is None:
            self._seen = len(self._pending)
            if self._seen > _MAX_HELD:
                self._mode = self._content
            return False
        whole, self._pending = self._pending[: self._seen + end], self._pending[self._seen + end :]
        if not self._whole(whole):
            self._say(whole)
        self._mode = self._after
        return True

    def _known(self, name: str) -> bool:
        """Llama's calls are plain JSON: only the name tells one from an answer in JSON."""
        return self._kind is not ToolFormat.LLAMA3 or name in self._names

    def _whole(self, text: str) -> bool:
        """A call whose members came in another order; False when it is none."""
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return False
        name = value.get("name")
        arguments = value.get("arguments", value.get("parameters", {}))
        if not isinstance(name, str) or not self._known(name):
            return False
        self._start(name)
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._pieces.append(CallArguments(self.calls - 1, written))
        self.complete += 1
        return True

    def _start(self, name: str) -> None:
        self._space = ""
        self._pieces.append(CallStart(self.calls, name))
        self.calls += 1
        self._object = _Depth()

    def _arguments(self) -> bool:
        """Pass the arguments on until their object closes."""
        end = self._object.end(self._pending)
        text = self._pending if end is None else self._pending[:end]
        self._pending = "" if end is None else self._pending[end:]
        self._pieces.append(CallArguments(self.calls - 1, text))
        if end is None:
            return False
        self.complete += 1
        self._mode = self._rest if self._outer is not None else self._after
        return True

    def _rest(self) -> bool:
        """Skip to the end of the object around the arguments."""
        assert self._outer is not None
        end = self._outer.end(self._pending)
        self._pending = "" if end is None else self._pending[end:]
        if end is None:
            return False
        self._outer = None
        self._mode = self._after
        return True

    def _after(self) -> bool:
        """Behind a call: what separates it from the next, or text again."""
        if self._kind is ToolFormat.HERMES:
            self._mode = self._content
            return True
        self._pending = self._pending.lstrip(" \r\n\t,;")
        if not self._pending:
            return False
        if self._pending[0] == "{":
            self._begin_object()
            return True
        if self._kind is ToolFormat.MISTRAL and self._pending[0] == "]":
            self._pending = self._pending[1:]
        self._mode = self._content
        return True

    def _mistral(self) -> bool:
        """Behind ``[TOOL_CALLS]``: a list of objects, one object, or a name and its arguments."""
        text = self._pending.lstrip()
        if not text or (ARGS.startswith(text) and len(text) < len(ARGS)):
            return False
        if text[0] == "[":
            self._pending = text[1:]
            self._mode = self._after
            return True
        if text[0] == "{":
            self._begin_object()
            return True
        at = text.find("{")
        if at < 0:
            return False
        self._start(text[:at].replace(ARGS, "").strip())
        self._pending = text[at:]
        self._mode = self._arguments
        return True

    def _llama_start(self) -> bool:
        """The first thing said decides: an object may be a call, anything else is text."""
        text = self._pending.lstrip()
        if not text or (PYTHON_TAG.startswith(text) and len(text) < len(PYTHON_TAG)):
            return False
        if text[0] == "{":
            self._begin_object()
        else:
            self._mode = self._content
        return True


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` with which ``mark`` begins."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
