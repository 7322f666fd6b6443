"""Server-sent events on their way through: metering comments are taken out, everything else passes as it came.

Pure byte work, no parsing of the events themselves beyond their first bytes.
"""

from typing import Final

from runtime.wire import codec, errors
from runtime.wire.inference import USAGE_COMMENT, Usage

KEEPALIVE: Final = b": keep-alive\n\n"
_MAX_LINE: Final = 8 * 1024 * 1024
_DONE: Final = b"data: [DONE]"
_ERROR: Final = b'data: {"error"'
_DATA: Final = b"data:"
_EVENT: Final = b"data: {"
_PLAIN_LINES: Final = 5  # count, blank, event, blank, and nothing behind the last line feed


class LineTooLong(ValueError):
    """An engine sent a line without end."""


class Meter:
    """Feeds on the engine's bytes and gives the client's. ``usage`` is the newest count the engine wrote."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.done = False  # [DONE] was seen: the stream is whole
        self.failed = False  # the engine itself reported an error inside the stream
        self.events = 0
        self._rest = b""
        self._skip_blank = False
        self._open = False  # the client has part of an event: nothing may be put in between

    @property
    def between_events(self) -> bool:
        """True when a comment or an event may be written without tearing another."""
        return not self._open

    def feed(self, chunk: bytes) -> bytes:
        """Return what the client may see of ``chunk``: whole lines only, metering taken out.

        Raises:
            LineTooLong: a line exceeds what any event may be.
        """
        if (plain := self.plain(chunk)) is not None:
            return plain
        data = self._rest + chunk if self._rest else chunk
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > _MAX_LINE:
            raise LineTooLong
        if not end:
            return b""
        kept = [line for line in data[:end].splitlines(keepends=True) if self._keep(line)]
        return b"".join(kept)

    def plain(self, data: bytes) -> bytes | None:
        """As :meth:`feed` for what engines mostly write: one count and one event, whole.

        ``None``: it is not that, and nothing was taken.
        """
        if self._open or self._rest or not data.startswith(USAGE_COMMENT):
            return None
        lines = data.split(b"\n")
        if len(lines) != _PLAIN_LINES or lines[1] or lines[3] or lines[4] or b"\r" in data:
            return None
        line = lines[2]
        if not line.startswith(_EVENT) or line.startswith(_ERROR):
            return None
        self._count(lines[0][len(USAGE_COMMENT) :])
        self._skip_blank = False
        self.events += 1
        return data[len(lines[0]) + 2 :]

    def _keep(self, line: bytes) -> bool:
        bare = line.rstrip(b"\r\n")
        if not bare:
            blank_of_comment, self._skip_blank = self._skip_blank, False
            if blank_of_comment:
                return False
            self._open = False
            return True
        if bare.startswith(USAGE_COMMENT):
            self._count(bare[len(USAGE_COMMENT) :])
            self._skip_blank = not self._open
            return False
        self._skip_blank = False
        self._open = True
        if bare.startswith(_DATA):
            self.events += 1
            self.done = self.done or bare == _DONE
            self.failed = self.failed or bare.startswith(_ERROR)
        return True

    def _count(self, text: bytes) -> None:
        try:
            self.usage = codec.decode(text, Usage)
        except errors.MalformedMessage:
            return  # a count that cannot be read leaves the last good one standing


def event(body: bytes) -> bytes:
    """One event with ``body`` (JSON without line breaks) as its data."""
    return b"data: " + body + b"\n\n"
