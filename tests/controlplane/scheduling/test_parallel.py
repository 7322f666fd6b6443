"""How a replica is spread: worked examples with published sizes, and what is refused."""

import dataclasses

import pytest

from scheduling.links import NVLINK3, NVLINK4, PCIE4, PCIE5, RDMA_400, all_reduce, all_to_all, send
from scheduling.parallel import choose, option_as_given
from scheduling.ranks import GIB, Hardware, ModelFacts, Wanted
from scheduling.whynot import Why

MIB = 1024**2


def gib(number):
    return int(number * GIB)


LLAMA_8B = ModelFacts(
    weights_bytes=gib(14.96), layers=32, heads=32, kv_heads=8, head_dim=128, hidden_size=4096
)  # fmt: skip
LLAMA_70B = ModelFacts(weights_bytes=gib(131.42), layers=80, heads=64, kv_heads=8, head_dim=128, hidden_size=8192)
LLAMA_70B_FP8 = dataclasses.replace(LLAMA_70B, weights_bytes=gib(67.67))
QWEN_7B = ModelFacts(weights_bytes=gib(14.19), layers=28, heads=28, kv_heads=4, head_dim=128, hidden_size=3584)
MIXTRAL = ModelFacts(
    weights_bytes=gib(86.99), layers=32, heads=32, kv_heads=8, head_dim=128, hidden_size=4096, experts=8,
    experts_per_token=2, expert_bytes=gib(84.0), expert_size=14336,
)  # fmt: skip
QWEN_30B = ModelFacts(
    weights_bytes=gib(56.87), layers=48, heads=32, kv_heads=4, head_dim=128, hidden_size=2048, experts=128,
    experts_per_token=8, expert_bytes=gib(54.0), expert_size=768,
)  # fmt: skip
DEEPSEEK_FP8 = ModelFacts(
    weights_bytes=gib(626.8), replicated_bytes=gib(1.06), layers=61, heads=128, kv_heads=128, head_dim=128,
    hidden_size=7168, latent_dim=576, experts=256, experts_per_token=8, expert_bytes=gib(609.0), expert_size=2048,
    moe_layers=58, block=128,
)  # fmt: skip
LLAMA_70B_INT4 = dataclasses.replace(LLAMA_70B, weights_bytes=gib(37.04))
LLAMA_8B_FP8 = dataclasses.replace(LLAMA_8B, weights_bytes=gib(8.46))
MIXTRAL_FP8 = dataclasses.replace(MIXTRAL, weights_bytes=gib(43.74), expert_bytes=gib(42.0))
QWEN_30B_FP8 = dataclasses.replace(QWEN_30B, weights_bytes=gib(29.01), expert_bytes=gib(27.0))
H100 = Hardware(product="H100", usable_bytes=int(79.1 * GIB * 0.92), domain=8, link=NVLINK4, nodes=2, fabric=RDMA_400)
H200 = dataclasses.replace(H100, product="H200", usable_bytes=int(139.8 * GIB * 0.92))
L40S = Hardware(product="L40S", usable_bytes=int(44.4 * GIB * 0.92), domain=8, link=PCIE5)
#: Four A100 on PCIe, joined by bridges in pairs, and the same in two such nodes.
PAIRS = Hardware(
    product="A100 PCIe", usable_bytes=int(79.1 * GIB * 0.92), domain=2, link=NVLINK3, domains=2, between=PCIE4,
    node_devices=4,
)  # fmt: skip
TWO_NODES = dataclasses.replace(PAIRS, nodes=2, fabric=RDMA_400)
ONE = Wanted(floor_tokens=8192)
TOLD = Wanted(floor_tokens=8192, tp_over_pcie=True)


def every(model, hardware=H100, wanted=ONE):
    found = choose(model, hardware, wanted)
    return {
        (option.tp, option.pp, option.ep): option
        for option in (*found.rejected, *([found.chosen] if found.chosen else []))
    }


