"""Agent, gateway and control plane over the internal API: place, serve, scale, drain, fail, lose, come back."""

import datetime

import pytest

from catalog.selectors import files_of
from fleet import leases
from fleet.models import Device, Node, Partition
from kernel import clock, scope
from runtime.wire.assignments import Desired
from runtime.wire.reports import Phase, ReportReply
from scheduling import cycle as scheduling
from serving import services
from serving.models import Deployment, Replica
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, make_user, owner_of
from tests.build.machines import FakeAgent, FakeGateway, Refused

pytestmark = pytest.mark.django_db
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def deploy(tenant, version, replicas=1, endpoint="chat"):
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=endpoint, model=version.model.name,
        version=version.number, config={}, replicas=replicas,
    )  # fmt: skip


def agent(**facts):
    made = FakeAgent(**facts)
    made.join()
    made.report()
    return made


def gateway():
    made = FakeGateway()
    made.join()
    return made


def beat(*agents, phase=Phase.READY):
    """One round of everything."""
    serving.run()
    scheduling.run()
    for each in agents:
        each.cycle(phase)
    serving.run()


def replicas(deployment):
    with scope.all_tenants():
        return list(Replica.objects.filter(deployment=deployment).order_by("id"))


def states(deployment):
    return [replica.state for replica in replicas(deployment)]


def test_a_deployment_is_placed_served_and_routed(tenant, version):
    node, gate = agent(), gateway()
    deployment = deploy(tenant, version)
    assert states(deployment) == ["pending"]
    scheduling.run()
    assert states(deployment) == ["assigned"]
    assert gate.urls_of("chat") == []

    wanted = node.obey(Phase.LOADING, progress=0.5)
    (item,) = wanted.replicas
    assert (item.desired, item.served_name, item.format) == (Desired.RUN, "chat", "huggingface")
    assert {file.path for file in item.artifacts} == {file.path for file in files_of(version)}
    assert item.devices[0].uuid == node.devices[0].uuid
    assert item.devices[0].memory_bytes == Partition.objects.get().memory_bytes
    node.report()
    assert states(deployment) == ["loading"]
    assert gate.urls_of("chat") == []

    node.set(item, Phase.READY, address="http://127.0.0.1:40001")
    node.report()
    assert states(deployment) == ["ready"]
    table = gate.routes()
    (route,) = table.endpoints[0].variants[0].replicas
    assert (route.url, route.token, route.generation) == ("http://127.0.0.1:40001", item.token, item.generation)
    assert table.endpoints[0].max_model_len == version.max_model_len
    reply = gate.report()
    assert reply.generation == table.generation


def test_ready_without_an_address_is_not_ready(tenant, version):
    node = agent()
    deployment = deploy(tenant, version)
    scheduling.run()
    (item,) = node.obey(Phase.READY, address="").replicas
    node.report()
    node.report()
    (row,) = replicas(deployment)
    assert (row.state, row.reason, row.generation) == ("warming", "NoAddress", item.generation)


def test_scaling_down_drains_and_frees_only_when_the_node_says_so(tenant, version):
    node, gate = agent(), gateway()
    deployment = deploy(tenant, version, replicas=2)
    beat(node)
    assert states(deployment) == ["ready", "ready"]
    assert len(gate.urls_of("chat")) == 2

    actor = actor_for(owner_of(tenant))
    services.scale(actor=actor, tenant=tenant, deployment=deployment, replicas=1)
    assert states(deployment) == ["ready", "draining"]
    assert len(gate.urls_of("chat")) == 1
    assert Partition.objects.count() == 2
    node.report()  # has not read the order yet: proves nothing
    assert Partition.objects.count() == 2
    wanted = node.obey()
    assert sorted(item.desired for item in wanted.replicas) == [Desired.DRAIN, Desired.RUN]
    node.report()
    assert states(deployment) == ["ready", "stopped"]
    assert Partition.objects.count() == 1
    held = Partition.objects.get()
    assert Device.objects.get().held_bytes == held.memory_bytes
    assert Node.objects.get().held_millicpus == held.millicpus
    assert len(node.obey().replicas) == 1


def test_an_order_that_was_never_read_does_not_free_the_place(tenant, version):
    """Assigned and drained in one breath: the node may still be starting it."""
    node = agent()
    deployment = deploy(tenant, version)
    scheduling.run()
    early = node.assignments()
    node.applied = early.generation
    services.stop(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=deployment)
    node.report()  # does not list it, but has not read the new order either
    assert states(deployment) == ["draining"]
    assert Partition.objects.count() == 1
    node.obey()
    node.report()
    assert states(deployment) == ["stopped"]
    assert Partition.objects.count() == 0


def test_stop_start_and_delete(tenant, version):
    node = agent()
    actor = actor_for(owner_of(tenant))
    deployment = deploy(tenant, version)
    beat(node)
    services.stop(actor=actor, tenant=tenant, deployment=deployment)
    beat(node)
    assert states(deployment) == ["stopped"]
    services.start(actor=actor, tenant=tenant, deployment=deployment)
    beat(node)
    assert states(deployment) == ["stopped", "ready"]
    services.delete_deployment(actor=actor, tenant=tenant, deployment=deployment)
    with scope.all_tenants():
        assert Deployment.objects.get().state == "deleting"
    beat(node)
    with scope.all_tenants():
        assert not Deployment.objects.exists()
    assert Partition.objects.count() == 0
    assert Device.objects.get().held_bytes == 0


