"""A sick device and what runs on it: routes, successors, what its tenant reads, and stand-ins on simulated devices."""

import itertools

import pytest

from fleet import services as fleet
from fleet.models import Device, Node
from kernel import clock, scope
from quotas import services as quotas
from quotas import usage
from quotas.amount import Kind
from runtime.wire.devices import DeviceKind, HealthCode, HealthFact
from runtime.wire.reports import Phase
from scheduling import cycle as scheduling
from serving import services
from serving.models import Deployment, Replica
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, make_user, owner_of
from tests.build.machines import GIB, FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db
_sequence = itertools.count(1)


def agent(name, kind=DeviceKind.CUDA, **facts):
    made = FakeAgent(name)
    made.devices = [FakeAgent.device(kind, 24 * GIB, **facts)]
    made.join()
    made.report()
    return made


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def gateway():
    made = FakeGateway()
    made.join()
    return made


@pytest.fixture
def served(tenant):
    """One ready replica on the node alpha; beta is empty."""
    version = catalog.checked_version(tenant)
    first = agent("alpha")
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    scheduling.run()
    first.cycle()
    assert [row.state for row in rows()] == ["ready"]
    return first


def rows():
    with scope.all_tenants():
        return list(Replica.objects.select_related("node").order_by("id"))


def fault(sick, xid):
    return HealthFact(
        sequence=next(_sequence), code=HealthCode.XID, xid=xid, at=clock.now().timestamp(),
        device_uuid=sick.devices[0].uuid,
    )  # fmt: skip


def test_a_replica_on_a_sick_device_is_replaced_before_it_is_stopped(served, gateway):
    second = agent("beta")
    served.report(health=[fault(served, 74)])
    served.obey()
    assert gateway.urls_of("chat")  # NVLink errors: what runs there goes on
    serving.run()
    scheduling.run()
    old, new = rows()
    assert (old.state, new.state, new.node.name) == ("ready", "assigned", "beta")
    second.cycle(Phase.LOADING)
    serving.run()
    assert rows()[0].state == "ready"
    second.replicas.clear()
    second.cycle()
    serving.run()
    old, new = rows()
    assert (old.state, new.state) == ("draining", "ready")
    assert (old.reason, old.message) == (
        "DeviceFault",
        "Its GPU has errors on its NVLinks (Xid 74), so this replica is replaced on another one.",
    )
    served.cycle()
    assert rows()[0].state == "stopped"
    assert Device.objects.get(node__name="alpha").held_bytes == 0


@pytest.mark.parametrize("why", ["sick", "drained", "lost"])
def test_a_successor_needs_no_quota_beside_what_has_to_leave(served, tenant, why):
    agent("beta")
    admin = actor_for(make_user(admin=True))
    held = usage.used(tenant, Kind.HBM_BYTES)
    assert held.number > 0
    quotas.set_quota(actor=admin, tenant=tenant, changes={Kind.HBM_BYTES: held})
    match why:
        case "sick":
            served.report(health=[fault(served, 74)])
        case "drained":
            fleet.drain(actor=admin, node=Node.objects.get(name="alpha"))
        case "lost":
            Node.objects.filter(name="alpha").update(state="lost", returns_to="ready")
    serving.run()
    scheduling.run()
    _old, new = rows()
    assert new.state == "assigned", (new.reason, new.message)
    assert new.node.name == "beta"
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=new.deployment, replicas=2)
    serving.run()
    scheduling.run()
    assert [row.reason for row in rows() if row.state == "pending"] == ["QuotaExceeded"], "a third one is one too many"


def test_without_room_elsewhere_what_still_works_goes_on(served, gateway):
    served.report(health=[fault(served, 74)])
    for _ in range(3):
        serving.run()
        scheduling.run()
        served.cycle()
    old, new = rows()
    assert (old.state, new.state) == ("ready", "pending")
    assert len(gateway.urls_of("chat")) == 1
    Device.objects.update(repair="reset")
    served.boot_id = "another"
    served.report()
    assert Device.objects.get().state == "recovering"


def test_nothing_is_sent_to_a_dead_device_from_the_report_on(served, gateway):
    assert gateway.urls_of("chat")
    before = gateway.table.generation
    served.report(health=[fault(served, 79)])
    assert rows()[0].state == "ready"  # no loop has run yet
    assert gateway.urls_of("chat") == []
    assert gateway.table.generation > before
    serving.run()
    old, new = rows()
    assert (old.state, new.state) == ("draining", "pending")
    assert "fallen off the bus (Xid 79)" in old.message


def test_the_tenant_reads_why_and_nothing_of_the_machine(served, tenant):
    served.report(health=[fault(served, 79)])
    serving.run()
    client = client_for(owner_of(tenant))
    with scope.all_tenants():
        deployment = Deployment.objects.get()
    body = client.get(f"/api/v1/tenants/acme/deployments/{deployment.id}").json()
    said = next(row for row in body["replicas"] if row["state"] == "draining")
    assert said["reason"] == "DeviceFault"
    assert "so this replica is replaced on another one" in said["message"]
    assert served.devices[0].uuid not in said["message"]


def test_a_stand_in_takes_a_replica_only_where_no_real_device_can(tenant):
    version = catalog.checked_version(tenant)
    agent("hollow", DeviceKind.SIMULATED)
    agent("stage", DeviceKind.SIMULATED, stand_in=True)
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=2,
    )  # fmt: skip
    scheduling.run()
    assert [row.node.name for row in rows()] == ["stage", "stage"]
    agent("real", DeviceKind.CPU)
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="other", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    scheduling.run()
    assert rows()[-1].node.name == "real"


def test_an_engine_that_survives_being_killed_takes_its_gpu_out_until_the_machine_restarts(served):
    (replica,) = rows()
    message = "the engine does not end even when killed"
    served.change(str(replica.id), Phase.DRAINING, reason="EngineUnkillable", message=message)
    served.report()
    served.report()  # said once, however often it is reported
    device = Device.objects.get(uuid=served.devices[0].uuid)
    assert (device.state, device.reason, device.repair, device.dead) == (
        "quarantined", "EngineUnkillable", "reboot", False,
    )  # fmt: skip
    assert device.health_events.filter(code="EngineUnkillable").count() == 1
    assert device.held_bytes > 0  # what is not proved free is promised to nobody
    served.boot_id, served.replicas = "another", {}
    served.restart()
    served.report()
    device.refresh_from_db()
    assert device.state == "recovering"
