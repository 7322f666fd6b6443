"""The header of a GGUF file, read within bounds: no count is believed before it fits, nothing outside is touched.

Long arrays (tokens, merges, scores) are counted and skipped, so memory does not grow with what a file claims.
"""

import dataclasses
import struct
from typing import IO, Any, Final

from catalog.formats.facts import Reason, Rejected, Source, Tensor

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_FIELDS: Final = 4096
_MAX_TENSORS: Final = 100_000
_MAX_KEY_BYTES: Final = 1024
_MAX_NAME_BYTES: Final = 64
_MAX_STRING_BYTES: Final = 1024**2
_MAX_ARRAY: Final = 4_000_000
_MAX_HEADER_BYTES: Final = 256 * 1024**2
_MAX_DIMS: Final = 4
_MAX_ELEMENTS: Final = 1 << 48
_KEPT_ARRAY: Final = 1024
_BUFFER: Final = 1024**2
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Storage types by code: name, elements of a block, bytes of a block.
TYPES: Final = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LongArray:
    """An array that was counted and skipped."""

    count: int
    element: int


@dataclasses.dataclass(frozen=True)
class Header:
    """Metadata by key (arrays longer than 1024 as :class:`LongArray`) and tensors by name."""

    fields: dict[str, Any]
    tensors: dict[str, Tensor]


def read_header(file: Source) -> Header:
    """Read the header of ``file`` and check that every tensor lies in the file, by itself.

    Raises:
        Rejected: damaged, cut off, or of a kind that is not read.
    """
    with file.location.open("rb", buffering=_BUFFER) as handle:
        return _Reader(handle, file).header()


class _Reader:
    def __init__(self, handle: IO[bytes], file: Source) -> None:
        self._handle = handle
        self._file = file
        self._at = 0
        self._end = min(file.size, _MAX_HEADER_BYTES)

    def header(self) -> Header:
        if self._take(4) != _MAGIC:
            raise self._damaged("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise Rejected(
                Reason.UNSUPPORTED_TYPE,
                f"{self._file.path} has the GGUF version {version}; 2 and 3 are read (little-endian). "
                "Convert it again.",
            )
        tensor_count, field_count = self._scalar("Q"), self._scalar("Q")
        if tensor_count > _MAX_TENSORS or field_count > _MAX_FIELDS:
            raise self._lies(f"it claims {tensor_count} tensors and {field_count} facts")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            key = self._string(_MAX_KEY_BYTES)
            if key in fields:
                raise self._damaged(f"the fact {key[:80]!r} is there twice")
            fields[key] = self._value(self._scalar("I"))
        return Header(fields, self._table(tensor_count, fields))

    def _take(self, count: int) -> bytes:
        if count > self._end - self._at:
            raise self._lies("it ends in the middle of its header")
        data = self._handle.read(count)
        if len(data) != count:
            raise self._lies("it ends in the middle of its header")
        self._at += count
        return data

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self, limit: int) -> str:
        length = self._scalar("Q")
        if length > limit:
            raise self._lies(f"it claims a text of {length} bytes, more than {limit}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as exc:
            raise self._damaged("a text in its header is not UTF-8") from exc

    def _skip_string(self) -> None:
        length = self._scalar("Q")
        if length > _MAX_STRING_BYTES:
            raise self._lies(f"it claims a text of {length} bytes")
        self._take(length)

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string(_MAX_STRING_BYTES)
        if kind != _ARRAY:
            raise self._damaged(f"a fact has the unknown type {kind}")
        element, count = self._scalar("I"), self._scalar("Q")
        if element != _STRING and element not in _SCALARS:
            raise self._damaged(f"an array of type {element} is not read")
        smallest = 8 if element == _STRING else struct.calcsize("<" + _SCALARS[element])
        if count > _MAX_ARRAY or count * smallest > self._end - self._at:
            raise self._lies(f"it claims an array of {count} entries")
        if element != _STRING:
            values = struct.unpack(f"<{count}{_SCALARS[element]}", self._take(count * smallest))
            return list(values) if count <= _KEPT_ARRAY else LongArray(count, element)
        for _ in range(count):
            self._skip_string()
        return LongArray(count, element)

    def _table(self, count: int, fields: dict[str, Any]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        places: list[tuple[int, Tensor]] = []
        for _ in range(count):
            tensor, offset = self._entry()
            if tensor.name in tensors:
                raise self._damaged(f"tensor {tensor.name!r} is there twice")
            tensors[tensor.name] = tensor
            places.append((offset, tensor))
        alignment = fields.get("general.alignment", 32)
        if (
            isinstance(alignment, bool)
            or not isinstance(alignment, int)
            or not 8 <= alignment <= 65536
            or alignment % 8
        ):
            raise self._damaged("its alignment is no multiple of 8 up to 65536")
        self._check_places(sorted(places, key=lambda place: place[0]), alignment)
        return tensors

    def _entry(self) -> tuple[Tensor, int]:
        name = self._string(_MAX_NAME_BYTES)
        dims = self._scalar("I")
        if not 1 <= dims <= _MAX_DIMS:
            raise self._damaged(f"tensor {name!r} has {dims} dimensions")
        sizes = [int(self._scalar("Q")) for _ in range(dims)]
        code, offset = self._scalar("I"), int(self._scalar("Q"))
        if code not in TYPES:
            raise Rejected(
                Reason.UNSUPPORTED_TYPE,
                f"{self._file.path}: tensor {name!r} has the storage type {code}, which is not read "
                "here. Quantize it anew, for instance to Q8_0.",
            )
        kind, block, width = TYPES[code]
        count = 1
        for size in sizes:
            count *= size
            if not 1 <= count <= _MAX_ELEMENTS:
                raise self._lies(f"tensor {name!r} claims the shape {sizes}")
        if sizes[0] % block:
            raise self._damaged(f"rows of tensor {name!r} have {sizes[0]} elements, no multiple of {block}")
        return Tensor(name, kind, tuple(reversed(sizes)), count // block * width), offset

    def _check_places(self, places: list[tuple[int, Tensor]], alignment: int) -> None:
        base = -(-self._at // alignment) * alignment
        at = 0
        for offset, tensor in places:
            if offset != at:
                what = "overlaps another one" if offset < at else "leaves a hole before it"
                raise self._lies(f"tensor {tensor.name!r} {what}")
            at = offset + tensor.num_bytes
            if base + at > self._file.size:
                raise self._lies(f"tensor {tensor.name!r} ends behind the end of the file, which is cut off")
            at = -(-at // alignment) * alignment
        if self._file.size > max(base + at, self._at):
            raise self._lies(f"{self._file.size - base - at} bytes at its end belong to nothing")

    def _damaged(self, what: str) -> Rejected:
        return Rejected(Reason.DAMAGED_FILE, f"{self._file.path} is damaged: {what}. Export it again.")

    def _lies(self, what: str) -> Rejected:
        return Rejected(
            Reason.SIZE_MISMATCH,
            f"{self._file.path} does not hold what it says: {what}. Upload it again, or export it again.",
        )
