"""Models judged by their config.json alone: sizes against published totals, latent attention, and hostile configs."""

import json
import random
from typing import Any

import pytest

from catalog import configs, holding, outline
from catalog.configs import GIB
from catalog.estimate import estimate, shape_of
from catalog.formats.facts import Rejected
from scheduling.need import needs_of
from scheduling.ranks import ModelFacts
from scheduling.spreading import spread_of
from tests.build.catalog import CONFIG
from tests.build.outlines import DEEPSEEK_V2_LITE, DEEPSEEK_V3, published

LLAMA_8B = published("LlamaForCausalLM", 4096, 32, 32, 8, 14_336, 128_256)
# config, parameters that were published or counted on the model itself, and how far the formulas may be off
TOTALS: dict[str, tuple[dict[str, Any], int, float]] = {
    "Llama-3-8B": (LLAMA_8B, 8_030_261_248, 0),
    "Qwen2.5-7B": (published("Qwen2ForCausalLM", 3584, 28, 28, 4, 18_944, 152_064), 7_615_616_512, 0),
    "Mixtral-8x7B": (
        published(
            "MixtralForCausalLM", 4096, 32, 32, 8, 14_336, 32_000, num_local_experts=8, num_experts_per_tok=2
        ),
        46_702_792_704, 0,
    ),
    "Qwen3-30B-A3B": (
        published(
            "Qwen3MoeForCausalLM", 2048, 48, 32, 4, 6144, 151_936, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
        ),
        30_532_122_624, 0,
    ),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_404_352, 0),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224, 0),
    "Granite-3.0-8B": (
        published("GraniteForCausalLM", 4096, 40, 32, 8, 12_800, 49_155, tie_word_embeddings=True), 8_170_848_256, 0
    ),
    "Qwen1.5-MoE-A2.7B": (
        published(
            "Qwen2MoeForCausalLM", 2048, 24, 16, 16, 5632, 151_936, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1,
        ),
        14_315_784_192, 0.0001,
    ),
    "gpt-oss-120b": (
        published(
            "GptOssForCausalLM", 2880, 36, 64, 8, 2880, 201_088, head_dim=64, num_local_experts=128,
            num_experts_per_tok=4, attention_bias=True, layer_types=["sliding_attention", "full_attention"] * 18,
        ),
        116_829_156_672, 0.001,
    ),
}  # fmt: skip

SERVED = ("Llama-3-8B", "Qwen2.5-7B", "Mixtral-8x7B", "Qwen3-30B-A3B")


@pytest.mark.parametrize("name", TOTALS)
def test_the_number_of_weights_follows_from_the_config(name: str) -> None:
    config, want, off = TOTALS[name]
    found = outline.read(config)
    assert found.parameters == pytest.approx(want, rel=off)
    assert found.exact == found.served == (name in SERVED)
    assert found.architecture == config["architectures"][0]


def test_latent_attention_keeps_its_latent_and_no_heads() -> None:
    """61 layers of 512 + 64 values: 70 272 bytes a token with two bytes each, 40 times less than for each head."""
    found = outline.read(DEEPSEEK_V3)
    assert (found.shape.latent_dim, found.shape.rope_dim, found.shape.head_dim) == (576, 64, 192)
    assert holding.kv_bytes_per_token(found.shape, 2) == 61 * 576 * 2 == 70_272
    assert holding.kv_bytes_per_token(found.shape, 2, "fp8") == 61 * (576 + 4)
    needed = estimate(found, configs.normalise({"dtype": "bfloat16"}), device_kind="cuda")
    assert needed.weights_bytes / GIB == pytest.approx(1249.9, abs=0.1)
    assert needed.kv_floor_bytes == 163_840 * 70_272
    small = estimate(found, configs.normalise({"dtype": "bfloat16", "quantization": "fp8"}), device_kind="cuda")
    assert small.weights_bytes / GIB == pytest.approx(626.8, rel=0.005)
    assert shape_of(found) == found.shape


def facts_for(config: dict[str, Any], **serving: object) -> ModelFacts:
    settings = configs.normalise({"dtype": "bfloat16", **serving})
    found = outline.read(config)
    spread = spread_of(found, settings, needs_of(found, settings))
    assert spread is not None
    return spread.model


def test_each_rank_of_tensor_parallelism_keeps_the_whole_latent() -> None:
    facts = facts_for(DEEPSEEK_V3, quantization="fp8")
    assert [facts.kv_bytes_per_token(tp, 1) for tp in (1, 8, 16)] == [70_272] * 3
    assert facts.kv_bytes_per_token(8, 2) == 31 * 576 * 2, "of the stage that has one layer more"
    assert facts.replicated_bytes / GIB == pytest.approx(1.06, abs=0.02), "what compresses, and the routers"
    whole = facts.replicated_bytes + facts.ends_bytes
    assert facts.weights_per_rank(8, 1) == pytest.approx((facts.weights_bytes - whole) / 8 + whole, abs=1)
    assert facts.expert_bytes / facts.weights_bytes == pytest.approx(58 * 256 * 3 * 7168 * 2048 / 671_026_404_352)


