"""Builders of ONNX models byte by byte, without protobuf or a runtime: messages as bytes, fields in the order given."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Element types by name, as in ``onnx.proto``.
TYPES: Final = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "INT32": 6, "INT64": 7, "STRING": 8, "BOOL": 9, "FLOAT16": 10, "DOUBLE": 11,
    "UINT64": 13, "COMPLEX64": 14, "BFLOAT16": 16, "INT4": 22,
}  # fmt: skip


def varint(value: int) -> bytes:
    """A varint; negative numbers in two's complement of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def part(field: int, data: bytes | str) -> bytes:
    """A field of bytes: a text or a message."""
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name: str, shape: Sequence[int], kind: str = "FLOAT", data: bytes | None = None, **more: Any) -> bytes:
    """A tensor with ``data`` as raw bytes (``b""``: none); ``external`` names location, offset and length instead."""
    message = b"".join(number(1, size) for size in shape) + number(2, TYPES.get(kind, 0) or int(kind))
    message += part(8, name)
    if external := more.get("external"):
        message += b"".join(part(13, part(1, key) + part(2, str(value))) for key, value in external.items())
        return message + number(14, 1)
    if data is None:
        count = 1
        for size in shape:
            count *= size
        widths = {"INT64": 8, "DOUBLE": 8, "FLOAT16": 2, "BFLOAT16": 2, "INT8": 1, "UINT8": 1}
        data = bytes(max(0, count) * widths.get(kind, 4))
    return message + (part(9, data) if data else b"") + more.get("tail", b"")


def value(name: str, shape: Sequence[int | str] | None, kind: str = "FLOAT") -> bytes:
    """An array between nodes; a text is a named dimension, ``""`` one without a name."""
    array = number(1, TYPES[kind])
    if shape is not None:
        dims = (b"" if size == "" else part(2, size) if isinstance(size, str) else number(1, size) for size in shape)
        array += part(2, b"".join(part(1, dim) for dim in dims))
    return part(1, name) + part(2, part(1, array))


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", attributes: bytes = b""
) -> bytes:
    """An operation."""
    message = b"".join(part(1, name) for name in inputs) + b"".join(part(2, name) for name in outputs)
    return message + part(4, operator) + (part(7, domain) if domain else b"") + attributes


def attribute(name: str, **kinds: bytes) -> bytes:
    """An attribute that holds a tensor (``t``) or a graph (``g``), as a field of a node."""
    fields = {"t": 5, "g": 6, "sparse": 22}
    return part(5, part(1, name) + b"".join(part(fields[kind], data) for kind, data in kinds.items()))


def graph(
    *, nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], tensors: Sequence[bytes] = (),
    values: Sequence[bytes] = (), name: str = "tiny", tail: bytes = b"",
) -> bytes:  # fmt: skip
    """A graph."""
    message = b"".join(part(1, each) for each in nodes) + part(2, name)
    message += b"".join(part(5, each) for each in tensors) + b"".join(part(11, each) for each in inputs)
    return message + b"".join(part(12, each) for each in outputs) + b"".join(part(13, each) for each in values) + tail


def model(
    body: bytes | None = None, *, ir_version: int = 10, opsets: Mapping[str, int] | None = None, tail: bytes = b""
) -> bytes:
    """A model around the graph ``body`` (without one: :func:`perceptron`)."""
    sets = {"": 21} if opsets is None else opsets
    message = (number(1, ir_version) if ir_version else b"") + part(2, "pytorch") + part(3, "2.13.0")
    message += part(7, perceptron() if body is None else body)
    return message + b"".join(part(8, part(1, domain) + number(2, version)) for domain, version in sets.items()) + tail


def perceptron(weights: Sequence[bytes] | None = None, **more: Any) -> bytes:
    """A graph of one hidden layer: [batch, 4] to [batch, 2], with 4 x 8 and 8 x 2 weights."""
    return graph(
        nodes=more.get("nodes") or [
            node("MatMul", ["x", "w1"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w2"], ["y"]),
        ],
        inputs=more.get("inputs") or [value("x", ["batch", 4])],
        outputs=more.get("outputs") or [value("y", ["batch", 2])],
        tensors=[tensor("w1", [4, 8]), tensor("w2", [8, 2])] if weights is None else weights,
        values=more.get("values", [value("h", ["batch", 8]), value("r", ["batch", 8])]),
        tail=more.get("tail", b""),
    )  # fmt: skip
