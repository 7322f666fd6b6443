"""Replicas over several nodes: placed whole or not at all, served together, ended node by node, moved for others."""

import pytest

from fleet import services as fleet
from fleet.models import Node, Partition
from kernel import scope
from ledger.models import AuditEvent
from runtime.wire.assignments import Desired
from runtime.wire.reports import Phase
from serving import services
from serving.models import Replica
from serving.reconcile import cycle as serving
from tests.build.controlplane import actor_for, make_user, owner_of
from tests.build.machines import FakeGateway
from tests.build.spreads import deploy, machine, members, row, settle

pytestmark = pytest.mark.django_db


def over_two_nodes(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    return first, second


def test_stages_on_several_nodes_all_or_nothing(tenant, version):
    first = machine("one", gpus=2, gib=16)
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    assert row().state == "pending"
    assert Partition.objects.count() == 0
    second = machine("two", gpus=2, gib=16)
    settle()
    placed = row()
    assert placed.state == "assigned"
    assert "one" in placed.message
    assert "two" in placed.message
    assert (placed.parallel["tensor"], placed.parallel["pipeline"]) == (2, 2)
    assert len(members()) == 2
    assert Partition.objects.count() == 4
    one, two = (agent.assignments().replicas[0] for agent in (first, second))
    assert sorted([one.world.ranks, two.world.ranks]) == [[0, 1], [2, 3]]
    assert one.world.leader == two.world.leader
    assert [len(each.devices) for each in (one, two)] == [2, 2]
    assert {grant.uuid for grant in one.devices} == {device.uuid for device in first.devices}


def leader_and_follower(first, second):
    leads = first.assignments().replicas[0].world.leads
    return (first, second) if leads else (second, first)


def test_it_serves_only_while_every_node_does(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    leader.cycle()
    assert (row().state, row().reason) == ("warming", "WaitingForRanks")
    assert FakeGateway().join().urls_of("chat") == []
    follower.cycle()
    leader.report()
    assert row().state == "ready"
    gateway = FakeGateway().join()
    assert gateway.urls_of("chat") == [row().address]
    (key,) = follower.replicas
    follower.change(key, Phase.FAILED, reason="EngineExited", message="killed")
    follower.report()
    leader.report()
    assert (row().state, row().reason) == ("failed", "RankFailed")
    assert "killed" in row().message
    follower.change(key, Phase.READY)
    follower.report()
    leader.report()
    assert row().state == "ready"


def test_each_node_frees_what_it_proves_free(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=row().deployment, replicas=0)
    follower.report()  # has not read the order yet: proves nothing
    assert Partition.objects.count() == 4
    follower.cycle()
    assert Partition.objects.count() == 2
    assert row().state == "draining"
    assert follower.assignments().replicas == []
    leader.cycle()
    assert Partition.objects.count() == 0
    assert row().state == "stopped"
    assert members() == []


def test_a_lost_node_makes_all_of_it_unreachable_and_its_return_heals_it(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    assert row().state == "ready"
    lost = Node.objects.get(id=follower.id)
    Node.objects.filter(id=lost.id).update(state="lost", returns_to="ready")
    assert FakeGateway().join().urls_of("chat") == []  # fenced before any loop has run
    serving.run()
    with scope.all_tenants():
        first = Replica.objects.order_by("id").first()
    assert first.state == "unreachable"
    leader.report()
    first.refresh_from_db()
    assert first.state == "unreachable"
    assert Partition.objects.filter(replica_id=first.id).count() == 4
    follower.report()
    leader.report()
    first.refresh_from_db()
    assert first.state == "ready"


def test_a_node_that_is_removed_frees_its_own_and_the_other_is_asked(tenant, version):
    leader, follower = leader_and_follower(*over_two_nodes(tenant, version))
    for agent in (leader, follower, leader):
        agent.cycle()
    Node.objects.filter(id=leader.id).update(state="lost")
    fleet.remove(actor=actor_for(make_user(admin=True)), node=Node.objects.get(id=leader.id))
    placed = row()
    assert (placed.state, placed.recalled, str(placed.node_id)) == ("failed", True, follower.id)
    assert Partition.objects.count() == 2  # what the other node runs is not proved free yet
    (order,) = follower.assignments().replicas
    assert order.desired is Desired.STOP
    follower.cycle()
    placed = row()
    assert Partition.objects.count() == 0
    assert placed.node_id is None
    assert placed.generation == 2


def by_endpoint():
    with scope.all_tenants():
        rows = Replica.objects.select_related("deployment__endpoint").order_by("id")
        return {name: [row for row in rows if row.deployment.endpoint.name == name] for name in ("batch", "chat")}


def states():
    return {name: [row.state for row in rows] for name, rows in by_endpoint().items()}


def test_one_over_two_nodes_gives_way_to_one_over_two_nodes(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, endpoint="batch", priority="low", kv_cache_gib=24)
    settle()
    leader, follower = leader_and_follower(first, second)
    for agent in (leader, follower, leader):
        agent.cycle()
    assert states() == {"batch": ["ready"], "chat": []}
    deploy(tenant, version, priority="high", kv_cache_gib=24)
    settle()
    gone, next_ = by_endpoint()["batch"]
    assert (gone.state, gone.reason) == ("draining", "Preempted")
    assert next_.explanation["gave_way"] == gone.message
    assert by_endpoint()["chat"][0].reason == "MakingRoom"
    for agent in (first, second):
        assert [each.desired for each in agent.assignments().replicas] == [Desired.DRAIN]
    follower.cycle()  # one of two nodes is free: not enough, and nothing of it is given to anybody
    settle()
    assert states() == {"batch": ["draining", "pending"], "chat": ["pending"]}
    assert Partition.objects.count() == 2
    leader.cycle()
    settle()
    assert states() == {"batch": ["stopped", "pending"], "chat": ["assigned"]}
    assert Partition.objects.filter(replica_id=by_endpoint()["chat"][0].id).count() == 4
    settle()
    assert states() == {"batch": ["stopped", "pending"], "chat": ["assigned"]}


def test_several_on_several_nodes_give_way_to_one_over_all_of_them_or_stay(tenant, version):
    first, second = machine("one", gpus=2, gib=16), machine("two", gpus=2, gib=16)
    deploy(tenant, version, replicas=2, endpoint="batch", priority="low", kv_cache_gib=16)
    settle()
    for agent in (first, second):
        agent.cycle()
    kept = deploy(tenant, version, priority="normal", kv_cache_gib=24)
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=kept, priority="low")
    settle()
    assert states() == {"batch": ["ready", "ready"], "chat": ["pending"]}  # their equal: nobody goes
    services.scale(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=kept, priority="high")
    settle()
    assert states() == {"batch": ["draining", "draining", "pending", "pending"], "chat": ["pending"]}
    for agent in (first, second):
        agent.cycle()
    settle()
    assert states()["chat"] == ["assigned"]
    assert len(members()) == 2
    assert AuditEvent.objects.filter(action="replica.draining", reason="Preempted").count() == 2
