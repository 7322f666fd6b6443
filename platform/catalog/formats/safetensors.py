"""The header of a safetensors file, read strictly: every byte of the file belongs to exactly one tensor."""

import json
import struct
from typing import Any, Final

from catalog.formats.facts import Reason, Rejected, Source, Tensor

MAX_HEADER_BYTES: Final = 32 * 1024**2
MAX_TENSORS: Final = 200_000
_MAX_DIMS: Final = 8
_MAX_ELEMENTS: Final = 1 << 48
_LENGTH_BYTES: Final = 8
_WIDTHS: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_FIELDS: Final = {"dtype", "shape", "data_offsets"}


def read_header(file: Source) -> list[Tensor]:
    """Return the tensors of ``file`` in the order of their bytes.

    Raises:
        Rejected: the header does not fit the file, or lies about sizes.
    """
    header, data_bytes = _load(file)
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise _damaged(file, f"it names {len(header)} tensors, more than {MAX_TENSORS}")
    placed = sorted((_entry(file, name, entry) for name, entry in header.items()), key=lambda item: (item[1], item[2]))
    at = 0
    for tensor, begin, end in placed:
        if begin != at:
            what = "overlaps another one" if begin < at else "leaves a hole before it"
            raise _lies(file, f"tensor {tensor.name[:80]!r} {what}")
        at = end
    if at != data_bytes:
        kind = "is cut off" if at > data_bytes else "has bytes that no tensor names"
        raise _lies(file, f"the header describes {at} bytes and {data_bytes} are there: the file {kind}")
    return [tensor for tensor, _begin, _end in placed]


def _load(file: Source) -> tuple[dict[str, Any], int]:
    with file.location.open("rb") as handle:
        raw = handle.read(_LENGTH_BYTES)
        if len(raw) < _LENGTH_BYTES:
            raise _damaged(file, "it is too short to have a header")
        length = int(struct.unpack("<Q", raw)[0])
        if length > MAX_HEADER_BYTES or length > file.size - _LENGTH_BYTES:
            raise _lies(file, f"its header claims {length} bytes")
        text = handle.read(length)
    if len(text) != length or not text.startswith(b"{"):
        raise _damaged(file, "its header is not JSON")
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        raise _damaged(file, f"its header is not JSON ({str(exc)[:80]})") from exc
    if not isinstance(header, dict):
        raise _damaged(file, "its header is not a JSON object")
    return header, file.size - _LENGTH_BYTES - length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name is there twice")
    return result


def _entry(file: Source, name: str, entry: Any) -> tuple[Tensor, int, int]:
    shown = name[:80]
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise _damaged(file, f"tensor {shown!r} needs dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _WIDTHS:
        raise Rejected(
            Reason.UNSUPPORTED_TYPE,
            f"{file.path}: tensor {shown!r} has the type {str(kind)[:20]!r}, which is not read here. "
            "Save it as BF16, F16 or F32.",
        )
    if not _numbers(shape) or len(shape) > _MAX_DIMS or not _numbers(offsets) or len(offsets) != 2:
        raise _damaged(file, f"tensor {shown!r} has a shape or offsets that are not whole numbers")
    count = 1
    for size in shape:
        count *= size
        if count > _MAX_ELEMENTS:
            raise _lies(file, f"tensor {shown!r} claims more elements than any file has")
    begin, end = offsets
    if end - begin != count * _WIDTHS[kind]:
        raise _lies(
            file,
            f"tensor {shown!r} of shape {shape} and type {kind} needs {count * _WIDTHS[kind]} bytes, not {end - begin}",
        )
    return Tensor(name, kind, tuple(shape), end - begin), begin, end


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _damaged(file: Source, what: str) -> Rejected:
    return Rejected(Reason.DAMAGED_FILE, f"{file.path} is damaged: {what}. Export it again.")


def _lies(file: Source, what: str) -> Rejected:
    return Rejected(Reason.SIZE_MISMATCH, f"{file.path} does not hold what it says: {what}. Export it again.")