@pytest.mark.parametrize(
    ("model", "hardware", "way", "weights_gib", "budget_gib", "tokens"),
    [
        (LLAMA_8B, H100, (1, 1, 1), 15.0, 55.3, 453_000),
        (LLAMA_8B, H200, (1, 1, 1), 15.0, 111.2, 911_000),
        (QWEN_7B, H100, (1, 1, 1), 14.2, 56.1, 1_050_000),
        (LLAMA_70B, H100, (1, 1, 1), 131.4, -61.2, 0),
        (LLAMA_70B, H100, (2, 1, 1), 65.7, 4.1, 26_600),
        (LLAMA_70B, H100, (4, 1, 1), 32.9, 36.9, 484_000),
        (LLAMA_70B, H100, (8, 1, 1), 16.4, 53.3, 1_400_000),
        (LLAMA_70B, H200, (1, 1, 1), 131.4, -5.3, 0),
        (LLAMA_70B, H200, (2, 1, 1), 65.7, 59.9, 393_000),
        (LLAMA_70B_FP8, H100, (1, 1, 1), 67.7, 2.6, 8_500),
        (LLAMA_70B_FP8, H100, (2, 1, 1), 33.8, 35.9, 236_000),
        (LLAMA_70B_FP8, H200, (1, 1, 1), 67.7, 58.4, 192_000),
        (LLAMA_70B_INT4, H100, (1, 1, 1), 37.0, 33.2, 109_000),
        (LLAMA_8B_FP8, H100, (1, 1, 1), 8.5, 61.8, 506_000),
        (QWEN_7B, H200, (1, 1, 1), 14.2, 111.9, 2_100_000),
        (MIXTRAL, H200, (1, 1, 1), 87.0, 39.1, 321_000),
        (MIXTRAL_FP8, H100, (1, 1, 1), 43.7, 26.5, 217_000),
        (QWEN_30B, H200, (1, 1, 1), 56.9, 69.2, 756_000),
        (QWEN_30B_FP8, H100, (1, 1, 1), 29.0, 41.3, 451_000),
        (MIXTRAL, H100, (1, 1, 1), 87.0, -16.7, 0),
        (MIXTRAL, H100, (2, 1, 1), 43.5, 26.3, 431_000),
        (QWEN_30B, H100, (1, 1, 1), 56.9, 13.4, 146_000),
        (QWEN_30B, H100, (2, 1, 1), 28.4, 41.3, 903_000),
        (QWEN_30B, H100, (8, 1, 1), 7.1, 62.7, 2_740_000),  # 4 KV heads on 8 ranks: each is kept twice
        (DEEPSEEK_FP8, H100, (8, 1, 1), 79.3, -9.5, 0),
        (DEEPSEEK_FP8, H200, (8, 1, 1), 79.3, 46.3, 700_000),
        # Half of it would be 39.6 GiB and leave room for 906 000; of 61 layers the longer stage has 31.
        (DEEPSEEK_FP8, H100, (8, 2, 1), 39.64 * 31 / 30.5, 29.0, 871_000),
    ],
)  # fmt: skip
def test_bytes_per_rank(model, hardware, way, weights_gib, budget_gib, tokens):
    option = every(model, hardware)[way]
    assert option.weights_bytes / GIB == pytest.approx(weights_gib, abs=0.06)
    assert option.kv_budget_bytes / GIB == pytest.approx(budget_gib, abs=0.5)
    assert option.kv_tokens == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize(
    ("reported_gib", "weights_gib", "overhead_gib", "budget_gib", "tokens"),
    [
        pytest.param(19.5, 14.96, 2.5, 0.5, 3_900, id="A100-40 3g.20gb: fits in name only"),
        pytest.param(19.62, 14.96, 2.5, 0.6, 4_800, id="H100 2g.20gb: fits in name only"),
        pytest.param(19.62, 5.33, 2.0, 10.7, 88_000, id="H100 2g.20gb int4"),
        pytest.param(9.75, 5.33, 2.0, 1.6, 13_000, id="H100 1g.10gb int4: small contexts"),
        pytest.param(39.5, 14.96, 2.5, 18.9, 155_000, id="H100 3g.40gb"),
        pytest.param(32.25, 14.96, 2.5, 12.2, 100_000, id="H200 2g.35gb"),
    ],
)
def test_bytes_on_mig_instances(reported_gib, weights_gib, overhead_gib, budget_gib, tokens):
    """By the memory that is reported, not by the profile's name."""
    model = dataclasses.replace(LLAMA_8B, weights_bytes=gib(weights_gib))
    instance = Hardware(product="MIG", usable_bytes=gib(reported_gib * 0.92), domain=1, link=PCIE5)
    option = every(model, instance, Wanted(floor_tokens=1, overhead_bytes=gib(overhead_gib)))[1, 1, 1]
    assert option.kv_budget_bytes / GIB == pytest.approx(budget_gib, abs=0.06)
    assert option.kv_tokens == pytest.approx(tokens, rel=0.05)  # the table rounds the budget


