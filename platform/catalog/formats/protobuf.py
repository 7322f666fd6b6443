"""Protocol buffers on the wire, read where they lie: fields of a message, nothing that a sender claims believed.

Only what reading a header takes: tags, varints and lengths. What a field holds is skipped, not copied, so gigabytes of
weights between two facts cost nothing. Source: the encoding that protobuf.dev/programming-guides/encoding specifies.
"""

import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT: Final = 10
_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63


class Malformed(ValueError):
    """These bytes are no such message; the text says what is wrong."""


class Field(NamedTuple):
    """A field: ``number`` and wire ``kind``, and where its content lies. ``value`` is a varint's, else 0."""

    number: int
    kind: int
    begin: int
    end: int
    value: int = 0


class Reader:
    """The messages in one file. It is given up after so many ``fields``, or so many bytes of texts.

    Raises:
        Malformed: from every method, where bytes are missing, a length leaves its message, or there is no end.
    """

    def __init__(self, data: "mmap.mmap | bytes", *, fields: int, text_bytes: int) -> None:
        self._data = data
        self._left = fields
        self._texts = text_bytes

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """The fields of the message from ``begin`` to before ``end``, in their order."""
        at = begin
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise Malformed("it has more parts than any model")
            tag, at = self._varint(at, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise Malformed("a part of it has no number")
            if kind == VARINT:
                value, after = self._varint(at, end)
                yield Field(number, kind, at, after, value)
            elif kind == BYTES:
                size, at = self._varint(at, end)
                after = at + size
                yield Field(number, kind, at, self._inside(after, end))
            elif kind in _WIDTHS:
                after = at + _WIDTHS[kind]
                yield Field(number, kind, at, self._inside(after, end))
            else:
                raise Malformed(f"a part of it has the kind {kind}")
            at = after

    def text(self, field: Field, most: int) -> str:
        """The text of a field of at most ``most`` bytes."""
        self._of(field, BYTES)
        if field.end - field.begin > most:
            raise Malformed(f"a text has {field.end - field.begin} bytes, more than {most}")
        self._texts -= field.end - field.begin
        if self._texts < 0:
            raise Malformed("its names are longer than those of any model")
        try:
            return self._data[field.begin : field.end].decode()
        except UnicodeDecodeError:
            raise Malformed("a text is not UTF-8") from None

    def number(self, field: Field) -> int:
        """A varint as the signed 64-bit number that it stands for."""
        self._of(field, VARINT)
        return signed(field.value)

    def numbers(self, field: Field, most: int) -> list[int]:
        """The signed numbers of a repeated field: one, or packed; at most ``most`` of them."""
        if field.kind == VARINT:
            return [signed(field.value)]
        self._of(field, BYTES)
        found: list[int] = []
        at = field.begin
        while at < field.end:
            if len(found) == most:
                raise Malformed(f"a list has more than {most} numbers")
            value, at = self._varint(at, field.end)
            found.append(signed(value))
        return found

    def count_varints(self, field: Field) -> int:
        """How many numbers a repeated field of varints holds: each ends in a byte below 128."""
        if field.kind == VARINT:
            return 1
        self._of(field, BYTES)
        if field.end > field.begin and self._data[field.end - 1] >= 128:
            raise Malformed("a list of numbers ends within one")
        count = 0
        for at in range(field.begin, field.end, 1 << 20):
            count += len(self._data[at : min(at + (1 << 20), field.end)].translate(None, _CONTINUED))
        return count

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        if at < end and (first := self._data[at]) < 128:  # most of them
            return first, at + 1
        value = shift = 0
        for place in range(at, min(at + _LONGEST_VARINT, end)):
            byte = self._data[place]
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= _WORD:
                    raise Malformed("a number has more than 64 bits")
                return value, place + 1
            shift += 7
        raise Malformed("it ends in the middle of a number, or a number has no end")

    @staticmethod
    def _inside(after: int, end: int) -> int:
        if after > end:
            raise Malformed(f"a part claims to end {after - end} bytes behind what holds it")
        return after

    @staticmethod
    def _of(field: Field, kind: int) -> None:
        if field.kind != kind:
            raise Malformed(f"part {field.number} of a message has the kind {field.kind}, not {kind}")


_CONTINUED: Final = bytes(range(128, 256))


def signed(value: int) -> int:
    """Two's complement of 64 bits."""
    return value - _WORD if value & _SIGN else value
