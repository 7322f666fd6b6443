"""What an ONNX file says about itself: inputs, outputs, tensors, nodes, and the shapes between them.

The file is one protobuf message in which weights lie between the facts; they are stepped over. Numbers of fields and of
element types are those of ``onnx.proto`` (github.com/onnx/onnx, IR version 3 on).
"""

import dataclasses
import mmap
from collections.abc import Iterator
from typing import Final

from catalog.formats.facts import Reason, Rejected, Source, Tensor
from catalog.formats.protobuf import BYTES, Field, Malformed, Reader

MAX_TENSORS: Final = 200_000
MAX_NODES: Final = 200_000
_MAX_VALUES: Final = 500_000
_MAX_FIELDS: Final = 4_000_000
_MAX_TEXTS: Final = 128 * 1024**2
_MAX_DEPTH: Final = 16
_MAX_DIMS: Final = 64
_MAX_ELEMENTS: Final = 1 << 48
_MAX_TEXT: Final = 4096
#: Element types by code: name as safetensors have it, and bits of an element (0: text, as long as it is).
TYPES: Final = {
    1: ("F32", 32), 2: ("U8", 8), 3: ("I8", 8), 4: ("U16", 16), 5: ("I16", 16), 6: ("I32", 32), 7: ("I64", 64),
    8: ("STRING", 0), 9: ("BOOL", 8), 10: ("F16", 16), 11: ("F64", 64), 12: ("U32", 32), 13: ("U64", 64),
    14: ("C64", 64), 15: ("C128", 128), 16: ("BF16", 16), 17: ("F8_E4M3", 8), 18: ("F8_E4M3FNUZ", 8),
    19: ("F8_E5M2", 8), 20: ("F8_E5M2FNUZ", 8), 21: ("U4", 4), 22: ("I4", 4), 23: ("F4_E2M1", 4), 24: ("F8_E8M0", 8),
    25: ("U2", 2), 26: ("I2", 2), 27: ("F6_E2M3", 6), 28: ("F6_E3M2", 6),
}  # fmt: skip
BITS: Final = dict(TYPES.values())
_EXTERNAL: Final = 1

#: A dimension: a size, a name that callers fill ("batch"), or "" where nothing is said.
Dim = int | str