@pytest.mark.parametrize(
    ("model", "hardware", "want"),
    [
        pytest.param(LLAMA_8B, H100, "one device", id="what fits one device is not spread"),
        pytest.param(LLAMA_70B, H100, "TP2", id="tensor parallel inside the domain"),
        pytest.param(LLAMA_70B_FP8, H200, "one device", id="quantized it fits one"),
        pytest.param(DEEPSEEK_FP8, H200, "EP8", id="experts are spread where TP would copy the KV cache"),
        pytest.param(DEEPSEEK_FP8, H100, "TP8 x PP2", id="stages over nodes when a domain is too small"),
        pytest.param(LLAMA_70B, L40S, "PP4", id="stages where there is only PCIe"),
    ],
)
def test_the_choice(model, hardware, want):
    found = choose(model, hardware, ONE)
    assert found.chosen.name == want
    assert all(option.why_not for option in found.rejected)
    assert found.chosen.why_not == ""


def test_heads_must_divide():
    assert every(QWEN_7B)[8, 1, 1].why_not == "28 attention heads do not divide by 8"
    assert every(QWEN_7B)[4, 1, 1].why_not.startswith("one device is enough")
    odd = dataclasses.replace(LLAMA_70B, inner_size=11_004)  # divides by 4 and not by 8
    assert every(odd)[8, 1, 1].why_not == "an MLP of 11004 inner values does not divide by 8"
    assert every(odd)[4, 1, 1].why_not.startswith("TP2 is enough")
    blocks = dataclasses.replace(QWEN_30B, block=128)
    assert every(blocks)[8, 1, 1].why_not == "experts of 768 do not divide by 8 into blocks of 128"


def test_tensor_parallelism_over_pcie_is_refused_unless_asked_for():
    refused = every(LLAMA_70B, L40S)[4, 1, 1].why_not
    assert refused.startswith(
        "tensor parallelism over PCIe 5.0 x16: 3932160 bytes per token and rank in 160 all-reduces"
    )
    asked = choose(LLAMA_70B, L40S, Wanted(floor_tokens=8192, tp_over_pcie=True))
    assert asked.chosen.name == "TP4"


LLAMA_70B_LONG = Wanted(floor_tokens=400_000)
NO_STAGES = dataclasses.replace(LLAMA_70B, stages_supported=False)


@pytest.mark.parametrize(
    ("model", "hardware", "wanted", "want"),
    [
        pytest.param(LLAMA_8B, PAIRS, TOLD, "one device", id="one device if it fits"),
        pytest.param(LLAMA_70B, PAIRS, TOLD, "TP2", id="inside a pair if that is enough"),
        pytest.param(LLAMA_70B, PAIRS, dataclasses.replace(LLAMA_70B_LONG, tp_over_pcie=True), "TP2 x PP2",
                     id="stages of pairs before sums over PCIe"),
        pytest.param(NO_STAGES, PAIRS, dataclasses.replace(LLAMA_70B_LONG, tp_over_pcie=True), "TP4",
                     id="over the whole node where there can be no stages"),
        pytest.param(NO_STAGES, PAIRS, LLAMA_70B_LONG, None, id="not unless it is said"),
        pytest.param(DEEPSEEK_FP8, dataclasses.replace(PAIRS, node_devices=16, domains=8), TOLD, "TP2 x PP8",
                     id="over all pairs of a node"),
    ],
)  # fmt: skip
def test_the_choice_where_nvlink_joins_pairs(model, hardware, wanted, want):
    found = choose(model, hardware, wanted)
    assert (found.chosen.name if found.chosen else None) == want


