"""Pages about parts of devices: layouts, what hosts offer, what a tenant requires, what a sick GPU waits for."""

import msgspec
import pytest
from django.test import Client

from fleet import layouts
from fleet.models import Device, Node
from fleet.policy import policy_of
from runtime.wire.devices import DeviceKind, HostReport, MigFacts, MigProfile, RdmaRail, Wall
from scheduling import cycle
from serving import services
from tests.build import catalog
from tests.build.controlplane import actor_for, make_member, make_tenant, make_user, owner_of
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db
A30 = layouts.FAMILIES["A30"]
WALLS = [
    Wall(name="mps", used=True, detail="one control daemon per shared GPU"),
    Wall(name="cgroup", used=False, detail="this host has no unified control groups"),
]


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def node():
    agent = FakeAgent(kind=DeviceKind.CUDA, memory_bytes=24 * GIB)
    profiles = [
        MigProfile(
            id=each.id, name=each.name, compute_slices=each.compute, memory_slices=each.slices,
            memory_bytes=each.memory_bytes, starts=list(each.starts), max_instances=each.most, media=each.media,
        )
        for each in A30.profiles
    ]  # fmt: skip
    bare = FakeAgent.device(DeviceKind.CUDA, 24 * GIB, mig=MigFacts(profiles=profiles))
    agent.devices = [msgspec.structs.replace(bare, uuid="GPU-a30", product="NVIDIA A30")]
    agent.join()
    agent.report(
        host=HostReport(
            hostname="n", os="Linux", cpus=16, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB, walls=WALLS,
            rails=[RdmaRail(name="mlx5_0", link_layer="InfiniBand", active=True, rate_gbps=400.0)],
        )
    )  # fmt: skip
    return agent


def test_a_proposal_is_shown_with_its_reason_and_applied_in_one_click(node):
    tenant = make_tenant("acme")
    version = catalog.checked_version(tenant)
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={"mig_profile": "2g.12gb"}, replicas=1,
    )  # fmt: skip
    cycle.run()
    client = signed_in(make_user(admin=True))
    page = client.get("/platform/layouts/").content.decode()
    assert "acme/chat" in page
    assert "gets 2g.12gb" in page
    device = Device.objects.get(uuid="GPU-a30")
    wrong = client.post(f"/platform/layouts/{device.id}/apply/", {"placements": "5@1"}, follow=True)
    assert "cannot begin at slice 1" in wrong.content.decode()
    client.post(f"/platform/layouts/{device.id}/apply/", {"placements": "5@0,5@2"})
    device.refresh_from_db()
    assert (device.layout, device.layout_phase) == ([[5, 0], [5, 2]], "waiting")
    after = client.get("/platform/layouts/").content.decode()
    assert "changed how the device" in after  # the history
    client.post(f"/platform/layouts/{device.id}/back/")
    device.refresh_from_db()
    assert device.layout == []
    assert signed_in(owner_of(tenant)).get("/platform/layouts/").status_code in (302, 403, 404)


def test_the_node_says_what_its_host_offers_and_lacks(node):
    page = signed_in(make_user(admin=True)).get(f"/platform/nodes/{Node.objects.get().id}/").content.decode()
    assert "this host has no unified control groups" in page
    assert "Limits on memory, CPU and processes" in page
    assert "mlx5_0:1" in page
    assert "takes part in no replica over several nodes" in page
    node.rank_address = "10.0.0.5"
    node.restart()
    node.report()
    page = signed_in(make_user(admin=True)).get(f"/platform/nodes/{Node.objects.get().id}/").content.decode()
    assert '<span class="mono">10.0.0.5</span>' in page


def test_a_gpu_that_waits_for_a_reset_says_what_to_run(node):
    Device.objects.update(state="quarantined", reason="Xid95", message="bad", repair="reset")
    page = signed_in(make_user(admin=True)).get("/platform/devices/?device=GPU-a30").content.decode()
    assert "nvidia-smi --gpu-reset -i GPU-a30" in page
    assert "resets nothing by itself" in page


def test_an_owner_says_how_strictly_the_tenant_is_kept_apart():
    tenant = make_tenant("acme")
    owner, member = signed_in(owner_of(tenant)), signed_in(make_member(tenant))
    assert 'name="isolation"' in owner.get("/t/acme/settings/").content.decode()
    assert 'name="isolation"' not in member.get("/t/acme/settings/").content.decode()
    assert member.post("/t/acme/settings/isolation/", {"isolation": "mps"}).status_code == 403
    owner.post("/t/acme/settings/isolation/", {"isolation": "hardware"})
    assert policy_of(tenant).least == "hardware"
    assert "a wall of hardware" in member.get("/t/acme/settings/").content.decode()


def test_a_look_at_the_address_of_the_isolation_changes_nothing_and_leaves_no_refusal():
    tenant = make_tenant("acme")
    for user in (owner_of(tenant), make_member(tenant)):
        client = signed_in(user)
        looked = client.get("/t/acme/settings/isolation/", follow=True)
        assert (looked.status_code, looked.request["PATH_INFO"]) == (200, "/t/acme/settings/")
        assert "invalid_" not in looked.content.decode()
    assert policy_of(tenant).set_at is None


def test_an_isolation_that_does_not_exist_is_refused_in_the_visitors_language():
    tenant = make_tenant("acme")
    client = Client(headers={"Accept-Language": "zh-Hans"})
    client.force_login(owner_of(tenant))
    page = client.post("/t/acme/settings/isolation/", {"isolation": "walls"}, follow=True).content.decode()
    assert "请从列表中选择副本的隔离程度" in page
    assert "(invalid_isolation)" in page
    assert policy_of(tenant).set_at is None


def test_the_deploy_form_asks_for_a_part_and_names_what_is_wrong_with_it(node):
    tenant = make_tenant("acme")
    version = catalog.checked_version(tenant)
    form = {
        "version": f"{version.model.name}:{version.number}", "endpoint": "chat", "replicas": "1", "weight": "100",
        "dtype": "float32", "max_num_seqs": "8", "max_num_batched_tokens": "256", "isolation": "mps",
        "memory_limit_gib": "3", "thread_percentage": "30",
    }  # fmt: skip
    client = signed_in(make_member(tenant))
    shown = client.post("/t/acme/deployments/new/fit/", form).content.decode()
    assert "MPS share" in shown
    assert "thread_percentage=30" in shown  # the same as code
    wrong = client.post("/t/acme/deployments/new/", form | {"isolation": "any"}).content.decode()
    assert "limit of MPS" in wrong
    made = client.post("/t/acme/deployments/new/", form)
    assert made.status_code == 302
    cycle.run()
    node.cycle()
    assert "limits that the driver keeps" in client.get(f"{made['Location']}configuration/").content.decode()
    assert "MPS share" in client.get(made["Location"]).content.decode()
