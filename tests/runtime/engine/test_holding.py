"""Weights, keys and values in fewer bits: they take what the catalog computes, and what they cost is bounded."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from catalog import configs, holding, outline
from catalog.estimate import estimate_shape
from catalog.estimate import shape_of as shape_of_version
from catalog.formats import decoder as catalog_decoder
from catalog.formats import huggingface
from runtime.base.clock import SystemClock
from runtime.engine import errors
from runtime.engine.causal import attention, measure, precision, quantized, startup
from runtime.engine.causal.quantized import Int4WeightOnly
from runtime.engine.formats import gguf_model
from runtime.engine.formats.opening import open_model
from runtime.engine.settings import KV_DTYPES, QUANTIZATIONS
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec
from tests.build.engines import DEFAULT_SPEC, LocalEngine
from tests.build.models import ARCHITECTURES, tiny_gguf, tiny_llama
from tests.build.quantized import held, logits_of, perplexity

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
# Perplexity over that of the exact model, on text that the exact model drew: at most so much.
LOSSES = {"int8": 1.02, "int8_weight_only": 1.02, "int4_weight_only": 1.25, "fp8": 1.1}


def shape_of(folder: Path) -> holding.Shape:
    """The shape that the catalog reads of the model in ``folder``, its weights counted tensor by tensor."""
    config = json.loads((folder / "config.json").read_bytes())
    tensors = catalog_decoder.huggingface_tensors(huggingface.read_decoder(config))
    found = outline.read(config)
    assert (found.served, found.parameters) == (True, sum(math.prod(shape) for _name, shape in tensors))
    return found.shape


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("holding")
    return {name: tiny_llama(root / name, architecture=name) for name in ARCHITECTURES}


def drawn(path: Path, count: int = 160) -> list[int]:
    """Text that the exact model itself would write: drawn at temperature 1, 32 tokens of it known at a time."""
    model = held(path)
    rng = torch.Generator().manual_seed(5)
    tokens = [1]
    while len(tokens) < count:
        last = logits_of(model, tokens[-32:])[-1]
        tokens.append(int(torch.multinomial(torch.softmax(last, -1), 1, generator=rng)))
    return tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_take_what_the_catalog_computes(architecture: str, folders: dict[str, Path]) -> None:
    shape = shape_of(folders[architecture])
    for dtype in (torch.float32, torch.bfloat16):
        for quantization in QUANTIZATIONS:
            got = held(folders[architecture], quantization, dtype=dtype).weights_bytes
            want = holding.weights_bytes(shape, dtype.itemsize, quantization, kernels=dtype == torch.float32)
            # without kernels on this machine int8 has no sums; with them full precision rounds up to whole panels
            assert want == pytest.approx(got, rel=0.06), (dtype, quantization)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel", "Qwen3MoeForCausalLM"])
def test_the_loss_of_each_way_is_bounded(architecture: str, folders: dict[str, Path]) -> None:
    path = folders[architecture]
    text = drawn(path)
    exact = perplexity(held(path), text)
    for quantization, most in LOSSES.items():
        assert perplexity(held(path, quantization), text) < exact * most, quantization
    for kv, most in (("int8", 1.01), ("fp8", 1.05)):
        assert perplexity(held(path, kv=kv), text) == pytest.approx(exact, rel=most - 1), kv


def test_a_gguf_file_is_read_into_fewer_bits(tmp_path: Path) -> None:
    path, tokens = tiny_gguf(tmp_path / "tiny.gguf"), list(range(3, 60))
    exact = held(path, kind="gguf")
    small = held(path, "int8_weight_only", dtype=torch.bfloat16, kv="int8", kind="gguf")
    assert small.weights_bytes < exact.weights_bytes / 3.5
    off = (logits_of(small, tokens) - logits_of(exact, tokens)).abs().mean() / logits_of(exact, tokens).std()
    assert 0 < off < 0.1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_comes_in_blocks_of_four_bits_loses_nothing_more(kind: str, dtype: torch.dtype) -> None:
    """Blocks of a GGUF file are counted in as they were, and the product reads them so."""
    numbers = np.random.default_rng(3).normal(0, 0.1, (48, 128)).astype(np.float32)
    numbers[5, :32] = 0.0
    held_as = gguf.GGMLQuantizationType[kind]
    weight = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(numbers, held_as), held_as)).to(dtype)
    linear = Int4WeightOnly(weight, most_group=32)
    x = torch.eye(128, dtype=dtype)
    torch.testing.assert_close(linear(x).t(), weight, rtol=1e-3, atol=2e-4)
    far = (Int4WeightOnly(weight)(x).t().float() - weight.float()).abs().max()
    assert far > 2e-3, "groups of 64 are other groups"
    assert linear.num_bytes == 48 * 64 + 48 * 4 * 2 * dtype.itemsize


def test_groups_of_four_bits_are_the_files_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    assert open_model(path, "gguf").int4_group == 64, "less than half of it is in 4 bits"
    assert holding.int4_group({"Q4_1": 33, "Q8_0": 43, "F32": 1}) == 64
    assert holding.int4_group({"Q4_K": 60, "Q6_K": 20, "F32": 1}) == 32
    monkeypatch.setattr(gguf_model, "_FOUR_BITS", ("Q4_1", "Q8_0"))
    small = held(path, "int4_weight_only", kind="gguf")
    facts = {"weight_types": {"Q4_1": 9}, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden_size": 64}
    facts |= {"intermediate_size": 128, "vocab_size": 320}
    parameters = 320 * 64 + 2 * (64 * 64 * 2 + 32 * 64 * 2 + 3 * 64 * 128 + 2 * 64) + 64
    version = SimpleNamespace(metadata=facts, parameters=parameters, architecture="LlamaForCausalLM")
    assert shape_of_version(version).int4_group == 32  # type: ignore[arg-type]
    want = holding.weights_bytes(shape_of_version(version), 4, "int4_weight_only")  # type: ignore[arg-type]
    assert want == pytest.approx(small.weights_bytes, rel=0.01)


def test_weights_are_brought_back_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(80, 64), torch.randn(5, 64)
    for kind in (quantized.Int8WeightOnly, Int4WeightOnly):
        whole = kind(weight)
        monkeypatch.setattr(quantized, "_PART", 64 * 7)
        parts = kind(weight)
        torch.testing.assert_close(parts(x), whole(x), rtol=1e-5, atol=1e-5)
        assert parts.num_bytes == whole.num_bytes
        monkeypatch.undo()


def test_fewer_bits_are_really_computed_with(folders: dict[str, Path]) -> None:
    path, tokens = folders["LlamaForCausalLM"], list(range(3, 60))
    exact = logits_of(held(path), tokens)
    seen = [logits_of(held(path, name), tokens) for name in QUANTIZATIONS[1:]]
    seen += [logits_of(held(path, kv=name), tokens) for name in KV_DTYPES[1:]]
    for index, one in enumerate(seen):
        assert not torch.equal(one, exact)
        assert not any(torch.equal(one, other) for other in seen[:index])


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_a_quantized_cache_keeps_each_head_to_itself(kv: str) -> None:
    """One wild value costs its own token and head precision, and nobody else."""
    form = attention.KvForm(kv, torch.float32)
    cache = attention.KvCache(layers=2, kv_heads=3, slots=32, head_dim=16, form=form, device=CPU)
    assert cache.num_bytes == 32 * 2 * 2 * 3 * (16 + 4)
    slots = torch.arange(4, 10)
    keys, values = torch.randn(6, 3, 16), torch.randn(6, 3, 16)
    keys[2, 1, 5] = 1e6
    cache.write(1, slots, keys, values)
    got_keys, got_values = cache.read(1, slots)
    near = {"int8": 0.5 / 127 * 1.01, "fp8": 0.04}[kv]
    for got, want in ((got_keys, keys), (got_values, values)):
        scale = want.abs().amax(-1, keepdim=True)
        assert ((got.transpose(0, 1) - want).abs() <= near * scale).all()
    assert not cache.read(0, slots)[0].any(), "another layer"
    cache.scrub(slots)
    assert not cache.read(1, slots)[0].any()
    cache.write(1, slots, keys * float("nan"), values)
    assert cache.read(1, slots)[0].isnan().all(), "what is broken stays visible"
    assert cache.give_back([1], 16) >= 0


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "GPT2LMHeadModel", "Qwen3MoeForCausalLM"])
def test_batch_mates_and_known_prefixes_change_nothing(architecture: str, folders: dict[str, Path]) -> None:
    """Several at once, in chunks, finding each other's prefixes, as one by one."""
    prompts = [list(range(5, 5 + length)) for length in (3, 17, 29, 40)]
    alone = []
    for prompt in prompts:
        engine = LocalEngine(folders[architecture], prefix_cache=False)
        alone.append(engine.generate(prompt, 12))
        engine.engine.stop()
    engine = LocalEngine(folders[architecture], budget=16)
    together = [engine.submit(prompt, 12) for prompt in prompts]
    assert [pending.tokens() for pending in together] == alone
    assert engine.generate(prompts[-1], 12) == alone[-1], "from the prefix cache"
    engine.engine.stop()


