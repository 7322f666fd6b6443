"""The bytes of a file, from an offset on, without holding them in memory."""

import asyncio
import dataclasses
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

PIECE_BYTES: Final = 1024 * 1024
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{0,18})\Z")


@dataclasses.dataclass(frozen=True)
class Span:
    """``first`` to ``last`` inclusive of ``size`` bytes. ``partial`` when less than all was asked for."""

    first: int
    last: int
    size: int
    partial: bool

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def content_range(self) -> str:
        return f"bytes {self.first}-{self.last}/{self.size}"


class Unsatisfiable(ValueError):
    """The range begins behind the end of the file."""


def span_of(header: str, size: int) -> Span:
    """Read a ``Range`` header with one range from the front (pure). Anything else asks for the whole file (RFC 9110).

    Raises:
        Unsatisfiable: the range begins at or behind the end.
    """
    match = _RANGE.match(header.strip())
    if match is None:
        return Span(0, size - 1, size, partial=False)
    first = int(match.group(1))
    last = min(int(match.group(2) or size - 1), size - 1)
    if first >= size:
        raise Unsatisfiable(f"the file has {size} bytes; the range begins at {first}")
    if last < first:
        return Span(0, size - 1, size, partial=False)
    return Span(first, last, size, partial=True)


def open_file(path: Path) -> tuple[BinaryIO, int]:
    """Open a stored file; returns it with its size. The file stays readable when it is deleted meanwhile."""
    handle = path.open("rb")
    return handle, os.fstat(handle.fileno()).st_size


async def pieces(handle: BinaryIO, span: Span) -> AsyncIterator[bytes]:
    """Yield the bytes of ``span``; the reads happen in threads, so that the server stays responsive."""
    try:
        await asyncio.to_thread(handle.seek, span.first)
        left = span.length
        while left > 0:
            piece = await asyncio.to_thread(handle.read, min(PIECE_BYTES, left))
            if not piece:
                return
            left -= len(piece)
            yield piece
    finally:
        handle.close()
