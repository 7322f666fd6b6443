"""Parts of a device from a wish to the node's assignment: classes, policies, mixes that are refused."""

import uuid
from dataclasses import replace

import msgspec
import pytest
from django.db import IntegrityError, transaction

from fleet import layouts, partitions
from fleet.errors import CapacityGone
from fleet.models import Device, IsolationPolicy, Node, Partition
from fleet.partitions import Share
from kernel import scope
from kernel.isolation import MAX_MPS_CLIENTS, Isolation, Requirement, at_least, strictest
from ledger.models import AuditEvent
from runtime.wire import assignments
from runtime.wire.devices import DeviceKind, HostReport, MigFacts, MigInstance, MigProfile, Wall
from scheduling import commit, cycle, demand_log, reading
from scheduling.plan import plan
from serving.models import Replica
from tenants.roles import Role
from tests.build import catalog
from tests.build.controlplane import client_for, make_member, make_tenant, make_user, owner_of
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db
A30 = layouts.FAMILIES["A30"]
MPS_WALL = Wall(name="mps", used=True, detail="one control daemon per shared GPU")


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def node(*devices, walls=(MPS_WALL,), **facts):
    agent = FakeAgent(kind=DeviceKind.CUDA, memory_bytes=24 * GIB, **facts)
    agent.devices = list(devices) or agent.devices
    agent.join()
    host = HostReport(
        hostname=agent.name, os="Linux", cpus=16, memory_bytes=64 * GIB, memory_available_bytes=64 * GIB,
        walls=list(walls),
    )  # fmt: skip
    agent.host = host
    agent.report(host=host)
    return agent


def deploy(tenant, version, endpoint="chat", **config):
    answer = client_for(owner_of(tenant)).post(
        f"/api/v1/tenants/{tenant.slug}/deployments",
        {"endpoint": endpoint, "model": version.model.name, "version": str(version.number), "config": config},
        format="json",
    )
    assert answer.status_code == 201, answer.json()
    cycle.run()
    return answer.json()["id"]


def replica(endpoint="chat"):
    with scope.all_tenants():
        return Replica.objects.get(deployment__endpoint__name=endpoint)


def fit(tenant, version, **config):
    body = {"model": version.model.name, "version": str(version.number), "config": config}
    answer = client_for(owner_of(tenant)).post(f"/api/v1/tenants/{tenant.slug}/fit", body, format="json")
    return answer.status_code, answer.json()


def policy(who, tenant, isolation):
    return who.put(f"/api/v1/tenants/{tenant.slug}/isolation", {"isolation": isolation}, format="json")


# --- words


def test_requirements_are_in_one_order_and_classes_meet_those_up_to_their_own():
    assert strictest("any", "hardware", "mps", "") == "hardware"
    assert strictest() == "any"
    met = {each.value: [r.value for r in Requirement if each.meets(r)] for each in Isolation}
    assert met == {
        "cooperative": ["any"],
        "mps": ["any", "mps"],
        "mig": ["any", "mps", "hardware"],
        "exclusive": ["any", "mps", "hardware", "exclusive"],
    }
    assert at_least("exclusive", "any")
    assert not at_least("mps", "hardware")


# --- shares by MPS


def test_an_mps_share_reaches_the_node_with_both_limits_and_comes_back_in_every_view(tenant, version):
    agent = node()
    made = deploy(tenant, version, isolation="mps", memory_limit_gib=4, thread_percentage=30)
    (row,) = agent.assignments().replicas
    (grant,) = row.devices
    assert (grant.share, grant.memory_bytes, grant.thread_percentage) == (assignments.Share.MPS, 4 * GIB, 30)
    device = Device.objects.get()
    assert (device.held_bytes, device.held_percent) == (4 * GIB, 30)
    agent.cycle()
    shown = client_for(owner_of(tenant)).get(f"/api/v1/tenants/acme/deployments/{made}").json()
    assert [(each["state"], each["isolation"]) for each in shown["replicas"]] == [("ready", "mps")]
    assert shown["revision"]["config"]["thread_percentage"] == 30
    (seen,) = client_for(make_user(admin=True)).get("/api/v1/devices").json()["data"]
    assert [(part["isolation"], part["thread_percentage"]) for part in seen["partitions"]] == [("mps", 30)]
    used = client_for(owner_of(tenant)).get("/api/v1/tenants/acme/quota").json()
    assert "300" in str(used)  # thirty percent of a GPU is the larger part: that is what counts