def test_a_layer_that_waits_in_host_memory_computes_the_same(folders: dict[str, Path]) -> None:
    for architecture, quantization in (("LlamaForCausalLM", "int8_weight_only"), ("Qwen3MoeForCausalLM", "none")):
        path, tokens = folders[architecture], list(range(3, 60))
        here = held(path, quantization, dtype=torch.bfloat16)
        away = held(path, quantization, dtype=torch.bfloat16, offload_layers=1)
        torch.testing.assert_close(logits_of(away, tokens), logits_of(here, tokens), rtol=0, atol=0)
        layer = holding.layer_bytes(shape_of(path), 2, quantization)
        norms = 2 * 2 * (64 + 16)
        assert 0 <= here.weights_bytes - away.weights_bytes - layer <= norms + 2 * 6 * 64


def test_what_a_device_lacks_is_refused_by_name() -> None:
    for fields in ({"quantization": "fp8"}, {"kv_dtype": "fp8"}, {"offload_layers": 1}):
        with pytest.raises(errors.StartError) as refusal:
            precision.chosen(EngineConfig(**fields), CPU)  # type: ignore[arg-type]
        assert refusal.value.reason == "UnsupportedOnDevice"
        assert next(iter(fields)) in refusal.value.message
    for name, fields in (("UnsupportedQuantization", {"quantization": "q"}), ("UnsupportedKvDtype", {"kv_dtype": "q"})):
        with pytest.raises(errors.StartError) as refusal:
            precision.chosen(EngineConfig(**fields), CPU)
        assert refusal.value.reason == name


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("LlamaForCausalLM", {"quantization": "int4_weight_only", "kv_dtype": "int8"}),
        ("MixtralForCausalLM", {"dtype": "bfloat16", "kv_dtype": "int8"}),
        ("Gemma2ForCausalLM", {"quantization": "int8"}),
    ],
)
def test_an_engine_reports_what_was_estimated(
    architecture: str, fields: dict[str, Any], folders: dict[str, Path]
) -> None:
    config = EngineConfig(kv_cache_bytes=4 << 20, num_threads=1, max_num_batched_tokens=64, max_num_seqs=4, **fields)
    spec = EngineSpec(
        **{**DEFAULT_SPEC, "model_path": str(folders[architecture]), "format": "huggingface", "config": config},
        address_file="",
    )
    started = startup.bring_up(spec, clock=SystemClock(), report=lambda *_: None, on_fatal=lambda _text: None)
    try:
        ledger = started.engine.ledger()
        want = estimate_shape(
            shape_of(folders[architecture]),
            configs.normalise({"kv_cache_bytes": 4 << 20, "max_num_batched_tokens": 64, "max_num_seqs": 4, **fields}),
            max_positions=512,
        )
        assert want.weights_bytes == pytest.approx(ledger.weights_bytes, rel=0.06)
        block = want.kv_bytes_per_token * config.kv_block_tokens
        assert ledger.kv_blocks_total == (4 << 20) // block
        assert ledger.workspace_bytes <= want.workspace_bytes
    finally:
        started.engine.stop()


def test_scores_that_are_bounded_are_written_out_in_parts(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = held(folders["Gemma2ForCausalLM"]), list(range(3, 90))
    whole = logits_of(model, tokens)
    monkeypatch.setattr("runtime.engine.causal.sdpa.MOST_SCORES", 500)
    torch.testing.assert_close(logits_of(model, tokens), whole, rtol=1e-5, atol=1e-5)
    assert measure.new_cache(model, 16).num_bytes == 16 * holding.kv_bytes_per_token(
        shape_of(folders["Gemma2ForCausalLM"]), 4
    )
