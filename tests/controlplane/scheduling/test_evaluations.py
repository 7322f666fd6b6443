"""A model is judged over REST before it is uploaded: what it is, what it needs, and where it would fit now."""

import pytest

from catalog.models import Model
from kernel import actors, scope
from quotas.amount import UNLIMITED, Kind
from quotas.services import set_quota
from runtime.wire.devices import DeviceKind
from tests.build.catalog import CONFIG
from tests.build.controlplane import client_for, make_tenant, make_user, owner_of
from tests.build.outlines import DEEPSEEK_V3
from tests.build.spreads import WIDE, asked, machine, wide_version

pytestmark = pytest.mark.django_db
EIGHT_BITS = {"dtype": "bfloat16", "quantization": "fp8"}


@pytest.fixture
def post():
    tenant = make_tenant("acme")
    client = client_for(owner_of(tenant))
    unlimited = {Kind.HBM_BYTES: UNLIMITED, Kind.GPU_MILLIS: UNLIMITED}
    set_quota(actor=actors.system("tests"), tenant=tenant, changes=unlimited)

    def call(body, want=200):
        answer = client.post("/api/v1/tenants/acme/evaluations", body, format="json")
        assert answer.status_code == want, answer.json()
        return answer.json()

    call.tenant = tenant
    return call


def test_deepseek_v3_on_eight_of_141_gb(post):
    machine("wide", gpus=8, gib=141, cpus=128)
    answer = post({"config": DEEPSEEK_V3, "serving": {**EIGHT_BITS, "max_model_len": 8192}})
    assert (answer["architecture"], answer["parameters"]) == ("DeepseekV3ForCausalLM", 671_026_404_352)
    assert (answer["served"], answer["exact"], answer["reason"]) == (False, False, "UnsupportedArchitecture")
    assert "multi-head latent attention), which no engine here computes" in answer["message"]
    needs = {need["kind"]: need for need in answer["needs"]}
    assert set(needs) == {"cuda", "simulated"}, "8-bit floats need a GPU"
    assert {need["kv_bytes_per_token"] for need in needs.values()} == {70_272}
    assert needs["cuda"]["weights_bytes"] > 620 * 1024**3
    placement = answer["placement"]
    assert placement["fits"]
    plan = placement["need"]["parallel"]
    assert plan["chosen"]["name"] == "EP8", "a latent is copied by TP, so experts are spread"
    alternatives = {each["name"]: each["why_not"] for each in plan["rejected"]}
    assert "do not fit" in alternatives["TP4"]
    assert "EP8" in alternatives["TP8"]
    with scope.all_tenants():
        assert not Model.objects.exists()


def test_what_would_make_it_fit_is_said(post):
    machine("small", gpus=8, gib=24)
    answer = post({"config": DEEPSEEK_V3, "serving": EIGHT_BITS})
    assert not answer["placement"]["fits"]
    assert answer["placement"]["reason"]
    assert {device["fits"] for device in answer["placement"]["devices"]} == {False}
    assert answer["placement"]["devices"][0]["would_fit_if"]


def test_a_served_model_gets_the_answer_that_it_gets_once_it_is_there(post):
    machine("one", gpus=4, gib=16)
    version = wide_version(post.tenant)
    before = post({"config": {**CONFIG, **WIDE}, "serving": {"kv_cache_gib": 16, "dtype": "float32"}})
    after = asked(post.tenant, version, kv_cache_gib=16)
    assert (before["served"], before["exact"], before["message"]) == (True, True, "")
    assert (before["parameters"], before["max_model_len"]) == (version.parameters, version.max_model_len)
    assert before["placement"]["need"] == after.need
    assert before["placement"]["message"] == after.message


def test_bad_input_says_what_is_wrong(post):
    refused = post({"config": {"architectures": ["BertForMaskedLM"]}}, want=400)
    assert (refused["code"], refused["data"]["reason"]) == ("file_refused", "UnsupportedArchitecture")
    assert "no decoder that goes on with a text" in refused["detail"]
    wrong = post({"config": CONFIG, "serving": {"dtype": "int3"}}, want=400)
    assert (wrong["code"], wrong["data"]["field"]) == ("invalid_config", "dtype")
    post({"config": {**CONFIG, "note": "x" * 300_000}}, want=413)
    post({"config": []}, want=400)
    post({"serving": {}}, want=400)
    unknown = post({"config": CONFIG, "serving": {"memory_limit_bytes": 1}}, want=422)
    assert unknown["code"] == "need_unknown"


def test_only_members_ask(post):
    stranger = client_for(make_user("stranger"))
    body = {"config": CONFIG}
    assert stranger.post("/api/v1/tenants/acme/evaluations", body, format="json").status_code == 404


def test_real_devices_are_judged_by_what_engines_can_do(post):
    machine("real", gpus=8, gib=141, stand_in=False, kind=DeviceKind.CUDA, cpus=128)
    answer = post({"config": DEEPSEEK_V3, "serving": {**EIGHT_BITS, "max_model_len": 8192}})
    assert answer["placement"]["need"]["parallel"]["chosen"]["name"] == "TP8", "experts are matrices to the engine"


def test_weights_are_taken_as_the_config_says_that_they_are_stored(post):
    machine("one", gpus=1, gib=16)

    def weights(more=None, **serving):
        answer = post({"config": {**CONFIG, **WIDE, **(more or {})}, "serving": serving})
        return answer["placement"]["need"]["weights_bytes"]

    half = weights()
    assert weights({"torch_dtype": "float32"}) == 2 * half == weights(dtype="float32")
    assert weights({"torch_dtype": "float16"}) == half == weights({"torch_dtype": "int3"})