@dataclasses.dataclass(frozen=True)
class Value:
    """An array between nodes: its element type ("" where it is no array) and its shape (``None``: not said)."""

    name: str
    kind: str
    shape: tuple[Dim, ...] | None


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation, in the order of the file; those of a body (of a loop, of a branch) stand before what has it."""

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class External:
    """Where the bytes of a tensor are: ``location`` relative to the file that names it."""

    tensor: Tensor
    location: str
    offset: int


@dataclasses.dataclass
class Graph:
    """A whole model. ``functions`` are (domain, name) of operations that the file defines itself."""

    ir_version: int = 0
    producer: str = ""
    operator_sets: dict[str, int] = dataclasses.field(default_factory=dict)
    name: str = ""
    inputs: list[Value] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)
    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    nodes: list[Node] = dataclasses.field(default_factory=list)
    tensors: list[Tensor] = dataclasses.field(default_factory=list)
    initializers: set[str] = dataclasses.field(default_factory=set)
    external: list[External] = dataclasses.field(default_factory=list)
    functions: set[tuple[str, str]] = dataclasses.field(default_factory=set)


def read_graph(file: Source) -> Graph:
    """Read ``file``, by itself: what its tensors say of other files is not looked at.

    Raises:
        Rejected: damaged, cut off, or of a kind that is not read.
    """
    if file.size == 0:
        raise Rejected(Reason.DAMAGED_FILE, f"{file.path} is empty. Export the model again.")
    with file.location.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Walk(Reader(data, fields=_MAX_FIELDS, text_bytes=_MAX_TEXTS), file.path).model(len(data))
        except Malformed as exc:
            raise Rejected(Reason.DAMAGED_FILE, f"{file.path} is damaged: {exc}. Export the model again.") from exc


class _Walk:
    """One walk through the message. Messages are read field by field, since nothing says in which order they come."""

    def __init__(self, reader: Reader, path: str) -> None:
        self._reader = reader
        self._path = path
        self._graph = Graph()

    def model(self, size: int) -> Graph:
        graph, reader, seen = self._graph, self._reader, False
        version = ""
        for field in reader.fields(0, size):
            match field.number:
                case 1:
                    graph.ir_version = reader.number(field)
                case 2:
                    graph.producer = reader.text(field, _MAX_TEXT)
                case 3:
                    version = reader.text(field, _MAX_TEXT)
                case 7:
                    if seen:
                        raise Malformed("it has two graphs")
                    seen = True
                    self._graph_message(field, depth=0)
                case 8:
                    self._operator_set(field)
                case 20:
                    raise self._unsupported("it carries what it was trained with (training_info)")
                case 25:
                    self._function(field)
        if not seen or not graph.ir_version:
            raise Malformed("it is no ONNX model: it has no graph, or no IR version")
        graph.producer = f"{graph.producer} {version}".strip()[:120]
        return graph

    def _operator_set(self, field: Field) -> None:
        domain, version = "", 0
        for part in self._parts(field):
            if part.number == 1:
                domain = self._reader.text(part, _MAX_TEXT)
            elif part.number == 2:
                version = self._reader.number(part)
        self._graph.operator_sets["ai.onnx" if domain == "" else domain] = version

    def _function(self, field: Field) -> None:
        name = domain = ""
        for part in self._parts(field):
            if part.number == 1:
                name = self._reader.text(part, _MAX_TEXT)
            elif part.number == 10:
                domain = self._reader.text(part, _MAX_TEXT)
            elif part.number == 7:
                self._node(part, depth=1, keep=False)
        self._graph.functions.add((domain, name))

    def _graph_message(self, field: Field, *, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Malformed(f"graphs stand in each other more than {_MAX_DEPTH} deep")
        graph, reader = self._graph, self._reader
        for part in self._parts(field):
            match part.number:
                case 1:
                    self._node(part, depth=depth)
                case 2 if depth == 0:
                    graph.name = reader.text(part, _MAX_TEXT)
                case 5:
                    graph.initializers.add(self._tensor(part).name)
                case 11 | 12 | 13:
                    value = self._value(part)
                    graph.values[value.name] = value
                    if len(graph.values) > _MAX_VALUES:
                        raise Malformed(f"it has more than {_MAX_VALUES} values")
                    if depth == 0 and part.number != 13:
                        (graph.inputs if part.number == 11 else graph.outputs).append(value)
                case 15:
                    raise self._unsupported("it has sparse weights")

    def _node(self, field: Field, *, depth: int, keep: bool = True) -> None:
        inputs: list[str] = []
        outputs: list[str] = []
        operator = domain = ""
        for part in self._parts(field):
            match part.number:
                case 1:
                    inputs.append(self._reader.text(part, _MAX_TEXT))
                case 2:
                    outputs.append(self._reader.text(part, _MAX_TEXT))
                case 4:
                    operator = self._reader.text(part, _MAX_TEXT)
                case 5:
                    self._attribute(part, depth=depth)
                case 7:
                    domain = self._reader.text(part, _MAX_TEXT)
        if keep and len(self._graph.nodes) == MAX_NODES:
            raise Malformed(f"it has more than {MAX_NODES} nodes")
        if keep:
            self._graph.nodes.append(Node(operator, domain, tuple(inputs), tuple(outputs)))

    def _attribute(self, field: Field, *, depth: int) -> None:
        """Only what may hold weights or a graph."""
        for part in self._parts(field):
            match part.number:
                case 5 | 10:
                    self._tensor(part)
                case 6 | 11:
                    self._graph_message(part, depth=depth + 1)
                case 22 | 23:
                    raise self._unsupported("it has sparse weights")

    def _value(self, field: Field) -> Value:
        name, kind, shape = "", "", None
        for part in self._parts(field):
            if part.number == 1:
                name = self._reader.text(part, _MAX_TEXT)
            elif part.number == 2:
                for choice in self._parts(part):
                    if choice.number == 1:
                        kind, shape = self._array(choice, name)
        return Value(name, kind, shape)

    def _array(self, field: Field, name: str) -> tuple[str, tuple[Dim, ...] | None]:
        kind, shape = "", None
        for part in self._parts(field):
            if part.number == 1:
                kind = self._type(self._reader.number(part), name)[0]
            elif part.number == 2:
                shape = tuple(self._dim(dim) for dim in self._parts(part) if dim.number == 1)
                if len(shape) > _MAX_DIMS:
                    raise Malformed(f"{name[:80]!r} has {len(shape)} dimensions")
        return kind, shape

    def _dim(self, field: Field) -> Dim:
        for part in self._parts(field):
            if part.number == 1:
                size = self._reader.number(part)
                return size if 0 <= size <= _MAX_ELEMENTS else ""
            if part.number == 2:
                return self._reader.text(part, _MAX_TEXT)[:64]
        return ""

    def _tensor(self, field: Field) -> Tensor:
        reader, tensor = self._reader, _Stored()
        for part in self._parts(field):
            match part.number:
                case 1:
                    tensor.dims += reader.numbers(part, _MAX_DIMS)
                case 2:
                    tensor.code = reader.number(part)
                case 3:
                    raise self._unsupported("a tensor of it is cut in segments")
                case 8:
                    tensor.name = reader.text(part, _MAX_TEXT)
                case 4 | 6 | 9 | 10:
                    tensor.held[part.number] = tensor.held.get(part.number, 0) + part.end - part.begin
                    tensor.texts += part.number == 6
                case 5 | 7 | 11:
                    tensor.held[part.number] = tensor.held.get(part.number, 0) + reader.count_varints(part)
                case 13:
                    key, value = self._entry(part)
                    tensor.elsewhere[key] = value
                case 14:
                    tensor.location = reader.number(part)
        return self._settle(tensor)

    def _settle(self, stored: "_Stored") -> Tensor:
        """Check that what is there is what shape and type call for."""
        graph, shown = self._graph, stored.name[:80]
        kind, bits = self._type(stored.code, stored.name)
        count = 1
        for size in stored.dims:
            count *= size
            if not 0 <= size <= _MAX_ELEMENTS or count > _MAX_ELEMENTS:
                raise self._lies(f"tensor {shown!r} claims the shape {stored.dims[:8]}")
        if len(stored.dims) > _MAX_DIMS or len(graph.tensors) == MAX_TENSORS:
            raise Malformed(f"it has more than {MAX_TENSORS} tensors, or one of more than {_MAX_DIMS} dimensions")
        num_bytes = (count * bits + 7) // 8 if bits else stored.held.get(6, 0)
        tensor = Tensor(stored.name, kind, tuple(stored.dims), num_bytes)
        if stored.location == _EXTERNAL:
            graph.external.append(self._outside(stored, tensor))
        elif not stored.holds(count, kind, num_bytes):
            raise self._lies(f"tensor {shown!r} of shape {stored.dims} and type {kind} does not have its bytes")
        graph.tensors.append(tensor)
        return tensor

    def _outside(self, stored: "_Stored", tensor: Tensor) -> External:
        location, shown = stored.elsewhere.get("location", ""), tensor.name[:80]
        offset, length = (stored.elsewhere.get(name, "0") or "0" for name in ("offset", "length"))
        numbers = offset.isascii() and offset.isdigit() and length.isascii() and length.isdigit()
        if not location or tensor.kind == "STRING" or not numbers or max(len(offset), len(length)) > 18:
            raise Malformed(f"it does not say where the bytes of tensor {shown!r} are")
        if int(length) not in (0, tensor.num_bytes):
            raise self._lies(f"tensor {shown!r} needs {tensor.num_bytes} bytes, and {length} are named in {location}")
        return External(tensor, location, int(offset))

    def _entry(self, field: Field) -> tuple[str, str]:
        texts = {
            part.number: self._reader.text(part, _MAX_TEXT) for part in self._parts(field) if part.number in (1, 2)
        }
        return texts.get(1, ""), texts.get(2, "")

    def _type(self, code: int, name: str) -> tuple[str, int]:
        if code not in TYPES:
            raise Rejected(
                Reason.UNSUPPORTED_TYPE,
                f"{self._path}: {name[:80]!r} has the element type {code}, which is not read here. "
                "Export the model with float or integer types.",
            )
        return TYPES[code]

    def _parts(self, field: Field) -> Iterator[Field]:
        if field.kind != BYTES:
            raise Malformed(f"part {field.number} is no message")
        return self._reader.fields(field.begin, field.end)

    def _lies(self, what: str) -> Rejected:
        return Rejected(
            Reason.SIZE_MISMATCH, f"{self._path} does not hold what it says: {what}. Export the model again."
        )

    def _unsupported(self, what: str) -> Rejected:
        return Rejected(
            Reason.UNSUPPORTED_VARIANT, f"{self._path} is not read here: {what}. Export a dense model for inference."
        )


@dataclasses.dataclass
class _Stored:
    """A tensor as the file has it. ``held`` is bytes (raw, floats, doubles, texts) or entries (numbers) by field."""

    name: str = ""
    code: int = 0
    dims: list[int] = dataclasses.field(default_factory=list)
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    texts: int = 0
    location: int = 0
    elsewhere: dict[str, str] = dataclasses.field(default_factory=dict)

    def holds(self, count: int, kind: str, num_bytes: int) -> bool:
        """True when the bytes of ``count`` elements are here, in one of the places where the format has them."""
        if set(self.held) - {9} and 9 in self.held:
            return False
        if kind == "STRING":
            return self.texts == count
        if count == 0 or 9 in self.held:
            return self.held.get(9, 0) == num_bytes
        if kind in ("F32", "C64"):
            return self.held.get(4) == num_bytes
        if kind in ("F64", "C128"):
            return self.held.get(10) == num_bytes
        if kind == "I64":
            return self.held.get(7) == count
        if kind in ("U32", "U64"):
            return self.held.get(11) == count
        return self.held.get(5) == (count if BITS[kind] >= 8 else num_bytes)
