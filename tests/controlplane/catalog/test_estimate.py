"""The memory arithmetic against numbers worked out elsewhere."""

import dataclasses

import pytest

from catalog import configs
from catalog.configs import GIB
from catalog.estimate import Estimate, Shape, estimate, estimate_shape, kv_bytes_per_token, workspace_bytes

LLAMA_8B = Shape(
    parameters=8_030_261_248,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
)
LLAMA_70B = dataclasses.replace(
    LLAMA_8B, parameters=70_553_706_496, layers=80, heads=64, hidden_size=8192, intermediate_size=28672
)
QWEN_7B = Shape(
    parameters=7_615_616_512,
    layers=28,
    heads=28,
    kv_heads=4,
    head_dim=128,
    hidden_size=3584,
    intermediate_size=18944,
    vocab_size=152064,
)
# model: weights in BF16 (GiB), KV bytes a token (2-byte elements)
WORKED = {"Llama-3-8B": (LLAMA_8B, 14.96, 131_072), "Llama-3-70B": (LLAMA_70B, 131.42, 327_680)}
WORKED["Qwen2.5-7B"] = (QWEN_7B, 14.19, 57_344)


def _estimate(shape: Shape, *, device_kind: str = "cuda", max_positions: int = 8192, **settings: object) -> Estimate:
    config = configs.normalise({"dtype": "bfloat16", **settings})
    return estimate_shape(shape, config, max_positions=max_positions, device_kind=device_kind)


@pytest.mark.parametrize("model", WORKED)
def test_weights_and_kv_of_worked_examples(model: str) -> None:
    shape, want_gib, want_per_token = WORKED[model]
    got = _estimate(shape)
    assert got.weights_bytes / GIB == pytest.approx(want_gib, abs=0.005)
    assert got.kv_bytes_per_token == kv_bytes_per_token(shape, 2) == want_per_token
    assert got.kv_floor_bytes == 8192 * want_per_token


def test_float32_doubles_weights_and_kv() -> None:
    half, full = _estimate(LLAMA_8B), _estimate(LLAMA_8B, dtype="float32")
    assert (full.weights_bytes, full.kv_floor_bytes) == (2 * half.weights_bytes, 2 * half.kv_floor_bytes)


@pytest.mark.parametrize(
    ("quantization", "want_gib"),
    [("none", 14.96), ("int8", 7.49), ("int8_weight_only", 7.48), ("int4_weight_only", 4.64), ("fp8", 7.48)],
)
def test_fewer_bits_a_weight(quantization: str, want_gib: float) -> None:
    """Llama-3-8B: 6.98 G weights in layers, 1.05 G in embedding and head; scales beside them."""
    shape = dataclasses.replace(LLAMA_8B, tie_word_embeddings=False)
    got = _estimate(shape, quantization=quantization)
    assert got.weights_bytes / GIB == pytest.approx(want_gib, abs=0.005)
    assert got.kv_bytes_per_token == 131_072


def test_keys_and_values_of_one_byte_have_a_scale_per_head() -> None:
    got = _estimate(LLAMA_8B, kv_dtype="int8")
    assert got.kv_bytes_per_token == 2 * 32 * 8 * (128 + 4)
    assert got.total_bytes < _estimate(LLAMA_8B).total_bytes


def test_layers_in_host_memory_are_paid_for_in_every_step() -> None:
    shape = dataclasses.replace(LLAMA_8B, tie_word_embeddings=False)
    all_here, half = _estimate(shape), _estimate(shape, offload_layers=16)
    layer = (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) * 2
    assert half.transfer_bytes == 16 * layer == all_here.weights_bytes - half.weights_bytes
    assert half.workspace_bytes == all_here.workspace_bytes + layer, "one of them is on the device"
    assert half.host_memory_bytes == all_here.host_memory_bytes + half.transfer_bytes
    assert _estimate(shape, device_kind="cpu", offload_layers=16).transfer_bytes == 0


def test_what_only_a_gpu_has_is_not_planned_elsewhere() -> None:
    for special in ({"quantization": "fp8"}, {"kv_dtype": "fp8"}, {"offload_layers": 2}):
        config = configs.normalise(special)
        assert configs.runs_on(config, "cuda")
        assert not configs.runs_on(config, "cpu")
    assert configs.runs_on(configs.DEFAULTS, "cpu")


