"""ONNX models: what their headers say, what is refused, and what lives at the same time. Nothing is executed."""

import base64
import dataclasses
import zlib
from pathlib import Path
from typing import Any, Final

import pytest

from catalog import configs, formats, graphs
from catalog.configs import GIB
from catalog.estimate import MIB, estimate_graph
from catalog.formats.activations import activations
from catalog.formats.onnxheader import read_graph
from tests.build.onnx import attribute, graph, model, node, number, part, perceptron, tensor, value

DATA: Final = "m.onnx.data"
_EXTERNAL: Final[dict[str, Any]] = {"location": DATA, "offset": 0, "length": 128}
# What the format's own library (onnx 1.23) wrote: a constant, a branch with weights of its own, a function, and tensors
# in each of the places where the format has them.
GOLDEN: Final = zlib.decompress(
    base64.b85decode(
        "c-qBMJx{|h5X~h{aj#INZmAd$LKzq=7P`>|VWt*!K};-_ouo}rltAlJy7dq6ANqS(nHc#eI4K>F3XJ$;@x8lye(xx<$~aHMDC@qv$Pk{<"
        "o}V#@{mMY<!7RlFLX1Qua>`)hJC|XICyWGn7W(um&!$>tnzzt>lIbks)T?p;0l^9gz5$j%28nO?M*JFUQ96x=Y9g~B?wn%_VZz*Kn9sCN"
        "dxnHg^ny7Cqz-ZY&YIYu!1i#5xk~CFMw`+VxO|Q^9Y@)wScFYe3~jBLtIL7~RYnR7=ahQjA6tJcVX}+H`nSdf>4d?;cW>uO5Ov)&4`jMg"
        "k-q>XMK@t&>@UHxmKXnd`RV5CzvD#dFh4TnZ4bG(eE7ZviDf$CyVUX8-1z`Uz$0%PEbTaf)Ey_x$D)!-WxTsPFk`e$KB7!yu~pc66N!I}"
        "OtwerU*lClLaWRwkjYl0AZU5}qKa#?Ja`3;YyW(Z98|ZCAkAT*%DL&62{&u_Cv172Y5"
    )
)


def _inspect(folder: Path, files: dict[str, bytes]) -> Any:
    sources = []
    for number_, (path, data) in enumerate(files.items()):
        place = folder / f"{number_}"
        place.write_bytes(data)
        sources.append(formats.Source(path, len(data), place))
    return formats.inspect(sources)


def _weights(*tensors: bytes, **more: Any) -> dict[str, bytes]:
    """The perceptron with other weights."""
    return {"m.onnx": model(perceptron(list(tensors), **more))}


def _outside(data: bytes | None = bytes(192), **first: Any) -> dict[str, bytes]:
    """The perceptron with its weights in a file beside it; ``first`` changes what is said of the first."""
    told = {**_EXTERNAL, **first}
    second = tensor("w2", [8, 2], external={"location": DATA, "offset": "128", "length": "64"})
    files = _weights(tensor("w1", [4, 8], external=told), second)
    return files if data is None else {**files, DATA: data}


def _deep() -> bytes:
    body = perceptron()
    for _ in range(40):
        body = perceptron(nodes=[node("If", ["x"], ["y"], attributes=attribute("then_branch", g=body))])
    return model(body)


