"""An ONNX model: one graph file, and beside it the files that hold its larger tensors. Weights are never read."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog import graphs
from catalog.formats.activations import activations
from catalog.formats.facts import GraphFacts, Reason, Rejected, Source, bytes_by_type
from catalog.formats.onnxheader import External, Graph, Value, read_graph
from catalog.paths import is_external_data

#: Domains of operations that runtimes bring along; any other needs a library, which is code.
DOMAINS: Final = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
#: Element types as the Open Inference Protocol calls them, whose callers they are shown to.
DATATYPES: Final[Mapping[str, str]] = {
    "BOOL": "BOOL", "U8": "UINT8", "U16": "UINT16", "U32": "UINT32", "U64": "UINT64", "I8": "INT8", "I16": "INT16",
    "I32": "INT32", "I64": "INT64", "F16": "FP16", "BF16": "BF16", "F32": "FP32", "F64": "FP64", "STRING": "BYTES",
}  # fmt: skip
_MAX_PORTS: Final = 256
_MAX_GAP: Final = 65_536  # tensors in a file of their own begin at pages
_FEW_SHAPES: Final = 0.5
FEW_SHAPES_STATED: Final = (
    "FewShapesStated",
    "The file states the shapes of few of the values between its nodes, so the workspace is a guess. Run ONNX shape "
    "inference (onnx.shape_inference.infer_shapes_path) on it and upload the result as a new version.",
)


def inspect(files: Sequence[Source]) -> GraphFacts:
    """Check the model and say what it is.

    Raises:
        Rejected: it may not be kept here.
    """
    models = [file for file in files if file.name.lower().endswith(".onnx")]
    if len(models) != 1:
        raise Rejected(
            Reason.AMBIGUOUS_FORMAT,
            f"There are {len(models)} .onnx files; a version has one. Upload each as a model of its own.",
        )
    file = models[0]
    graph = read_graph(file)
    _check_operators(graph, file)
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    _check_ports(inputs, graph.outputs, file)
    _check_made(graph, file)
    _check_external(graph.external, file, files)
    peak = activations(graph)
    return GraphFacts(
        parameters=sum(tensor.count for tensor in graph.tensors),
        weight_types=bytes_by_type(graph.tensors),
        inputs=[_port(value) for value in inputs],
        outputs=[_port(value) for value in graph.outputs],
        nodes=len(graph.nodes),
        operator_sets=dict(sorted(graph.operator_sets.items())),
        ir_version=graph.ir_version,
        producer=graph.producer,
        title=graph.name[:120],
        largest_weight_bytes=max((tensor.num_bytes for tensor in graph.tensors), default=0),
        activation_terms=graphs.packed(peak.terms),
        stated_shapes=round(peak.stated, 3),
        warnings=() if peak.stated >= _FEW_SHAPES else (FEW_SHAPES_STATED,),
    )


def _check_operators(graph: Graph, file: Source) -> None:
    for node in graph.nodes:
        if node.domain not in DOMAINS and (node.domain, node.operator) not in graph.functions:
            raise Rejected(
                Reason.CODE_REFUSED,
                f"{file.path} needs the operation {node.operator[:80]!r} of {node.domain[:80]!r}, which a library "
                "would have to bring; none is loaded here. Export it with standard operations.",
            )


def _check_ports(inputs: Sequence[Value], outputs: Sequence[Value], file: Source) -> None:
    if not inputs or not outputs or max(len(inputs), len(outputs)) > _MAX_PORTS:
        raise Rejected(
            Reason.UNSUPPORTED_VARIANT,
            f"{file.path} has {len(inputs)} inputs and {len(outputs)} outputs; 1 to {_MAX_PORTS} of each are served. "
            "Export the model with its inputs and outputs named.",
        )
    for what, value in [("input", value) for value in inputs] + [("output", value) for value in outputs]:
        if value.kind not in DATATYPES:
            told = f"has the type {value.kind}" if value.kind else "is no array (a sequence or a map)"
            raise Rejected(
                Reason.UNSUPPORTED_TYPE,
                f"{file.path}: {what} {value.name[:80]!r} {told}, which no client can send or read. Export it with "
                "arrays of numbers or texts (classifiers of scikit-learn: with zipmap=False).",
            )


def _check_made(graph: Graph, file: Source) -> None:
    """Every output is of a node, an input or a weight. A graph may hand its inputs on, and have no nodes at all."""
    made = {name for node in graph.nodes for name in node.outputs} | graph.initializers
    made |= {value.name for value in graph.inputs}
    for value in graph.outputs:
        if value.name not in made:
            raise Rejected(
                Reason.DAMAGED_FILE,
                f"{file.path} is damaged: its output {value.name[:80]!r} comes from no node, input or weight. "
                "Export the model again.",
            )


def _check_external(external: Sequence[External], file: Source, files: Sequence[Source]) -> None:
    """Every tensor lies in a file that is here, and every byte of such a file belongs to a tensor."""
    by_path = {each.path: each for each in files}
    folder = posixpath.dirname(file.path)
    ranges: dict[str, set[tuple[int, int, str]]] = {}
    for each in external:
        path = posixpath.join(folder, each.location)
        if posixpath.normpath(path) != path or path.startswith(("/", "..")) or "\\" in path:
            raise Rejected(
                Reason.UNSAFE_PATH,
                f"{file.path} names {each.location[:80]!r}, a file outside of its folder. Save the model again with "
                "its data beside it.",
            )
        if path not in by_path:
            raise Rejected(
                Reason.MISSING_SHARD,
                f"{file.path} keeps weights in {each.location[:80]!r}, which is not here. Upload it too (a name that "
                "ends in .onnx.data or .onnx_data).",
            )
        begin = each.offset
        ranges.setdefault(path, set()).add((begin, begin + each.tensor.num_bytes, each.tensor.name))
    for path, held in ranges.items():
        _check_places(sorted(held), by_path[path])
    for each_file in files:
        if is_external_data(each_file.path) and each_file.path not in ranges:
            raise Rejected(
                Reason.UNEXPECTED_FILE, f"{each_file.path} is named by no tensor of {file.path}. Leave it out."
            )


def _check_places(held: Sequence[tuple[int, int, str]], file: Source) -> None:
    """Tensors may share all of their bytes, or none."""

    def lies(what: str) -> Rejected:
        return Rejected(
            Reason.SIZE_MISMATCH,
            f"{file.path} does not hold what is said of it: {what}. Export the model into an empty folder, since "
            "exporters append to what is there, and upload both files.",
        )

    at, last = 0, (0, 0)
    for begin, end, name in held:
        if end > file.size:
            raise lies(f"tensor {name[:80]!r} ends behind the end of the file, which is cut off")
        if (begin, end) == last:
            continue
        if begin < at and end > begin:
            raise lies(f"tensor {name[:80]!r} overlaps another one")
        if begin - at >= _MAX_GAP:
            raise lies(f"{begin - at} bytes before tensor {name[:80]!r} belong to nothing")
        at, last = max(at, end), (begin, end)
    if file.size - at >= _MAX_GAP:
        raise lies(f"{file.size - at} bytes at its end belong to nothing")


def _port(value: Value) -> dict[str, Any]:
    """An input or output for callers; an open dimension has its name, or -1."""
    shape = None if value.shape is None else [-1 if dim == "" else dim for dim in value.shape]
    return {"name": value.name[:256], "datatype": DATATYPES[value.kind], "shape": shape}