def test_ranks_share_the_heads_of_other_attention() -> None:
    facts = facts_for(LLAMA_8B)
    assert [facts.kv_bytes_per_token(tp, 1) for tp in (1, 2, 8)] == [131_072, 65_536, 16_384]
    assert (facts.latent_dim, facts.replicated_bytes) == (0, 0)
    eights = facts_for(LLAMA_8B, kv_dtype="int8")
    assert eights.kv_bytes_per_token(2, 1) == 32 * 2 * 4 * (128 + 4)


@pytest.mark.parametrize(
    ("change", "reason", "told"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 4},
         "UnsupportedArchitecture", "multi-head latent attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "UnsupportedQuantization", "Upload the original weights"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "RemoteCodeRefused", "Uploaded code is never run"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "UnsupportedRope", "'dynamic' is not served"),
        ({"architectures": None}, "UnsupportedArchitecture", "is not stated"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_sized_and_told_as_after_an_upload(
    change: dict[str, Any], reason: str, told: str
) -> None:
    found = outline.read({**CONFIG, **change})
    assert (found.served, found.reason) == (False, reason)
    assert told in found.message
    assert 0 < found.parameters < 10_000


@pytest.mark.parametrize(
    ("change", "reason", "told"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "UnsupportedArchitecture", "is not served here"),
        ({"architectures": ["BertForMaskedLM"]}, "UnsupportedArchitecture", "no decoder that goes on with a text"),
        ({"architectures": ["XForCausalLM"], "state_size": 16}, "UnsupportedArchitecture", "layers are no attention"),
        ({"architectures": ["XForCausalLM"], "layer_types": ["linear_attention"]}, "UnsupportedArchitecture", "no att"),
        ({"architectures": ["XForCausalLM"], "model_type": "nemotron"}, "UnsupportedArchitecture", "have no gate"),
        ({"architectures": ["XForCausalLM"], "experts_count": 8}, "UnsupportedArchitecture", "stands under none of"),
        ({"architectures": ["XForCausalLM"], "model_type": []}, "", ""),
        ({"num_hidden_layers": 10**30}, "DamagedFile", "num_hidden_layers"),
        ({"vocab_size": "12"}, "DamagedFile", "vocab_size"),
        ({"hidden_size": None}, "DamagedFile", "hidden_size is missing"),
        ({"num_key_value_heads": 3}, "DamagedFile", "cannot share 3"),
        ({"architectures": ["XForCausalLM"], "num_key_value_heads": 3}, "DamagedFile", "cannot share 3"),
        ({"architectures": ["XForCausalLM"], "num_experts": 4, "num_experts_per_tok": 5}, "DamagedFile", "per_tok"),
        ({"architectures": ["XForCausalLM"], "kv_lora_rank": -1}, "DamagedFile", "kv_lora_rank"),
        ({"num_hidden_layers": 1024, "hidden_size": 1 << 20, "intermediate_size": 1 << 22}, "DamagedFile", "at most"),
    ],
)  # fmt: skip
def test_what_cannot_be_sized_is_refused(change: dict[str, Any], reason: str, told: str) -> None:
    config = {**CONFIG, **change}
    if not reason:
        assert outline.read(config).parameters
        return
    with pytest.raises(Rejected, match=told) as refused:
        outline.read(config)
    assert refused.value.reason == reason


def test_parts_are_given_alone() -> None:
    with pytest.raises(Rejected, match="Give the text_config of it alone"):
        outline.read({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": CONFIG})


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", '"' + "x" * 300_000])
def test_texts_that_are_no_config(text: str) -> None:
    with pytest.raises(Rejected) as refused:
        outline.parse(text)
    assert refused.value.reason in ("DamagedFile", "FileTooLarge")


def test_no_config_is_an_accident() -> None:
    """Any value in any place is read or refused, quickly, and what is read can be estimated."""
    dice = random.Random(4)
    odd = [None, True, -1, 0, 1, 7, 4096, 1 << 24, 10**40, 1.5, float("nan"), "x" * 999, [], [1], {}, {"a": {}}, [[]]]
    read = 0
    for _ in range(3000):
        config = dict(dice.choice([CONFIG, LLAMA_8B, DEEPSEEK_V3, DEEPSEEK_V2_LITE, TOTALS["Qwen3-30B-A3B"][0]]))
        for key in dice.sample([*config, "rope_scaling", "layer_types", "num_experts"], dice.randint(1, 3)):
            config[key] = dice.choice(odd)
        try:
            found = outline.read(json.loads(json.dumps(config)))
        except Rejected:
            continue
        read += 1
        settings = configs.normalise({"dtype": "bfloat16", "quantization": dice.choice(configs.QUANTIZATIONS)})
        spread = spread_of(found, settings, needs_of(found, settings))
        assert spread is not None
        assert spread.model.weights_per_rank(8, 1) > 0
    assert read > 500
