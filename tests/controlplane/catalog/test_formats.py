"""What is accepted and what is refused, and for which reason. Every case is a few bytes made on the spot."""

import dataclasses
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from catalog import architectures, formats
from catalog.formats import ggufheader
from runtime.engine import architectures as engine_architectures
from tests.build.catalog import (
    TOKENIZER,
    gguf,
    gguf_string,
    huggingface,
    layer_shapes,
    safetensors_file,
    safetensors_header,
    weights,
)


def _inspect(folder: Path, files: Mapping[str, bytes]) -> formats.Facts:
    sources = []
    for number, (path, data) in enumerate(files.items()):
        location = folder / str(number)
        location.write_bytes(data)
        sources.append(formats.Source(path, len(data), location))
    return formats.inspect(sources)


def _zip(name: str = "data.pkl") -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"x")
    return out.getvalue()


def _header(change: Any = None, *, data: int | None = None, **replace: Any) -> bytes:
    """Weights whose header is changed after it was right."""
    header = safetensors_header(layer_shapes())
    size = max(entry["data_offsets"][1] for entry in header.values())
    header |= replace
    if change is not None:
        change(header)
    return safetensors_file(header, size if data is None else data)


EMBED = "model.embed_tokens.weight"
EMPTY_ENTRY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'


def _entry(dtype: str, shape: list[Any], offsets: list[int]) -> bytes:
    """Weights whose embedding is entered like this."""
    return _header(**{EMBED: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def _shift(header: dict[str, Any]) -> None:
    begin, end = header[EMBED]["data_offsets"]
    header[EMBED]["data_offsets"] = [begin + 8, end + 8]


def _negative(header: dict[str, Any]) -> None:
    header[EMBED]["data_offsets"] = [-192, 0]


def _deep(depth: int = 100_000) -> bytes:
    return b"[" * depth + b"]" * depth


def _shards(**change: Any) -> dict[str, bytes]:
    shapes = layer_shapes()
    names = list(shapes)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    index = {name: path for path, held in parts.items() for name in held}
    files = {path: weights({name: shapes[name] for name in held}) for path, held in parts.items()}
    index |= change.get("index", {})
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": index}).encode()
    for path in change.get("without", ()):
        del files[path]
    files |= change.get("extra", {})
    return {**huggingface(model__safetensors=None), **files}


def _code_file(**values: Any) -> bytes:
    return json.dumps(values).encode()


def _fact_twice() -> bytes:
    """A file whose last fact hides a second ``general.name`` behind it."""
    truth = struct.pack("<IB", 7, 1)
    data = gguf({"x": truth + gguf_string("general.name") + truth})
    counts = struct.unpack_from("<QQ", data, 8)
    return data[:8] + struct.pack("<QQ", counts[0], counts[1] + 1) + data[24:]


REFUSED: dict[str, tuple[str, dict[str, bytes]]] = {
    # what is no model at all
    "nothing": ("UnknownFormat", {"README.md": b"hello"}),
    "both formats": ("AmbiguousFormat", {"a.gguf": gguf(), "model.safetensors": weights()}),
    # names
    "a traversal name": ("UnsafePath", {**huggingface(), "../config.json": b"{}"}),
    "an absolute name": ("UnsafePath", {**huggingface(), "/etc/passwd.txt": b"x"}),
    "a backslash": ("UnsafePath", {**huggingface(), "a\\..\\b.txt": b"x"}),
    "a control character": ("UnsafePath", {**huggingface(), "a\x00.txt": b"x"}),
    "a name turned around": ("UnsafePath", {**huggingface(), "a\u202etxt.json": b"x"}),
    "a look-alike slash": ("UnsafePath", {**huggingface(), "a\uff0f..\uff0fb.txt": b"x"}),
    "a drive": ("UnsafePath", {**huggingface(), "C:x.txt": b"x"}),
    "an empty part": ("UnsafePath", {**huggingface(), "a//b.txt": b"x"}),
    "a deep name": ("UnsafePath", {**huggingface(), "a/b/c/d/e.txt": b"x"}),
    "the same name twice": ("DuplicatePath", {**huggingface(), "Config.json": b"{}"}),
    "a file that is a folder": ("DuplicatePath", {**huggingface(), "config.json/a.txt": b"{}"}),
    # what could run
    "a pickle by name": ("PickleRefused", {**huggingface(), "pytorch_model.bin": b"x"}),
    "a torch file": ("PickleRefused", {**huggingface(), "model.pt": b"x"}),
    "a joblib file": ("PickleRefused", {**huggingface(), "pipeline.joblib": b"x"}),
    "a hidden pickle": ("PickleRefused", {**huggingface(), "vocab.txt": pickle.dumps({"a": 1})}),
    "a hidden old pickle": ("PickleRefused", {**huggingface(), "vocab.txt": b"cos\nsystem\n(S'id'\ntR."}),
    "a hidden protocol-0 pickle": ("PickleRefused", {**huggingface(), "vocab.txt": pickle.dumps({"a": 1}, 0)}),
    "an archive by name": ("ArchiveRefused", {**huggingface(), "weights.tar.gz": b"x"}),
    "a hidden archive": ("ArchiveRefused", {**huggingface(), "notes.md": _zip()}),
    "a hidden gzip": ("ArchiveRefused", {**huggingface(), "notes.md": b"\x1f\x8b\x08\x00"}),
    "program code": ("CodeRefused", {**huggingface(), "modeling_llama.py": b"import os"}),
    "a hidden program": ("CodeRefused", {**huggingface(), "notes.md": b"\x7fELF\x02\x01"}),
    "binary text": ("UnexpectedFile", {**huggingface(), "notes.md": b"a\x00b"}),
    "another kind": ("UnexpectedFile", {**huggingface(), "model.tflite": b"x"}),
    "a folder with an ONNX file": ("AmbiguousFormat", {**huggingface(), "onnx/model.onnx": b"x"}),
    "remote code": ("RemoteCodeRefused", huggingface({"auto_map": {"AutoModel": "modeling.Model"}})),
    "remote tokenizer code": (
        "RemoteCodeRefused",
        huggingface(tokenizer_config__json=_code_file(auto_map={"AutoTokenizer": ["t.T", None]})),
    ),
    # config
    "no config": ("MissingConfig", huggingface(config__json=None)),
    "a config that is no JSON": ("DamagedFile", huggingface(config__json=b"{")),
    "a config that is a list": ("DamagedFile", huggingface(config__json=b"[]")),
    "a config that is too deep": ("DamagedFile", huggingface(config__json=_deep())),
    "an unknown architecture": ("UnsupportedArchitecture", huggingface({"architectures": ["BloomForCausalLM"]})),
    "no architecture": ("UnsupportedArchitecture", huggingface({"architectures": None})),
    "quantized weights": ("UnsupportedQuantization", huggingface({"quantization_config": {"quant_method": "awq"}})),
    "another activation": ("UnsupportedActivation", huggingface({"hidden_act": "relu2"})),
    "an activation that is no name": ("UnsupportedActivation", huggingface({"hidden_act": ["silu"]})),
    "another rotary embedding": ("UnsupportedRope", huggingface({"rope_scaling": {"type": "longrope"}})),
    "a switch nobody serves": ("UnsupportedVariant", huggingface({"use_bidirectional_attention": True})),
    "longrope by layer": (
        "UnsupportedRope",
        huggingface({"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {}}}),
    ),
    "more experts a token than there are": (
        "DamagedFile",
        huggingface({"architectures": ["MixtralForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 3}),
    ),
    "a missing number": ("DamagedFile", huggingface({"num_hidden_layers": None})),
    "a negative number": ("DamagedFile", huggingface({"num_hidden_layers": -1})),
    "an absurd number": ("DamagedFile", huggingface({"num_hidden_layers": 10**9})),
    "a text for a number": ("DamagedFile", huggingface({"hidden_size": "8"})),
    "heads that do not divide": ("DamagedFile", huggingface({"num_attention_heads": 3, "num_key_value_heads": 2})),
    # tokenizer
    "no tokenizer": ("MissingTokenizer", huggingface(tokenizer__json=None)),
    "a tokenizer that is cut off": (
        "MissingTokenizer",
        huggingface(tokenizer__json=json.dumps(TOKENIZER).encode()[:-9]),
    ),
    "a tokenizer without vocabulary": ("MissingTokenizer", huggingface(tokenizer__json=b'{"model": {"type": "BPE"}}')),
    "a tokenizer that is too deep": ("MissingTokenizer", huggingface(tokenizer__json=b'{"model":' + _deep() + b"}")),
    # weights
    "no weights": ("MissingWeights", huggingface(model__safetensors=None)),
    "empty weights": ("DamagedFile", huggingface(model__safetensors=b"")),
    "weights without the last byte": ("SizeMismatch", huggingface(model__safetensors=weights()[:-1])),
    "weights without the first bytes": ("SizeMismatch", huggingface(model__safetensors=weights()[8:])),
    "weights with bytes behind": ("SizeMismatch", huggingface(model__safetensors=weights() + b"x")),
    "a huge header length": ("SizeMismatch", huggingface(model__safetensors=b"\xff" * 8 + b"{}")),
    "a header that is no JSON": ("DamagedFile", huggingface(model__safetensors=safetensors_file(b"{nope", 0))),
    "a header that is a list": ("DamagedFile", huggingface(model__safetensors=safetensors_file(b"[]", 0))),
    "a header that is too deep": (
        "DamagedFile",
        huggingface(model__safetensors=safetensors_file(b'{"a":' + _deep(), 0)),
    ),
    "a tensor twice": (
        "DamagedFile",
        huggingface(model__safetensors=safetensors_file(b'{"a": ' + EMPTY_ENTRY + b', "a": 1}', 0)),
    ),
    "a hole": ("SizeMismatch", huggingface(model__safetensors=_header(_shift, data=4000))),
    "an overlap": (
        "SizeMismatch",
        huggingface(model__safetensors=_entry("BF16", [12, 8], [8, 200])),
    ),
    "offsets below zero": ("DamagedFile", huggingface(model__safetensors=_header(_negative))),
    "a shape that lies": (
        "SizeMismatch",
        huggingface(model__safetensors=_entry("BF16", [13, 8], [0, 192])),
    ),
    "a shape that overflows": (
        "SizeMismatch",
        huggingface(model__safetensors=_entry("BF16", [2**63, 2**63], [0, 192])),
    ),
    "a shape that is truth": (
        "DamagedFile",
        huggingface(model__safetensors=_entry("BF16", [True], [0, 2])),
    ),
    "an unknown type": (
        "UnsupportedType",
        huggingface(model__safetensors=_entry("Q9", [12, 8], [0, 192])),
    ),
    "a missing tensor": ("MissingTensor", huggingface({"num_hidden_layers": 3})),
    "an untied model without head": ("MissingTensor", huggingface({"tie_word_embeddings": False})),
    "a shape that the config does not say": ("ShapeMismatch", huggingface({"vocab_size": 13})),
    "a missing bias": ("MissingTensor", huggingface({"architectures": ["Qwen2ForCausalLM"]})),
    "a missing norm": ("MissingTensor", huggingface({"architectures": ["Qwen3ForCausalLM"]})),
    # shards
    "a missing shard": ("MissingShard", _shards(without=["model-2.safetensors"])),
    "no index": ("MissingShard", _shards(without=["model.safetensors.index.json"])),
    "a shard of another export": ("DamagedFile", _shards(index={EMBED: "model-2.safetensors"})),
    "a tensor that no shard has": ("MissingTensor", _shards(index={"ghost": "model-2.safetensors"})),
    "a shard outside": ("MissingShard", _shards(index={"ghost": "../../etc/passwd"})),
    "weights that no index names": ("UnexpectedFile", _shards(extra={"consolidated.safetensors": weights()})),
    "an index without a map": ("DamagedFile", _shards(extra={"model.safetensors.index.json": b"{}"})),
    # GGUF
    "two GGUF files": ("SplitGguf", {"a.gguf": gguf(), "b.gguf": gguf()}),
    "a part of a split": ("SplitGguf", {"a.gguf": gguf({"split.count": 2})}),
    "a safetensors file named gguf": ("DamagedFile", {"a.gguf": weights()}),
    "an empty GGUF file": ("SizeMismatch", {"a.gguf": b""}),
    "GGUF of version 1": ("UnsupportedType", {"a.gguf": gguf(version=1)}),
    "a big-endian GGUF": ("UnsupportedType", {"a.gguf": gguf(version=3 << 24)}),
    "counts that lie": ("SizeMismatch", {"a.gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63)}),
    "a GGUF cut in its header": ("SizeMismatch", {"a.gguf": gguf()[:200]}),
    "a GGUF cut in its weights": ("SizeMismatch", {"a.gguf": gguf(tail=-33)}),
    "a GGUF with bytes behind": ("SizeMismatch", {"a.gguf": gguf(tail=100)}),
    "a text that lies about its length": ("SizeMismatch", {"a.gguf": gguf({"x": struct.pack("<IQ", 8, 2**62)})}),
    "an array that lies": ("SizeMismatch", {"a.gguf": gguf({"x": struct.pack("<IIQ", 9, 4, 2**40)})}),
    "an array of arrays": ("DamagedFile", {"a.gguf": gguf({"x": struct.pack("<IIQ", 9, 9, 1)})}),
    "an unknown fact type": ("DamagedFile", {"a.gguf": gguf({"x": struct.pack("<I", 99)})}),
    "a fact twice": ("DamagedFile", {"a.gguf": _fact_twice()}),
    "an alignment of zero": ("DamagedFile", {"a.gguf": gguf({"general.alignment": 0})}),
    "a tensor on another one": ("SizeMismatch", {"a.gguf": gguf(offsets={"output_norm.weight": 0})}),
    "a tensor far outside": ("SizeMismatch", {"a.gguf": gguf(offsets={"blk.0.ffn_down.weight": 2**62})}),
    "a tensor of no elements": ("SizeMismatch", {"a.gguf": gguf(tensors={"output_norm.weight": ([0], 0, 0)})}),
    "a tensor of an unknown type": (
        "UnsupportedType",
        {"a.gguf": gguf(tensors={"output_norm.weight": ([32], 77, 128)})},
    ),
    "rows that do not fill blocks": ("DamagedFile", {"a.gguf": gguf(tensors={"output_norm.weight": ([31], 8, 34)})}),
    "five dimensions": ("DamagedFile", {"a.gguf": gguf(tensors={"output_norm.weight": ([1, 1, 1, 1, 32], 0, 128)})}),
    "a GGUF of another architecture": ("UnsupportedArchitecture", {"a.gguf": gguf({"general.architecture": "bert"})}),
    "a mixture of experts": ("UnsupportedArchitecture", {"a.gguf": gguf({"llama.expert_count": 8})}),
    "a GGUF with rotary scaling": ("UnsupportedRope", {"a.gguf": gguf({"llama.rope.scaling.type": "yarn"})}),
    "a GGUF without tokenizer": ("MissingTokenizer", {"a.gguf": gguf({"tokenizer.ggml.tokens": None})}),
    "a GGUF without merges": ("MissingTokenizer", {"a.gguf": gguf({"tokenizer.ggml.merges": None})}),
    "a GGUF with another tokenizer": ("UnsupportedTokenizer", {"a.gguf": gguf({"tokenizer.ggml.model": "rwkv"})}),
    "more tokens than embeddings": ("ShapeMismatch", {"a.gguf": gguf({"tokenizer.ggml.tokens": list("abcdef")})}),
    "a GGUF without a tensor": ("MissingTensor", {"a.gguf": gguf(tensors={"blk.0.ffn_up.weight": None})}),
    "a GGUF without embedding": ("MissingTensor", {"a.gguf": gguf(tensors={"token_embd.weight": None})}),
    "a GGUF with fewer layers": ("MissingTensor", {"a.gguf": gguf({"llama.block_count": 2})}),
    "a GGUF of other sizes": ("ShapeMismatch", {"a.gguf": gguf({"llama.feed_forward_length": 128})}),
    "a GGUF without sizes": ("DamagedFile", {"a.gguf": gguf({"llama.context_length": None})}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    reason, files = REFUSED[case]
    with pytest.raises(formats.Rejected) as refusal:
        _inspect(tmp_path, files)
    assert refusal.value.reason == reason, refusal.value.message
    assert refusal.value.message[-1] in ".)"
    assert len(refusal.value.message) < 600


def test_a_folder_is_described(tmp_path: Path) -> None:
    facts = _inspect(tmp_path, {**huggingface(), "README.md": b"# hi", "LICENSE": b"text", "merges.txt": b"#version"})
    assert dataclasses.asdict(facts) | {"warnings": ()} == {
        "format": "huggingface",
        "architecture": "LlamaForCausalLM",
        "parameters": 1288,
        "max_model_len": 128,
        "has_chat_template": True,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "hidden_size": 8,
        "intermediate_size": 16,
        "vocab_size": 12,
        "tie_word_embeddings": True,
        "weight_types": {"BF16": 2576},
        "tokenizer": "BPE",
        "rope": "default",
        "sparse_layers": 0,
        "num_experts": 0,
        "experts_per_token": 0,
        "expert_size": 0,
        "capped_scores": False,
        "title": "",
        "license": "",
        "warnings": (),
    }


def test_shards_are_read_together(tmp_path: Path) -> None:
    assert _inspect(tmp_path, _shards()).parameters == 1288


def test_a_gguf_file_is_described(tmp_path: Path) -> None:
    facts = _inspect(tmp_path, {"tiny.gguf": gguf(), "README.md": b"x"})
    assert (facts.format, facts.architecture, facts.tokenizer, facts.title) == (
        "gguf",
        "LlamaForCausalLM",
        "gpt2",
        "tiny",
    )
    assert (facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.vocab_size) == (1, 2, 1, 16, 4)
    assert facts.weight_types == {"Q8_0": 136, "F32": 384, "Q4_1": 5760}
    assert facts.tie_word_embeddings


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(huggingface(tokenizer_config__json=b"{}"), id="folder"),
        pytest.param(huggingface(tokenizer_config__json=b'{"chat_template": []}'), id="folder with an empty list"),
        pytest.param({"a.gguf": gguf({"tokenizer.chat_template": None})}, id="gguf"),
    ],
)
def test_a_missing_chat_template_is_accepted_with_a_warning_that_says_what_it_means(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    facts = _inspect(tmp_path, files)
    assert not facts.has_chat_template
    ((code, message),) = facts.warnings
    assert code == "MissingChatTemplate"
    assert "chat calls will be refused" in message


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"tokenizer_config__json": b'{"chat_template": "x"}'}, id="in the tokenizer's config"),
        pytest.param(
            {"tokenizer_config__json": b'{"chat_template": [{"name": "default", "template": "x"}]}'}, id="by name"
        ),
        pytest.param({"tokenizer_config__json": None, "chat_template__jinja": b"x"}, id="in a file"),
        pytest.param({"tokenizer_config__json": None, "chat_template__json": b'{"chat_template": "x"}'}, id="in JSON"),
    ],
)
def test_a_chat_template_is_found(tmp_path: Path, template: dict[str, bytes | None]) -> None:
    assert _inspect(tmp_path, huggingface(**template)).has_chat_template


def test_a_header_length_that_looks_like_a_pickle_is_no_pickle(tmp_path: Path) -> None:
    header = safetensors_header(layer_shapes())
    size = max(entry["data_offsets"][1] for entry in header.values())
    text = json.dumps(header).encode()
    padded = text + b" " * (0x0480 + 0x1000 - len(text))
    files = huggingface(model__safetensors=safetensors_file(padded, size))
    assert files["model.safetensors"][:1] == b"\x80"
    assert _inspect(tmp_path, files).parameters == 1288


def test_the_lists_are_those_of_the_engine() -> None:
    ours = {(entry.name, entry.gguf, entry.qk_norm, entry.qkv_bias) for entry in architectures.ARCHITECTURES}
    theirs = {(entry.name, entry.gguf, entry.qk_norm, entry.qkv_bias) for entry in engine_architectures.ARCHITECTURES}
    assert ours == theirs
    assert architectures.ROPE_TYPES == engine_architectures.ROPE_TYPES


def test_storage_types_are_those_of_the_gguf_library() -> None:
    import gguf as library

    for code, (name, block, width) in ggufheader.TYPES.items():
        kind = library.GGMLQuantizationType(code)
        assert (kind.name, library.GGML_QUANT_SIZES[kind]) == (name, (block, width))


@pytest.mark.parametrize("name", ["tiny.gguf", "model.safetensors"])
def test_damage_of_any_kind_is_a_refusal_and_never_an_accident(tmp_path: Path, name: str) -> None:
    whole = {"tiny.gguf": gguf()} if name == "tiny.gguf" else huggingface()
    dice = random.Random(7)
    verdicts = set()
    for _ in range(1500):
        data = bytearray(whole[name])
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(min(len(data), 2500))
            data[at] = dice.choice([0, 0xFF, 0x7F, 0x80, dice.randrange(256)])
        if dice.random() < 0.2:
            del data[dice.randrange(len(data)) :]
        try:
            _inspect(tmp_path, {**whole, name: bytes(data)})
            verdicts.add("accepted")  # the damage was in the weights, or in a text
        except formats.Rejected as refusal:
            verdicts.add(refusal.reason.value)
    assert {"accepted", "DamagedFile", "SizeMismatch"} <= verdicts


def test_latent_attention_is_refused_by_name(tmp_path: Path) -> None:
    files = huggingface({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    with pytest.raises(formats.Rejected) as refused:
        _inspect(tmp_path, files)
    assert refused.value.reason == "UnsupportedArchitecture"
    assert str(refused.value).startswith(
        "The architecture DeepseekV3ForCausalLM is not served here: it keeps keys and values compressed (multi-head "
        "latent attention), which no engine here computes. Served are: "
    )