def test_over_pairs_the_slowest_link_counts():
    given = option_as_given(LLAMA_70B, PAIRS, TOLD, tp=4, pp=1).chosen
    assert [each.as_dict() | {"overlap": ""} for each in given.collectives] == [
        {"name": "all-reduce", "calls": 160, "bytes_per_token": 3_932_160, "link": "PCIe 4.0 x16", "overlap": ""}
    ]
    stages = option_as_given(LLAMA_70B, PAIRS, ONE, tp=2, pp=2).chosen
    assert [(each.name, each.link.name) for each in stages.collectives] == [
        ("all-reduce", "NVLink 3"), ("send/recv", "PCIe 4.0 x16"),
    ]  # fmt: skip
    nodes = option_as_given(LLAMA_70B, TWO_NODES, TOLD, tp=4, pp=2).chosen
    assert [each.link.name for each in nodes.collectives] == ["PCIe 4.0 x16", "RDMA 400 Gb/s"]
    experts = option_as_given(MIXTRAL, PAIRS, TOLD, tp=2, pp=1, ep=4).chosen
    assert [(each.name, each.link.name) for each in experts.collectives] == [
        ("all-to-all", "PCIe 4.0 x16"), ("all-reduce", "NVLink 3"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "way", "wanted", "code", "sentence"),
    [
        (LLAMA_70B, (4, 1, 1), ONE, Why.TP_OVER_PCIE,
         "TP4: tensor parallelism over PCIe 4.0 x16: 3932160 bytes per token and rank in 160 all-reduces per step; say "
         "tp_over_pcie, or use stages."),
        (MIXTRAL, (1, 1, 4), ONE, Why.TP_OVER_PCIE,
         "EP4: all-to-all over PCIe 4.0 x16: 786432 bytes per token and rank; say tp_over_pcie, or use stages."),
        (LLAMA_70B, (8, 1, 1), TOLD, Why.TOO_MANY_RANKS,
         "TP8: 8 ranks need one node of 8 devices; the largest has 4."),
        (LLAMA_70B, (3, 1, 1), TOLD, Why.NOT_DIVISIBLE, "TP3: 64 attention heads do not divide by 3."),
        (LLAMA_70B, (1, 81, 1), ONE, Why.TOO_MANY_RANKS, "PP81: 80 layers are fewer than 81 stages."),
        (LLAMA_70B, (2, 3, 1), ONE, Why.NOT_JOINED, "TP2 x PP3: nothing joins the groups of devices that it needs."),
        (NO_STAGES, (2, 2, 1), ONE, Why.NOT_SUPPORTED,
         "TP2 x PP2: the engine cannot run this architecture in stages."),
        (DEEPSEEK_FP8, (4, 1, 1), ONE, Why.TOO_LARGE, "TP4: 157"),  # however it is said, it would not fit
    ],
)  # fmt: skip
def test_a_refusal_has_a_code_and_a_sentence(model, way, wanted, code, sentence):
    tp, pp, ep = way
    found = option_as_given(model, PAIRS, wanted, tp=tp, pp=pp, ep=ep)
    assert found.chosen is None
    assert found.refused.code is code
    assert found.refused.sentence.startswith(sentence)
    assert found.as_dict()["code"] == code.value
    assert all(option.code for option in found.rejected)


def test_where_only_a_word_is_missing_that_is_said():
    found = choose(NO_STAGES, PAIRS, LLAMA_70B_LONG)
    assert (found.chosen, found.refused.code) == (None, Why.TP_OVER_PCIE)
    assert found.sentence.startswith("TP4: tensor parallelism over PCIe 4.0 x16")
    assert choose(DEEPSEEK_FP8, PAIRS, ONE).refused.code is Why.TOO_LARGE
    chosen = choose(LLAMA_70B, PAIRS, TOLD)
    assert chosen.refused is None
    assert {option.name: option.code for option in chosen.rejected}["TP4"] is Why.NOT_NEEDED
    named = option_as_given(LLAMA_70B, PAIRS, TOLD, tp=4, pp=1)
    assert {option.name: option.code for option in named.rejected}["TP2"] is Why.OTHER_ASKED_FOR


def test_load_is_answered_with_replicas():
    found = choose(LLAMA_8B, H100, Wanted(floor_tokens=8192, load_tokens=2_000_000))
    assert (found.chosen.name, found.chosen.replicas) == ("one device", 5)
    assert found.chosen.bytes_per_token == 0
    assert all("enough" in option.why_not for option in found.rejected if option.tp == 2 and option.pp == 1)


def test_a_model_that_fits_nowhere_says_by_how_much():
    small = dataclasses.replace(H100, nodes=1, fabric=None, domain=2)
    found = choose(DEEPSEEK_FP8, small, ONE)
    assert found.chosen is None
    assert "short by" in found.rejected[0].why_not


