"""Model files that are damaged, incomplete or of another kind: a typed reason, and never a byte outside the file."""

import json
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.engine import architectures, errors
from runtime.engine.causal import loader, probes, storages
from runtime.engine.formats.gguf_file import GgufFile
from runtime.engine.formats.kinds import guess_format
from runtime.engine.formats.opening import open_model
from tests.build.models import tiny_gguf, tiny_llama

pytestmark = pytest.mark.engine


def start(path: Path, kind: str = "huggingface") -> None:
    """Open and load, as a starting engine does."""
    source = open_model(path, kind)
    loader.load(source, dtype=torch.float32, device=torch.device("cpu"), progress=lambda _share: None)


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    for path in llama_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def refused(path: Path, kind: str = "huggingface") -> errors.StartError:
    with pytest.raises(errors.StartError) as caught:
        start(path, kind)
    return caught.value


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"architectures": ["BloomForCausalLM"]}, "UnsupportedArchitecture", id="architecture"),
        pytest.param({"hidden_act": "relu2"}, "UnsupportedActivation", id="activation"),
        pytest.param({"use_bidirectional_attention": True}, "UnsupportedModel", id="switch"),
        pytest.param({"num_hidden_layers": 3}, "DamagedModel", id="missing layer"),
        pytest.param({"num_hidden_layers": 1}, "UnsupportedModel", id="one layer too many"),
        pytest.param({"intermediate_size": 96}, "DamagedModel", id="shape"),
        pytest.param(
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "UnsupportedRope",
            id="rope",
        ),
    ],
)
def test_configs_that_do_not_fit(folder: Path, fields: dict[str, object], reason: str) -> None:
    edit_config(folder, **fields)
    assert refused(folder).reason == reason


def test_incomplete_folders(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1000])
    assert refused(folder).reason == "DamagedModel"
    weights.unlink()
    assert refused(folder).reason == "MissingWeights"
    weights.write_bytes(data)
    (folder / "config.json").write_text("{")
    assert refused(folder).reason == "DamagedModel"
    assert refused(folder / "nowhere").reason == "ModelNotFound"


def test_a_weight_index_that_leaves_the_folder(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))
    assert refused(folder).reason == "DamagedModel"


def test_shards_are_read_through_their_index(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for name, part in shards.items():
        save_file({key: tensors[key] for key in part}, folder / name)
    (folder / "model.safetensors").unlink()
    weight_map = {key: name for name, part in shards.items() for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    start(folder)


def test_weights_are_counted_to_the_byte(llama_folder: Path) -> None:
    source = open_model(llama_folder, "huggingface")
    model = loader.load(source, dtype=torch.float32, device=torch.device("cpu"), progress=lambda _share: None)
    tensors = load_file(llama_folder / "model.safetensors")
    assert model.weights_bytes == sum(tensor.numel() * 4 for tensor in tensors.values())


def test_progress_rises_to_one(llama_folder: Path) -> None:
    shares: list[float] = []
    source = open_model(llama_folder, "huggingface")
    loader.load(source, dtype=torch.float32, device=torch.device("cpu"), progress=shares.append)
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0


def test_guessing_formats(llama_folder: Path, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    assert guess_format(path) == "gguf"
    assert guess_format(llama_folder) == "huggingface"
    with pytest.raises(errors.StartError):
        guess_format(tmp_path)


def test_every_piece_of_a_large_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = GgufFile(tiny_gguf(tmp_path / "m.gguf"))
    tensor = opened.tensors["token_embd.weight"]
    whole = opened.read(tensor)
    monkeypatch.setattr("runtime.engine.formats.gguf_file._PIECE_VALUES", 64 * 7)
    pieces = opened.pieces(tensor)
    assert len(pieces) > 10
    assert np.array_equal(np.concatenate([opened.read(tensor, *piece) for piece in pieces]), whole)


def test_gguf_layers_come_one_after_another_in_pieces_of_whole_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    whole = {piece.name: piece.data for piece in open_model(path, "gguf").pieces()}
    monkeypatch.setattr("runtime.engine.formats.gguf_file._PIECE_VALUES", 64)
    read_table = GgufFile._read_table

    def backwards(opened: GgufFile, count: int) -> None:
        read_table(opened, count)
        opened.tensors = dict(reversed(opened.tensors.items()))

    monkeypatch.setattr(GgufFile, "_read_table", backwards)
    pieces = list(open_model(path, "gguf").pieces())
    layers = [int(piece.name.split(".")[2]) if ".layers." in piece.name else -1 for piece in pieces]
    assert layers == sorted(layers)
    query = "model.layers.0.self_attn.q_proj.weight"
    assert [piece.row for piece in pieces if piece.name == query] == [0, 16, 32, 48]
    for name, values in whole.items():
        assert torch.equal(torch.cat([piece.data for piece in pieces if piece.name == name]), values)


def test_what_weights_came_in_goes_back_to_the_system() -> None:
    probe = probes.HostProbe()
    cpu, size = torch.device("cpu"), 4 << 20
    staged = [storages.staging((size // 4,), torch.float32, cpu).fill_(1.0) for _ in range(16)]
    kept = staged[1::2]
    held = probe.held_bytes()
    del staged
    assert held - probe.held_bytes() >= 7 * size  # and not only what lies at the end of the heap
    assert all(bool((one == 1.0).all()) for one in kept)


def test_plain_and_half_tensors(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    writer.add_tensor(
        "bf16", gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = GgufFile(path)
    for name in ("f32", "f16", "bf16"):
        assert np.array_equal(opened.read(opened.tensors[name]), values)


def test_damaged_gguf_files_are_refused(tmp_path: Path) -> None:
    good = tiny_gguf(tmp_path / "good.gguf").read_bytes()
    bad = tmp_path / "bad.gguf"
    rng = random.Random(0)
    cases = [good[:size] for size in (0, 3, 4, 20, 100, 5000, len(good) - 1)]
    cases.append(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1))
    cases.append(b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60))
    cases.append(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63))
    cases.append(b"GGUF" + struct.pack("<IQQ", 99, 0, 0))
    for _ in range(40):
        broken = bytearray(good)
        for _ in range(4):
            broken[rng.randrange(4, 9000)] = rng.randrange(256)
        cases.append(bytes(broken))
    for data in cases[:11]:
        bad.write_bytes(data)
        refused(bad, "gguf")
    for data in cases[11:]:  # some of these still are models, as wrong letters are: they load, or say why not
        bad.write_bytes(data)
        try:
            start(bad, "gguf")
        except errors.StartError:
            continue


def test_a_file_that_has_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_list", lambda *_args: None)
    assert refused(tiny_gguf(tmp_path / "m.gguf"), "gguf").reason == "MissingTokenizer"


def test_the_list_of_architectures_is_consistent(tmp_path: Path) -> None:
    assert len(architectures.HUGGINGFACE_NAMES) == len(architectures.ARCHITECTURES)
    assert architectures.by_name("LlamaForCausalLM") is architectures.by_gguf("llama")
    assert architectures.by_name("Nothing") is None
    for entry in architectures.ARCHITECTURES:
        start(tiny_llama(tmp_path / entry.name, architecture=entry.name))
