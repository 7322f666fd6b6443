"""Reading a GGUF file: metadata and the table of tensors, every count and offset checked against the file's size.

The file comes from a user. Nothing is read outside it and no count is believed before it fits.
"""

import dataclasses
import math
import mmap
import struct
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from runtime.engine import errors

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_LENGTH: Final = struct.Struct("<Q")
_MAX_DIMS: Final = 4
_PLAIN: Final[dict[Any, Any]] = {
    gguf.GGMLQuantizationType.F32: np.dtype("<f4"),
    gguf.GGMLQuantizationType.F16: np.dtype("<f2"),
}
# Rows are turned into floats in pieces of about this many values: the conversion needs several copies of a piece.
_PIECE_VALUES: Final = 1 << 20


class DamagedFile(errors.StartError):
    """The file breaks its own format."""

    def __init__(self, what: str) -> None:
        super().__init__("DamagedModel", f"The GGUF file is damaged: {what}.")


@dataclasses.dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` in torch's order (rows first), ``start`` and ``num_bytes`` in the file."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int
    num_bytes: int


class GgufFile:
    """A mapped file. ``fields`` holds the metadata, ``tensors`` the table by name."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as opened:
            try:
                self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as exc:
                raise DamagedFile("it is empty") from exc
        self._at = 0
        self.fields: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        if self._bytes(4) != _MAGIC:
            raise DamagedFile("it does not start with 'GGUF'")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise errors.StartError("UnsupportedModel", f"GGUF version {version} is not read, only 2 and 3.")
        tensor_count, field_count = self._scalar("Q"), self._scalar("Q")
        for _ in range(self._believable(field_count, 12)):
            key = self._string()
            self.fields[key] = self._value(self._scalar("I"))
        self._read_table(self._believable(tensor_count, 24))

    @property
    def header(self) -> bytes:
        """All that comes before the weights: metadata and the table of tensors."""
        return self._data[: self._at]

    def _bytes(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise DamagedFile("it ends in the middle of its header")
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _believable(self, count: int, smallest: int) -> int:
        """Return ``count`` if that many items of ``smallest`` bytes can still follow."""
        if count * smallest > len(self._data) - self._at:
            raise DamagedFile(f"it claims {count} entries, more than it has bytes for")
        return count

    def _string(self) -> str:
        data = self._bytes(self._scalar("Q"))
        return data.decode("utf-8", errors="replace")

    def _strings(self, count: int) -> list[str]:
        """``count`` strings in a row: vocabularies have a hundred thousand, so this loop is kept short."""
        data, at, size = self._data, self._at, len(self._data)
        found = []
        for _ in range(count):
            if at + _LENGTH.size > size:
                raise DamagedFile("it ends in the middle of its header")
            end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            if end > size:
                raise DamagedFile("it ends in the middle of its header")
            found.append(data[at + _LENGTH.size : end].decode("utf-8", errors="replace"))
            at = end
        self._at = at
        return found

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise DamagedFile(f"metadata type {kind} is unknown")
        element, count = self._scalar("I"), self._scalar("Q")
        if element == _STRING:
            return self._strings(self._believable(count, 8))
        if element not in _SCALARS:
            raise DamagedFile(f"arrays of type {element} are not read")
        code = _SCALARS[element]
        width = struct.calcsize("<" + code)
        return list(struct.unpack(f"<{self._believable(count, width)}{code}", self._bytes(count * width)))

    def _read_table(self, count: int) -> None:
        entries = []
        for _ in range(count):
            name, dims = self._string(), self._scalar("I")
            if not 1 <= dims <= _MAX_DIMS:
                raise DamagedFile(f"tensor {name!r} has {dims} dimensions")
            shape = tuple(reversed([self._scalar("Q") for _ in range(dims)]))
            entries.append((name, shape, self._scalar("I"), self._scalar("Q")))
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise DamagedFile("its alignment is not a positive number")
        base = -(-self._at // alignment) * alignment
        for name, shape, code, offset in entries:
            self.tensors[name] = self._tensor(name, shape, code, base + offset)

    def _tensor(self, name: str, shape: tuple[int, ...], code: int, start: int) -> GgufTensor:
        try:
            kind = gguf.GGMLQuantizationType(code)
            block, width = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as exc:
            raise errors.StartError("UnsupportedModel", f"Tensor {name!r} has the unknown type {code}.") from exc
        if min(shape) < 1 or shape[-1] % block:
            raise DamagedFile(f"tensor {name!r} of shape {shape} does not fit blocks of {block}")
        num_bytes = math.prod(shape) // block * width
        if start + num_bytes > len(self._data):
            raise DamagedFile(f"tensor {name!r} ends behind the end of the file")
        return GgufTensor(name, shape, kind, start, num_bytes)

    def pieces(self, tensor: GgufTensor, together: int = 1) -> "list[tuple[int, int]]":
        """Ranges of rows (first, count) in which to read ``tensor`` so that memory stays bounded.

        Each begins at a multiple of ``together``.
        """
        rows = math.prod(tensor.shape[:-1])
        step = max(1, _PIECE_VALUES // (tensor.shape[-1] * together)) * together
        return [(first, min(step, rows - first)) for first in range(0, rows, step)]

    def forget(self, tensor: GgufTensor) -> None:
        """Let the system take the pages that :meth:`read` mapped; what is read again comes from the file again."""
        start = tensor.start // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED, start, tensor.start + tensor.num_bytes - start)

    def read(self, tensor: GgufTensor, first: int = 0, count: int | None = None) -> NDArray[np.float32]:
        """Rows ``first .. first + count`` of ``tensor`` as float32 [count, columns] (or [columns] for a vector)."""
        rows = math.prod(tensor.shape[:-1])
        count = rows - first if count is None else count
        width = tensor.num_bytes // rows
        raw = np.frombuffer(self._data, np.uint8, count=count * width, offset=tensor.start + first * width)
        values: NDArray[np.float32]
        if tensor.kind in _PLAIN:
            values = raw.view(_PLAIN[tensor.kind]).astype(np.float32)
        else:
            values = gguf.quants.dequantize(raw.reshape(count, width), tensor.kind)
        return values.reshape(-1) if len(tensor.shape) == 1 else values.reshape(count, tensor.shape[-1])