REFUSED: Final[dict[str, tuple[str, dict[str, bytes]]]] = {
    "an empty file": ("DamagedFile", {"m.onnx": b""}),
    "text": ("DamagedFile", {"m.onnx": b"hello, world"}),
    "a pickle": ("DamagedFile", {"m.onnx": b"\x80\x04\x95\x0f\x00"}),
    "zeros": ("DamagedFile", {"m.onnx": bytes(64)}),
    "a number without end": ("DamagedFile", {"m.onnx": b"\xff" * 64}),
    "a length that leaves the file": ("DamagedFile", {"m.onnx": model() + b"\x3a\xff\xff\xff\xff\x7f"}),
    "cut off": ("DamagedFile", {"m.onnx": model()[:-60]}),
    "no graph": ("DamagedFile", {"m.onnx": number(1, 10)}),
    "two graphs": ("DamagedFile", {"m.onnx": model(tail=part(7, perceptron()))}),
    "no IR version": ("DamagedFile", {"m.onnx": model(ir_version=0)}),
    "a group, which protobuf has no more": ("DamagedFile", {"m.onnx": model(tail=b"\x3b")}),
    "a text for a number": ("DamagedFile", {"m.onnx": part(1, "10") + model()}),
    "a number for a graph": ("DamagedFile", {"m.onnx": number(1, 10) + number(7, 1)}),
    "a name that is no text": ("DamagedFile", {"m.onnx": model(tail=part(2, b"\xff\xfe"))}),
    "a name without measure": ("DamagedFile", {"m.onnx": model(tail=part(2, "x" * 5000))}),
    "an output from nowhere": (
        "DamagedFile",
        {"m.onnx": model(graph(nodes=[], inputs=[value("x", [1])], outputs=[value("y", [1])]))},
    ),
    "graphs in graphs": ("DamagedFile", {"m.onnx": _deep()}),
    "two models": ("AmbiguousFormat", {"a.onnx": model(), "b.onnx": model()}),
    "a library's operation": ("CodeRefused", _weights(nodes=[node("Evil", ["x"], ["y"], domain="com.evil")])),
    "no inputs": (
        "UnsupportedVariant",
        {"m.onnx": model(graph(nodes=[node("Relu", ["w"], ["y"])], inputs=[], outputs=[value("y", [2])]))},
    ),
    "training info": ("UnsupportedVariant", {"m.onnx": model(tail=part(20, b""))}),
    "sparse weights": ("UnsupportedVariant", {"m.onnx": model(perceptron(tail=part(15, b"")))}),
    "a sparse constant": (
        "UnsupportedVariant",
        _weights(nodes=[node("Constant", [], ["y"], attributes=attribute("v", sparse=b""))]),
    ),
    "weights in segments": ("UnsupportedVariant", _weights(tensor("w1", [4, 8], tail=part(3, b"")))),
    "a map for an output": ("UnsupportedType", _weights(outputs=[part(1, "y") + part(2, part(5, b""))])),
    "complex inputs": ("UnsupportedType", _weights(inputs=[value("x", [1, 4], "COMPLEX64")])),
    "an unknown type": ("UnsupportedType", _weights(tensor("w1", [4, 8], "99"))),
    "weights that are not there": ("SizeMismatch", _weights(tensor("w1", [4, 8], data=b""))),
    "too few bytes": ("SizeMismatch", _weights(tensor("w1", [4, 8], data=bytes(127)))),
    "too many bytes": ("SizeMismatch", _weights(tensor("w1", [4, 8], data=bytes(129)))),
    "bytes in two places": ("SizeMismatch", _weights(tensor("w1", [4, 8], tail=part(4, bytes(128))))),
    "a shape below zero": ("SizeMismatch", _weights(tensor("w1", [-1, 8]))),
    "a shape that overflows": ("SizeMismatch", _weights(tensor("w1", [2**40, 2**40], data=b""))),
    "too few numbers": ("SizeMismatch", _weights(tensor("w1", [3], "INT64", data=b"", tail=part(7, b"\x01\x02")))),
    "a number cut in two": ("DamagedFile", _weights(tensor("w1", [1], "INT64", data=b"", tail=part(7, b"\x80")))),
    # weights in files of their own
    "data that is not here": ("MissingShard", _outside(data=None)),
    "data above the folder": ("UnsafePath", _outside(location="../m.onnx.data")),
    "data by an absolute name": ("UnsafePath", _outside(location="/etc/passwd")),
    "data with a backslash": ("UnsafePath", _outside(location="a\\m.onnx.data")),
    "data without a name": ("DamagedFile", _outside(location="")),
    "an offset that is no number": ("DamagedFile", _outside(offset="-1")),
    "an offset without measure": ("DamagedFile", _outside(offset="9" * 30)),
    "a length that lies": ("SizeMismatch", _outside(length=64)),
    "data that is cut off": ("SizeMismatch", _outside(bytes(191))),
    "data on other data": ("SizeMismatch", _outside(offset="100")),
    "data with a hole": ("SizeMismatch", _outside(bytes(200_000), offset="100000")),
    "data with bytes behind": ("SizeMismatch", _outside(bytes(192 + 65_536))),
    "data that nobody names": ("UnexpectedFile", {"m.onnx": model(), "m.onnx_data_1": b"x"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    reason, files = REFUSED[case]
    with pytest.raises(formats.Rejected) as refusal:
        _inspect(tmp_path, files)
    assert refusal.value.reason == reason, refusal.value.message
    assert refusal.value.message.endswith((".", ")"))
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize(
    ("nodes", "output"),
    [([node("Identity", ["x"], ["y"])], "y"), ([], "x"), ([], "w")],
    ids=["one node", "its input", "its weight"],
)
def test_a_graph_that_only_hands_on_is_described_as_it_is(tmp_path: Path, nodes: list[bytes], output: str) -> None:
    """It is valid, needs no weights, and computes nothing."""
    weights = [tensor("w", [4])] if output == "w" else []
    body = graph(nodes=nodes, inputs=[value("x", ["batch", 4])], outputs=[value(output, ["batch", 4])], tensors=weights)
    found = _inspect(tmp_path, {"m.onnx": model(body)})
    assert (found.nodes, found.parameters) == (len(nodes), 4 * len(weights))
    assert [port["name"] for port in (*found.inputs, *found.outputs)] == ["x", output]
    sized = estimate_graph(found.metadata(), configs.DEFAULTS)
    assert (sized.weights_bytes, sized.total_bytes > 0) == (16 * len(weights), True)


def test_every_cut_and_every_flipped_byte_has_an_answer(tmp_path: Path) -> None:
    """Whatever is broken, the check says so or reads on: no crash, no hang."""
    whole = model()
    broken = [whole[:end] for end in range(len(whole))]
    broken += [
        whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for at in range(len(whole)) for flip in (1, 128)
    ]
    answers = set()
    for data in broken:
        try:
            answers.add(type(_inspect(tmp_path, {"m.onnx": data})).__name__)
        except formats.Rejected as exc:
            answers.add(exc.reason.value)
    assert {"GraphFacts", "DamagedFile", "SizeMismatch"} <= answers


def test_what_a_model_is(tmp_path: Path) -> None:
    facts = _inspect(tmp_path, {"m.onnx": model(), "labels.txt": b"cat\ndog"})
    assert dataclasses.asdict(facts) == {
        "format": "onnx",
        "architecture": "Graph",
        "parameters": 48,
        "max_model_len": 0,
        "has_chat_template": False,
        "weight_types": {"F32": 192},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["batch", 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["batch", 2]}],
        "nodes": 3,
        "operator_sets": {"ai.onnx": 21},
        "ir_version": 10,
        "producer": "pytorch 2.13.0",
        "title": "tiny",
        "largest_weight_bytes": 128,
        "activation_terms": [[80, 1, 0]],  # 4 that came, 8 and 8 between
        "stated_shapes": 1.0,
        "warnings": (),
    }


def test_what_the_formats_own_library_wrote(tmp_path: Path) -> None:
    facts = _inspect(tmp_path, {"golden.onnx": GOLDEN})
    assert facts.weight_types == {"F32": 4 * 32 + 4 * 8 + 4 * 8, "F16": 16, "I4": 2, "STRING": 6, "BOOL": 1}
    assert facts.parameters == 32 + 8 + 8 + 8 + 3 + 2 + 1
    assert (facts.operator_sets, facts.nodes, facts.title) == ({"ai.onnx": 21, "local": 1}, 7, "golden")
    assert facts.inputs == [{"name": "x", "datatype": "FP32", "shape": ["batch", 4]}]


@pytest.mark.parametrize("path", ["m.onnx.data", "m.onnx_data", "M.ONNX_DATA_12"])
def test_weights_in_a_file_of_their_own(tmp_path: Path, path: str) -> None:
    files = _weights(
        tensor("w1", [4, 8], external={"location": path}),
        tensor("w2", [8, 2], external={"location": path, "offset": 4096, "length": 64}),
        tensor("w3", [8, 2], external={"location": path, "offset": 4096, "length": 64}),  # a tied weight
    )
    moved = {f"sub/{name}": data for name, data in files.items()} | {f"sub/{path}": bytes(4160)}
    assert _inspect(tmp_path, moved).weight_types == {"F32": 256}


def test_old_files_name_weights_among_the_inputs(tmp_path: Path) -> None:
    inputs = [value("x", [1, 4]), value("w1", [4, 8]), value("w2", [8, 2])]
    facts = _inspect(tmp_path, {"m.onnx": model(perceptron(inputs=inputs), ir_version=3)})
    assert [each["name"] for each in facts.inputs] == ["x"]


def test_shapes_that_are_not_said(tmp_path: Path) -> None:
    """A value without a shape counts like the largest that its node reads, and the file's reader is told."""
    facts = _inspect(tmp_path, {"m.onnx": model(perceptron(values=[], inputs=[value("x", ["n", "", 4])]))})
    assert facts.inputs[0]["shape"] == ["n", -1, 4]
    assert facts.activation_terms == [[48, 1, 1]]  # x, which its caller holds to the end, beside h and r
    assert facts.stated_shapes == pytest.approx(1 / 3, abs=0.001)
    assert [code for code, _text in facts.warnings] == ["FewShapesStated"]


def _peak(tmp_path: Path, nodes: list[bytes], values: list[bytes]) -> dict[tuple[int, int], int]:
    ends = {"inputs": [value("x", ["b", 10])], "outputs": [value("y", ["b", 10])]}
    place = tmp_path / "peak"
    place.write_bytes(model(graph(nodes=nodes, values=values, **ends)))
    return dict(activations(read_graph(formats.Source("m.onnx", place.stat().st_size, place))).terms)


def test_what_lives_at_the_same_time(tmp_path: Path) -> None:
    """x (40 bytes a row) is read once more at the end; a (400) and b (800) meet; c takes the place of a."""
    nodes = [
        node("Gemm", ["x"], ["a"]),
        node("Gemm", ["a"], ["b"]),
        node("Gemm", ["b"], ["c"]),
        node("Add", ["c", "x"], ["y"]),
    ]
    values = [value("a", ["b", 100]), value("b", ["b", 200]), value("c", ["b", 10])]
    assert _peak(tmp_path, nodes, values) == {(1, 0): 40 + 400 + 800}


def test_another_shape_of_the_same_value_costs_nothing(tmp_path: Path) -> None:
    """The view keeps what it shows alive."""
    nodes = [node("Gemm", ["x"], ["a"]), node("Reshape", ["a"], ["v"]), node("Gemm", ["v"], ["y"])]
    values = [value("a", ["b", 100]), value("v", ["b", 10, 10])]
    assert _peak(tmp_path, nodes, values) == {(1, 0): 40 + 400 + 40}


def _facts(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return dataclasses.asdict(_inspect(tmp_path, {"m.onnx": model(perceptron(**more))}))


def test_the_estimate_follows_batch_and_length(tmp_path: Path) -> None:
    rows = _facts(tmp_path, inputs=[value("ids", ["batch", "length"], "INT64")], values=[], nodes=[
        node("Gather", ["w1", "ids"], ["y"])], outputs=[value("y", ["batch", "length", 8])])  # fmt: skip
    terms = graphs.unpacked(rows["activation_terms"])
    assert terms == {(1, 1): 8 + 32}
    small, more = (configs.normalise({"max_num_seqs": n, "max_model_len": 1 << 20}) for n in (64, 128))
    little, much = (estimate_graph(rows, config, device_kind="cuda") for config in (small, more))
    assert much.workspace_bytes - little.workspace_bytes == 2 * 40 * 64 * (1 << 20)
    usual = configs.normalise({"max_num_seqs": 1024})
    assert estimate_graph(rows, usual).workspace_bytes == 2 * 40 * 1024 * graphs.DEFAULT_LENGTH + 64 * MIB


def test_the_estimate_of_a_vision_model_by_hand() -> None:
    """ResNet-50: 25.56 M weights in float32 are 97.5 MiB; the largest pair of values of a 224 x 224 picture is two of
    64 x 112 x 112 (He et al. 2015, table 1)."""
    header = {
        "weight_types": {"F32": 25_557_032 * 4},
        "largest_weight_bytes": 2048 * 1000 * 4,
        "activation_terms": [[2 * 64 * 112 * 112 * 4, 1, 0]],
    }
    got = estimate_graph(header, configs.normalise({"max_num_seqs": 16}), device_kind="cuda")
    assert got.weights_bytes / MIB == pytest.approx(97.49, abs=0.01)
    assert got.workspace_bytes == 2 * 16 * 6_422_528 + 256 * MIB
    assert got.kv_floor_bytes == got.kv_bytes_per_token == got.max_model_len == 0
    assert got.total_bytes < 2 * GIB
