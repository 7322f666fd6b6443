"""Will it fit? A config.json on a page: its size, what a replica needs, and the dry run's table; in both languages."""

import json

import pytest
from django.test import Client
from django.utils import translation

from catalog import outline
from catalog.formats.facts import Rejected
from console.presenters import sentences
from tenants.roles import Role
from tests.build.catalog import CONFIG
from tests.build.controlplane import make_member, make_tenant, make_user
from tests.build.outlines import DEEPSEEK_V3
from tests.build.spreads import machine

pytestmark = pytest.mark.django_db
FORM = {"replicas": "1", "dtype": "bfloat16", "max_num_seqs": "32", "max_num_batched_tokens": "1024"}
ANSWER = "/t/acme/evaluation/answer/"


@pytest.fixture
def client():
    viewer = make_user("viewer")
    make_member(make_tenant("acme"), Role.VIEWER, viewer)
    client = Client()
    client.force_login(viewer)
    return client


def asked(client, config, **more):
    text = config if isinstance(config, str) else json.dumps(config)
    answer = client.post(ANSWER, {**FORM, "config": text, **more})
    assert answer.status_code == 200
    return answer.content.decode()


def test_whoever_may_look_asks_before_anything_is_uploaded(client):
    assert "/t/acme/evaluation/" in client.get("/t/acme/models/").content.decode()
    assert 'name="config"' in client.get("/t/acme/evaluation/").content.decode()
    machine("dgx", gpus=8, gib=24)
    page = asked(client, CONFIG, quantization="int8")
    assert "An engine here runs this architecture." in page
    assert "1 replica would find a place now." in page
    assert "millpond models evaluate config.json --set dtype=bfloat16 --set quantization=int8" in page
    page = asked(client, DEEPSEEK_V3, quantization="fp8")
    assert "671" in page
    assert "An upload would be rejected." in page
    assert "multi-head latent attention" in page
    assert "It cannot be spread" in page
    assert "You can deploy anyway" not in page


def test_what_is_missing_or_wrong_is_said_in_place(client):
    assert "Paste a config.json, or choose the file." in asked(client, "")
    assert "This is no JSON" in asked(client, "{")
    assert "A config.json has at most 262144 bytes here." in asked(client, json.dumps({"a": "x" * 300_000}))
    assert "hidden_size is missing" in asked(client, {**CONFIG, "hidden_size": None})
    assert "At least 1." in asked(client, CONFIG, replicas="0")
    assert "expert_parallel is for mixture-of-experts models" in asked(client, CONFIG, expert_parallel="2")


def test_in_chinese_nothing_of_it_is_english(client):
    client.cookies["django_language"] = "zh-hans"
    page = asked(client, DEEPSEEK_V3)
    assert "上传后会被拒绝" in page
    assert "平台不支持架构 DeepseekV3ForCausalLM：它压缩保存键和值" in page
    assert 'lang="en"' not in page


REFUSED = (
    {"architectures": ["BertModel"]}, {"architectures": ["XForCausalLM"], "state_size": 1}, {"rope_scaling": 1},
    {"architectures": ["XForCausalLM"], "model_type": "nemotron"}, {"quantization_config": {"bits": 4}},
    {"architectures": ["XForCausalLM"], "expert_total": 3}, {"architectures": None}, {"hidden_act": "sine"},
    {"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": 1},
    {"architectures": ["XForCausalLM"], "intermediate_size_mlp": 3}, {"qk_layernorm": True}, {"auto_map": {"a": "b"}},
    {"rope_scaling": {"type": "dynamic"}}, {"num_key_value_heads": 3}, {"vocab_size": -1}, {"vocab_size": None},
    {"architectures": ["XForCausalLM"], "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2},
    {"architectures": None, "kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2},
    {"num_hidden_layers": 1024, "hidden_size": 1 << 20, "intermediate_size": 1 << 22},
)  # fmt: skip


def test_every_refusal_of_a_config_is_known_in_chinese():
    told = []
    for change in REFUSED:
        try:
            told.append(outline.read({**CONFIG, **change}).message)
        except Rejected as refusal:
            told.append(refusal.message)
    for text in ("{", "[]", '"' + "x" * 300_000 + '"'):
        with pytest.raises(Rejected) as refused:
            outline.parse(text)
        told.append(refused.value.message)
    with translation.override("zh-hans"):
        assert [text for text in told if not sentences.said(text).is_translated] == []