def test_experts_are_all_held_and_few_are_visited() -> None:
    """Mixtral-8x7B: 46.7 G weights, all of them in memory."""
    mixtral = dataclasses.replace(
        LLAMA_8B, parameters=46_702_792_704, vocab_size=32_000, architecture="MixtralForCausalLM",
        tie_word_embeddings=False, sparse_layers=32, num_experts=8, experts_per_token=2, expert_size=14_336,
    )  # fmt: skip
    assert _estimate(mixtral).weights_bytes / GIB == pytest.approx(86.99, abs=0.005)
    assert _estimate(mixtral, quantization="int8_weight_only").weights_bytes / GIB == pytest.approx(43.5, abs=0.05)
    assert _estimate(mixtral).workspace_bytes > _estimate(LLAMA_8B).workspace_bytes - 512 * 128256 * 10


def test_one_step_of_8192_tokens_needs_about_0_9_gib_of_activations() -> None:
    assert workspace_bytes(LLAMA_8B, 2, 8192, 1) / 1e9 == pytest.approx(0.47 + 0.23 + 0.27, abs=0.03)


def test_a_thousand_sequences_need_more_for_their_logits() -> None:
    assert workspace_bytes(LLAMA_8B, 2, 1024, 1024) / 1e9 == pytest.approx(1.3, abs=0.1)


def test_8b_fits_a_40_gb_slice_and_not_a_20_gb_one() -> None:
    got = _estimate(LLAMA_8B, max_num_batched_tokens=8192)
    assert got.total_bytes < 39.5 * GIB
    assert got.total_bytes + 8192 * got.kv_bytes_per_token > 18 * GIB
    assert _estimate(LLAMA_70B).total_bytes > 128.6 * GIB


def test_the_kv_floor_is_one_whole_sequence_or_what_was_asked_for() -> None:
    assert _estimate(LLAMA_8B, max_model_len=100).kv_floor_bytes == 112 * 131_072, "whole blocks of 16"
    assert _estimate(LLAMA_8B, kv_cache_gib=2).kv_floor_bytes == 2 * GIB
    assert _estimate(LLAMA_8B, max_model_len=10_000).max_model_len == 8192, "never more than the model allows"


def test_a_cpu_replica_takes_everything_of_the_host_and_a_gpu_one_little() -> None:
    on_cpu = _estimate(LLAMA_8B, device_kind="cpu")
    assert on_cpu.host_memory_bytes == on_cpu.total_bytes
    assert _estimate(LLAMA_8B).host_memory_bytes < 2 * GIB


def test_a_version_is_estimated_from_its_metadata() -> None:
    @dataclasses.dataclass
    class Version:
        parameters: int
        max_model_len: int
        metadata: dict[str, object]

    facts = {**dataclasses.asdict(LLAMA_8B), "warnings": []}
    version = Version(LLAMA_8B.parameters, 8192, facts)
    config = configs.normalise({"dtype": "bfloat16"})
    got = estimate(version, config, device_kind="cuda")
    assert got == _estimate(LLAMA_8B)
    assert got.as_dict()["total_bytes"] == got.total_bytes


def test_an_engine_that_stays_below_its_critical_mark_finds_room_for_all_parts() -> None:
    got = _estimate(LLAMA_8B)
    parts = got.weights_bytes + got.kv_floor_bytes + got.workspace_bytes + got.context_bytes
    assert parts <= got.total_bytes * 0.95 <= parts + 1
    tight = _estimate(LLAMA_8B, watermarks={"critical": 1.0})
    assert tight.headroom_bytes == 0


def test_a_long_context_pays_for_its_mask() -> None:
    short, long = _estimate(LLAMA_8B, max_positions=1024), _estimate(LLAMA_8B, max_positions=131_072)
    assert long.workspace_bytes - short.workspace_bytes > 512 * (131_072 - 1024) * 5


def test_the_sample_model_needs_what_its_engine_measured_and_not_much_more() -> None:
    """Measured on a CPU: weights 538 060 032, context 273 018 880, workspace 107 724 800 bytes for 8192 tokens."""
    smollm2 = Shape(
        parameters=134_515_008,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
    )
    got = _estimate(smollm2, device_kind="cpu", dtype="float32")
    assert got.weights_bytes == 538_060_032
    measured = 538_060_032 + 273_018_880 + 107_724_800 + 8192 * got.kv_bytes_per_token
    assert measured < got.total_bytes * 0.95 < measured * 1.2
