"""A replica over several devices, on the pages: the fit check with its numbers and alternatives, and where it runs."""

import msgspec
import pytest
from django.test import Client

from runtime.wire.devices import DeviceKind, DevicePath, NvLinkFacts
from scheduling import cycle
from serving import services
from tests.build import catalog
from tests.build.controlplane import actor_for, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db
WIDE = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 8, "hidden_size": 64, "head_dim": 8}
FORM = {
    "endpoint": "chat", "replicas": "1", "weight": "100", "dtype": "float32", "max_num_seqs": "32",
    "max_num_batched_tokens": "512", "kv_cache_gib": "16",
}  # fmt: skip


@pytest.fixture
def world():
    tenant = make_tenant("harbor")
    values = {**catalog.CONFIG, **WIDE}
    files = catalog.huggingface(WIDE, model__safetensors=catalog.weights(catalog.layer_shapes(values)))
    version = catalog.checked_version(tenant, files, model=catalog.make_model(tenant, "wide"))
    agent = FakeAgent("dgx", cpus=64, host_bytes=256 * GIB)
    bare = [FakeAgent.device(DeviceKind.SIMULATED, 16 * GIB, stand_in=True) for _number in range(4)]
    agent.devices = [
        msgspec.structs.replace(
            one,
            nvlink=NvLinkFacts(links=18, active=18, version="4.0"),
            paths=[DevicePath(uuid=other.uuid, nvlinks=18) for other in bare if other is not one],
        )
        for one in bare
    ]
    agent.join()
    agent.report()
    client = Client()
    client.force_login(owner_of(tenant))
    return tenant, version, agent, client


def test_the_fit_check_shows_the_plan_and_what_else_was_looked_at(world):
    _tenant, version, _agent, client = world
    body = FORM | {"version": f"wide:{version.number}"}
    page = client.post("/t/harbor/deployments/new/fit/", body).content.decode()
    assert "Spread over devices: TP2" in page
    assert "over NVLink 4" in page
    assert "other ways" in page
    assert "Each of 2 devices takes" in page
    given = client.post("/t/harbor/deployments/new/fit/", body | {"tensor_parallel": "4"}).content.decode()
    assert "Spread over devices: TP4" in given
    assert "--set tensor_parallel=4" in given
    named = client.post("/t/harbor/deployments/new/fit/", body | {"products": "H100 80GB, A30"}).content.decode()
    assert "--set products=&#x27;H100 80GB, A30&#x27;" in named  # one word to a shell
    wrong = client.post("/t/harbor/deployments/new/fit/", body | {"tensor_parallel": "3"}).content.decode()
    assert "8 attention heads do not divide by 3" in wrong
    assert "It cannot be spread" in wrong


def test_the_deployment_page_says_where_each_rank_runs(world):
    tenant, version, agent, client = world
    made = services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model="wide", version=version.number,
        config={"kv_cache_gib": 16}, replicas=1, priority="low",
    )  # fmt: skip
    cycle.run()
    agent.cycle()
    page = client.get(f"/t/harbor/deployments/{made.id}/").content.decode()
    assert "Runs on 2 devices" in page
    assert "Rank 1" in page
    assert "TP2" in page
    page = client.get(f"/t/harbor/deployments/{made.id}/configuration/").content.decode()
    assert "low: gives way first" in page
    dialog = client.get(f"/t/harbor/deployments/{made.id}/scale/").content.decode()
    assert 'value="low" selected' in dialog
    client.post(f"/t/harbor/deployments/{made.id}/scale/", {"replicas": "1", "weight": "100", "priority": "normal"})
    made.refresh_from_db()
    assert made.priority == "normal"


def test_the_settings_page_has_the_quota_with_what_is_used(world):
    _tenant, _version, _agent, client = world
    page = client.get("/t/harbor/settings/").content.decode()
    assert "what the tenant may hold at one time" in page
    assert page.count("no limit") >= 1
    assert "Guaranteed" in page