def test_no_share_of_another_class_stands_beside_one(tenant, version):
    node()
    deploy(tenant, version, isolation="mps")
    deploy(tenant, version, endpoint="other")
    assert replica("other").reason == "IsolationMixed"
    assert "shares of the class mps" in replica("other").message
    deploy(tenant, version, endpoint="beside", isolation="mps", thread_percentage=60)
    assert replica("beside").state == "assigned"
    deploy(tenant, version, endpoint="too-much", isolation="mps", thread_percentage=50)
    assert replica("too-much").reason == "InsufficientCompute"


def test_a_node_without_mps_is_refused_with_the_reason(tenant, version):
    node(walls=[Wall(name="mps", used=False, detail="not installed")])
    status, answer = fit(tenant, version, isolation="mps")
    assert (status, answer["fits"], answer["reason"]) == (200, False, "IsolationUnavailable")
    assert "nvidia-cuda-mps-control" in answer["message"]


def test_a_cpu_keeps_no_limits_of_a_driver(tenant, version):
    FakeAgent().join().report()
    assert fit(tenant, version, isolation="mps")[1]["reason"] == "IsolationUnavailable"
    assert fit(tenant, version)[1]["devices"][0]["isolation"] == "cooperative"


def test_a_memory_limit_below_the_need_is_refused_with_both_numbers(tenant, version):
    node()
    status, body = fit(tenant, version, memory_limit_bytes=1000)
    assert (status, body["code"]) == (422, "need_unknown")
    assert "too small" in body["detail"]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"thread_percentage": 10}, "thread_percentage"),
        ({"isolation": "exclusive", "mig_profile": "1g.6gb"}, "mig_profile"),
        ({"isolation": "concrete"}, "isolation"),
    ],
)
def test_wishes_that_exclude_each_other_are_refused_by_name(tenant, version, config, field):
    status, body = fit(tenant, version, **config)
    assert (status, body["code"], body["data"]["field"]) == (400, "invalid_config", field)


# --- policies


def test_a_tenant_that_requires_hardware_gets_a_whole_gpu_and_no_neighbour(tenant, version):
    node()
    answer = policy(client_for(owner_of(tenant)), tenant, "hardware")
    assert (answer.status_code, answer.json()["isolation"]) == (200, "hardware")
    deploy(tenant, version)
    assert Partition.objects.get().isolation == "exclusive"
    other = make_tenant("other")
    deploy(other, catalog.checked_version(other), endpoint="neighbour")
    assert replica("neighbour").reason == "DeviceTaken"
    event = AuditEvent.objects.get(action="tenant.isolation_set")
    assert event.data == {"before": "any", "after": "hardware"}


def test_only_owners_and_platform_admins_set_the_policy(tenant):
    developer, stranger = client_for(make_member(tenant, Role.ADMIN)), client_for(make_user())
    assert policy(developer, tenant, "mps").status_code == 403
    assert policy(stranger, tenant, "mps").status_code == 404
    assert policy(client_for(make_user(admin=True)), tenant, "mps").status_code == 200
    assert policy(client_for(owner_of(tenant)), tenant, "steel").status_code == 400
    seen = developer.get(f"/api/v1/tenants/{tenant.slug}/isolation").json()
    assert seen["isolation"] == "mps"
    with scope.all_tenants():
        assert IsolationPolicy.objects.get().least == "mps"


def test_what_a_version_requires_binds_whoever_deploys_it(tenant):
    node()
    strict = catalog.checked_version(tenant, isolation="exclusive")
    shown = client_for(owner_of(tenant)).get(f"/api/v1/tenants/acme/models/{strict.model.name}/versions/1").json()
    assert shown["isolation"] == "exclusive"
    assert fit(tenant, strict)[1]["need"]["isolation"] == "exclusive"
    deploy(tenant, strict)
    assert Partition.objects.get().isolation == "exclusive"


def test_a_policy_that_is_raised_after_the_plan_leaves_it_unwritten(tenant, version):
    node()
    deploy(tenant, version, mig_profile="1g.6gb")  # waits: there is no instance
    (asked,) = cycle.waiting()
    policy(client_for(owner_of(tenant)), tenant, "exclusive")
    easy = replace(asked, needs={kind: replace(need, profile="") for kind, need in asked.needs.items()})
    (answer,) = plan(reading.take(holders_of=[tenant.id]), [easy], demand_log.current())
    assert answer.places
    with pytest.raises(CapacityGone, match="stricter isolation"):
        commit.commit(answer)
    assert not Partition.objects.exists()