def test_an_engine_that_its_agent_restarts_is_followed(tenant, version):
    node, gate = agent(), gateway()
    deployment = deploy(tenant, version)
    beat(node)
    (row,) = replicas(deployment)
    node.change(str(row.id), Phase.FAILED, reason="EngineExited", message="The engine was killed.")
    node.report()
    (row,) = replicas(deployment)
    assert (row.state, row.reason, row.failures) == ("failed", "EngineExited", 1)
    assert gate.urls_of("chat") == []
    node.change(str(row.id), Phase.LOADING, reason="", message="", restarts=1)
    node.report()
    node.change(str(row.id), Phase.READY, address="http://127.0.0.1:40009", restarts=1)
    node.report()
    (row,) = replicas(deployment)
    assert (row.state, row.generation, row.restarts) == ("ready", 1, 1)
    assert gate.urls_of("chat") == ["http://127.0.0.1:40009"]


def test_a_replica_that_does_not_recover_is_taken_back_and_tried_anew(tenant, version):
    with clock.frozen(START):
        node = agent()
        deployment = deploy(tenant, version)
        beat(node)
        (row,) = replicas(deployment)
        node.change(str(row.id), Phase.FAILED, reason="OutOfMemory", message="It does not fit.")
        node.report()
        beat(node)
        assert states(deployment) == ["failed"]
    with clock.frozen(START + datetime.timedelta(seconds=16)):
        serving.run()
        (item,) = node.assignments().replicas
        assert item.desired is Desired.STOP
        assert Partition.objects.count() == 1
        node.cycle()
        assert Partition.objects.count() == 0
        (row,) = replicas(deployment)
        assert (row.state, row.generation, row.node_id) == ("failed", 2, None)
        serving.run()
        scheduling.run()
        (row,) = replicas(deployment)
        assert row.state == "assigned"
        (item,) = node.obey().replicas
        assert (item.generation, item.desired) == (2, Desired.RUN)
        node.report()
        assert states(deployment) == ["ready"]


def test_reports_of_an_older_generation_are_not_heard(tenant, version):
    node = agent()
    deployment = deploy(tenant, version)
    beat(node)
    (row,) = replicas(deployment)
    Replica._base_manager.filter(id=row.id).update(generation=5)
    node.change(str(row.id), Phase.FAILED, reason="Late")
    node.report()
    assert states(deployment) == ["ready"]


def test_a_report_that_was_overtaken_changes_nothing(tenant, version):
    node = agent()
    deployment = deploy(tenant, version)
    late = node.draft(devices=[])
    beat(node)
    assert states(deployment) == ["ready"]
    node.post("/report", late, ReportReply)
    assert states(deployment) == ["ready"]
    assert Device.objects.get().present


def test_a_lost_node_is_fenced_replaced_and_comes_back(tenant, version):
    with clock.frozen(START):
        first, second, gate = agent(name="one"), agent(name="two"), gateway()
        leases.expire()
        deployment = deploy(tenant, version)
        beat(first, second)
        assert states(deployment) == ["ready"]
        (row,) = replicas(deployment)
        holder, other = (first, second) if row.node.name == "one" else (second, first)
        before = gate.routes().generation
    for seconds in range(2, 23, 2):
        with clock.frozen(START + datetime.timedelta(seconds=seconds)):
            other.report()
            leases.expire()
    with clock.frozen(START + datetime.timedelta(seconds=23)):
        assert {node.name: node.state for node in Node.objects.all()} == {holder.name: "lost", other.name: "ready"}
        assert gate.urls_of("chat") == []  # fenced before the serving loop has even looked
        assert gate.routes().generation > before
        beat(other)
        assert states(deployment) == ["unreachable", "ready"]
        assert Partition.objects.count() == 2  # what the lost node holds stays taken
        assert len(gate.urls_of("chat")) == 1
        holder.report()
        assert {node.state for node in Node.objects.all()} == {"ready"}
        assert states(deployment) == ["ready", "ready"]
        beat(holder, other)
        beat(holder, other)
        assert sorted(states(deployment)) == ["ready", "stopped"]
        assert Partition.objects.count() == 1


def test_removing_a_lost_node_frees_what_it_held(tenant, version):
    with clock.frozen(START):
        first = agent(name="one")
        leases.expire()
        deployment = deploy(tenant, version)
        beat(first)
    for seconds in range(2, 23, 2):
        with clock.frozen(START + datetime.timedelta(seconds=seconds)):
            leases.expire()
    with clock.frozen(START + datetime.timedelta(seconds=24)):
        admin = client_for(make_user(admin=True))
        node = Node.objects.get()
        assert node.state == "lost"
        serving.run()
        assert admin.post(f"/api/v1/nodes/{node.id}/remove").status_code == 200
        assert Partition.objects.count() == 0
        serving.run()
        serving.run()
        (row, *rest) = replicas(deployment)
        assert row.node_id is None
        assert not [replica for replica in rest if replica.node_id]
        with pytest.raises(Refused) as refused:
            first.report()
        assert (refused.value.status, refused.value.body.code) == (410, "removed")
        first.join()
        first.report()
        assert Node.objects.get().id == node.id


def test_draining_a_node_waits_for_ready_successors(tenant, version):
    one = agent(name="one")
    deployment = deploy(tenant, version)
    beat(one)
    admin = client_for(make_user(admin=True))
    node = Node.objects.get()
    assert admin.post(f"/api/v1/nodes/{node.id}/drain").json()["state"] == "draining"
    beat(one)
    assert states(deployment) == ["ready", "pending"]  # no room elsewhere: what serves goes on
    two = agent(name="two")
    serving.run()
    scheduling.run()
    two.cycle(Phase.LOADING)
    serving.run()
    assert states(deployment) == ["ready", "loading"]
    two.replicas.clear()
    two.cycle(Phase.READY)
    beat(one, two)
    assert states(deployment) == ["stopped", "ready"]
    assert Node.objects.get(name="one").state == "drained"
    assert admin.post(f"/api/v1/nodes/{node.id}/uncordon").json()["state"] == "ready"