@pytest.mark.parametrize(
    ("hidden", "layers", "ranks", "megabytes"),
    [(4096, 32, 2, 0.52), (4096, 32, 4, 0.79), (4096, 32, 8, 0.92), (8192, 80, 2, 2.62), (8192, 80, 4, 3.93),
     (8192, 80, 8, 4.59), (7168, 61, 8, 3.06)],
)  # fmt: skip
def test_bytes_of_all_reduces(hidden, layers, ranks, megabytes):
    moved = all_reduce(layers, ranks, hidden, 2, NVLINK4)
    assert moved.bytes_per_token / 1e6 == pytest.approx(megabytes, abs=0.006)
    assert moved.calls == 2 * layers


def test_bytes_of_stages_and_experts():
    assert send(2, 8192, 2, RDMA_400).bytes_per_token == 32 * 1024
    moved = all_to_all(58, 256, 8, 7168, 1, 2, NVLINK4)
    assert moved.bytes_per_token / 1e6 == pytest.approx(10, rel=0.02)
    prefill = all_reduce(80, 8, 8192, 2, NVLINK4)
    assert 8192 * prefill.seconds_per_token() == pytest.approx(0.104, abs=0.005)


def test_latent_attention_over_two_nodes_of_ranks():
    """The last row of the worked examples: what MLA keeps per token is on each of 16 ranks, not a 16th of it."""
    wide = dataclasses.replace(H100, domain=16)
    chosen = option_as_given(DEEPSEEK_FP8, wide, ONE, tp=16, pp=1).chosen
    assert chosen.weights_bytes / GIB == pytest.approx(40.2, abs=0.06)
    assert chosen.kv_budget_bytes / GIB == pytest.approx(29.1, abs=0.6)
    assert chosen.kv_tokens == pytest.approx(445_000, rel=0.03)
    assert DEEPSEEK_FP8.kv_bytes_per_token(16, 1) == DEEPSEEK_FP8.kv_bytes_per_token(1, 1) == 70_272


def test_experts_as_they_were_asked_for():
    spread = option_as_given(MIXTRAL, H100, ONE, tp=1, pp=1, ep=4).chosen
    assert (spread.name, spread.devices) == ("EP4", 4)
    assert spread.weights_bytes / GIB == pytest.approx(2.99 + 84.0 / 4, abs=0.01)  # attention whole, experts divided
    assert [each.name for each in spread.collectives] == ["all-to-all"]
    assert spread.bytes_per_token == 32 * 2 * 4096 * (2 + 2) * 3 // 4
    both = option_as_given(MIXTRAL, H100, ONE, tp=2, pp=2, ep=4).chosen
    assert (both.name, both.devices) == ("TP2 x EP4 x PP2", 8)
    assert both.weights_bytes / GIB == pytest.approx((2.99 / 2 + 84.0 / 4) / 2, abs=0.01)
    assert [each.name for each in both.collectives] == ["all-to-all", "all-reduce", "send/recv"]
    assert both.kv_tokens == 2 * (both.kv_budget_bytes // MIXTRAL.kv_bytes_per_token(2, 2))  # two groups of two
    odd = dataclasses.replace(MIXTRAL, expert_size=14_337)  # whole experts need not divide
    assert option_as_given(odd, H100, ONE, tp=2, pp=1, ep=4).chosen is not None


@pytest.mark.parametrize(
    ("model", "ways", "why_not"),
    [
        (LLAMA_70B, (1, 1, 4), "expert parallelism is for mixture-of-experts models, and this one is dense"),
        (MIXTRAL, (1, 1, 3), "8 experts do not divide by 3"),
        (MIXTRAL, (8, 1, 4), "4 ranks of experts are no multiple of the 8 that share attention"),
        (QWEN_30B, (1, 1, 16), "16 ranks need one domain of 16; the largest has 8"),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_spread(model, ways, why_not):
    tp, pp, ep = ways
    found = option_as_given(model, H100, ONE, tp=tp, pp=pp, ep=ep)
    assert found.chosen is None
    assert found.rejected[0].why_not.startswith(why_not)
    assert len(found.rejected) > 1


def test_what_is_recorded_is_data():
    told = choose(LLAMA_70B, H100, ONE).as_dict()
    assert told["chosen"]["collectives"][0] == {
        "name": "all-reduce", "calls": 160, "bytes_per_token": 2621440, "link": "NVLink 4",
        "overlap": "exposed: the next product waits for the sum",
    }  # fmt: skip
    assert {option["name"] for option in told["rejected"]} >= {"one device", "TP4", "TP8"}