# --- what the database refuses


def take(device, isolation, percent=0):
    with transaction.atomic():
        share = Share(memory_bytes=GIB // 4, host_bytes=1, millicpus=1, isolation=isolation, thread_percentage=percent)
        locked = partitions.lock_device(device.id)
        return partitions.take(uuid.uuid4(), [partitions.Rank(device=locked, share=share)])[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Isolation.MPS, Isolation.COOPERATIVE),
        (Isolation.COOPERATIVE, Isolation.MPS),
        (Isolation.MPS, Isolation.EXCLUSIVE),
        (Isolation.EXCLUSIVE, Isolation.COOPERATIVE),
    ],
)
def test_classes_do_not_mix_on_a_device(first, second):
    node()
    device = Device.objects.get()
    take(device, first)
    with pytest.raises(CapacityGone, match="shares of another kind"):
        take(device, second)


def test_limits_on_multiprocessors_never_add_up_past_the_gpu():
    node()
    device = Device.objects.get()
    kept = take(device, Isolation.MPS, 60)
    with pytest.raises(CapacityGone, match="40 % of its multiprocessors left"):
        take(device, Isolation.MPS, 41)
    with pytest.raises(IntegrityError), transaction.atomic():
        Device.objects.update(held_percent=101)
    with pytest.raises(IntegrityError), transaction.atomic():
        Partition.objects.update(isolation="cooperative")  # a limit that nobody keeps
    with transaction.atomic():
        partitions.release(kept.replica_id)
    device.refresh_from_db()
    assert (device.held_percent, device.held_bytes) == (0, 0)


def test_an_mps_server_takes_no_more_clients_than_it_can():
    node()
    device = Device.objects.get()
    for _ in range(MAX_MPS_CLIENTS):
        take(device, Isolation.MPS)
    with pytest.raises(CapacityGone, match="takes no more"):
        take(device, Isolation.MPS)
    assert reading.take().devices[0].sharers == MAX_MPS_CLIENTS


# --- what hosts offer


def test_what_a_host_offers_and_lacks_is_kept_and_shown():
    walls = [MPS_WALL, Wall(name="cgroup", used=False, detail="this host has no unified control groups")]
    node(walls=walls)
    row = Node.objects.get()
    assert row.has_mps
    shown = client_for(make_user(admin=True)).get(f"/api/v1/nodes/{row.id}").json()
    assert [(each["name"], each["used"]) for each in shown["walls"]] == [("mps", True), ("cgroup", False)]


# --- layouts from what waits


def a30(*instances):
    profiles = [
        MigProfile(
            id=each.id, name=each.name, compute_slices=each.compute, memory_slices=each.slices,
            memory_bytes=each.memory_bytes, starts=list(each.starts), max_instances=each.most, media=each.media,
        )
        for each in A30.profiles
    ]  # fmt: skip
    device = FakeAgent.device(
        DeviceKind.CUDA,
        24 * GIB,
        mig=MigFacts(enabled=bool(instances), profiles=profiles, instances=list(instances)),
    )
    return msgspec.structs.replace(device, uuid="GPU-a30", product="NVIDIA A30")


def proposals(admin, **demand):
    where = "/api/v1/layouts/proposals"
    return (admin.post(where, demand, format="json") if demand else admin.get(where)).json()


def test_a_replica_that_waits_for_a_profile_is_what_a_gpu_is_cut_for(tenant, version):
    agent = node(a30())
    admin = client_for(make_user(admin=True))
    assert proposals(admin) == {"proposals": [], "unserved": []}
    deploy(tenant, version, mig_profile="2g.12gb")
    assert replica().reason == "WrongProfile"
    (found,) = proposals(admin)["proposals"]
    assert (found["device_uuid"], found["applicable"], found["must_move"], found["now"]) == ("GPU-a30", True, 0, [])
    assert [(each["tenant"], each["endpoint"], each["profile"]) for each in found["serves"]] == [
        ("acme", "chat", "2g.12gb")
    ]
    places = [{"profile_id": each["profile_id"], "start": each["start"]} for each in found["proposed"]]
    layouts.check(A30, [(each["profile_id"], each["start"]) for each in places])
    cut = admin.post(f"/api/v1/devices/{found['device_id']}/layout", {"placements": places}, format="json")
    assert cut.status_code == 200
    assert proposals(admin)["proposals"] == []  # it is under way
    shape = A30.profile(5)
    start = next(each["start"] for each in places if each["profile_id"] == 5)
    agent.devices = [
        a30(
            MigInstance(
                uuid="MIG-1", gpu_instance_id=1, profile_id=5, profile=shape.name, start=start,
                memory_slices=shape.slices, compute_slices=shape.compute, memory_bytes=shape.memory_bytes,
            )
        )
    ]  # fmt: skip
    agent.report(host=agent.host)
    cycle.run()
    assert replica().state == "assigned"
    assert Partition.objects.get().isolation == "mig"


@pytest.mark.parametrize(
    ("profile", "gib", "helps"),
    [
        pytest.param("1g.6gb", 3, "were cut so: a platform admin can plan it under Layouts", id="an instance holds it"),
        pytest.param(
            "1g.6gb", 10, "its MIG profile held 10.00 GiB (1g.6gb holds 5.80 GiB): ask for 2g.12gb, or ",
            id="a larger one",
        ),
        pytest.param(
            "2g.12gb", 23.9, "its MIG profile held 23.89 GiB (2g.12gb holds 11.69 GiB): ask for no MIG profile, or ",
            id="a whole GPU alone",
        ),
        pytest.param(
            "3g.20gb", 3, "another profile were asked for, or another GPU were cut so", id="one of another product"
        ),
        pytest.param(
            "3g.20gb", 22, "its MIG profile held 22.00 GiB (3g.20gb holds 20.00 GiB)",
            id="of another product, too small",
        ),
    ],
)  # fmt: skip
def test_cutting_is_advised_where_an_instance_would_hold_it(tenant, version, profile, gib, helps):
    node(a30())
    _status, answer = fit(tenant, version, mig_profile=profile, memory_limit_bytes=int(gib * GIB))
    (told,) = [each["would_fit_if"] for each in answer["devices"] if each["product"] == "NVIDIA A30"]
    assert helps in told
    assert ("under Layouts" in told) is ("under Layouts" in helps)


def test_what_only_a_whole_gpu_holds_waits_for_no_instance(tenant, version):
    node(a30())
    deploy(tenant, version, endpoint="here")
    deploy(tenant, version, isolation="hardware", memory_limit_bytes=int(23.9 * GIB))
    assert replica().state == "pending"
    admin = client_for(make_user(admin=True))
    assert proposals(admin) == {"proposals": [], "unserved": []}
    deploy(tenant, version, endpoint="small", isolation="hardware", memory_limit_bytes=3 * GIB)
    (found,) = proposals(admin)["proposals"]
    assert [each["endpoint"] for each in found["serves"]] == ["small"]
    assert proposals(admin)["unserved"] == []


def test_a_gpu_in_use_is_proposed_as_one_that_must_be_left_first(tenant, version):
    node(a30())
    deploy(tenant, version, endpoint="here")
    deploy(tenant, version, mig_profile="1g.6gb")
    admin = client_for(make_user(admin=True))
    (found,) = proposals(admin)["proposals"]
    assert (found["applicable"], found["must_move"]) == (False, 1)
    places = [{"profile_id": each["profile_id"], "start": each["start"]} for each in found["proposed"]]
    refused = admin.post(f"/api/v1/devices/{found['device_id']}/layout", {"placements": places}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "layout_in_use")


def test_a_demand_that_is_named_is_planned_and_what_no_gpu_serves_is_said(tenant):
    node(a30())
    admin = client_for(make_user(admin=True))
    answer = proposals(admin, demand=[{"profile": "1g.6gb", "count": 2}, {"memory_bytes": 11 * GIB, "count": 2}])
    (found,) = answer["proposals"]
    assert sorted(each["profile"] for each in found["serves"]) == ["1g.6gb", "1g.6gb", "2g.12gb"]
    assert [each["memory_bytes"] for each in answer["unserved"]] == [11 * GIB]
    assert admin.post("/api/v1/layouts/proposals", {"demand": []}, format="json").status_code == 400
    assert client_for(owner_of(tenant)).get("/api/v1/layouts/proposals").status_code == 403
