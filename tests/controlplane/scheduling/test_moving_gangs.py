"""Replicas over several nodes leave like those on one: their successors find all their places and serve first."""

import itertools

import pytest

from fleet import services as fleet
from fleet.models import Node, Partition
from kernel import clock, scope
from ledger.models import AuditEvent
from runtime.wire.devices import HealthCode, HealthFact
from runtime.wire.reports import Phase
from scheduling import cycle
from serving.models import Member, Replica
from serving.reconcile import cycle as serving
from serving.reconcile import plan as planning
from tests.build.controlplane import actor_for, make_tenant, make_user
from tests.build.machines import FakeGateway
from tests.build.spreads import deploy, machine, settle, wide_version

pytestmark = pytest.mark.django_db
_sequence = itertools.count(1)


class World:
    """One deployment over the nodes one and two, which serves; nodes that are there besides are empty."""

    def __init__(self):
        self.tenant = make_tenant("acme")
        self.version = wide_version(self.tenant)
        self.nodes = {}
        self.join("one", "two")
        deploy(self.tenant, self.version, endpoint="batch", priority="low", kv_cache_gib=24)
        settle()
        self.serve("one", "two")
        assert [row.state for row in rows("batch")] == ["ready"]
        leads = rows("batch")[0].node.name
        self.leader, self.follower = ("one", "two") if leads == "one" else ("two", "one")

    def join(self, *names, **facts):
        for name in names:
            self.nodes[name] = machine(name, gpus=2, gib=16, **facts)

    def serve(self, *names):
        """These nodes read, act and report until the first ranks know of the others."""
        for name in (*names, *names):
            self.nodes[name].cycle()

    def row(self, name):
        return Node.objects.get(id=self.nodes[name].id)

    def fault(self, name, xid):
        """The first GPU of a node reports a fault."""
        sick = self.nodes[name]
        sick.report(health=[HealthFact(
            sequence=next(_sequence), code=HealthCode.XID, xid=xid, at=clock.now().timestamp(),
            device_uuid=sick.devices[0].uuid,
        )])  # fmt: skip


@pytest.fixture
def world():
    return World()


def rows(endpoint):
    with scope.all_tenants():
        found = Replica.objects.select_related("node").filter(deployment__endpoint__name=endpoint)
        return list(found.order_by("id"))


def states(endpoint):
    return [row.state for row in rows(endpoint)]


def places(row):
    with scope.all_tenants():
        return sorted({part.device.node.name for part in Partition.objects.filter(replica_id=row.id)})


def test_one_that_gives_way_serves_until_its_successor_does_on_all_its_nodes(world):
    world.join("three", "four", cpus=8)
    deploy(world.tenant, world.version, endpoint="chat", priority="high", kv_cache_gib=24, num_threads=12)
    settle()
    old, new = rows("batch")
    assert (old.state, old.moving["reason"], new.state) == ("ready", "Preempted", "pending")
    assert old.moving["message"] == new.message == "It gave its place to chat, which has a higher priority."
    assert rows("chat")[0].reason == "MakingRoom"
    settle()
    assert [states("batch"), states("chat")] == [["ready", "assigned"], ["pending"]]
    assert places(rows("batch")[1]) == ["four", "three"]
    world.nodes["three"].cycle()
    settle()
    assert states("batch")[0] == "ready"  # half of the successor is not enough
    world.serve("three", "four")
    serving.run()
    assert states("batch") == ["draining", "ready"]
    world.serve("one", "two")
    settle()
    assert [states("batch"), states("chat")] == [["stopped", "ready"], ["assigned"]]
    assert places(rows("chat")[0]) == ["one", "two"]
    assert AuditEvent.objects.filter(action="replica.moving").count() == 1


def test_one_with_a_sick_device_anywhere_is_replaced_before_it_is_stopped(world):
    world.fault(world.follower, 74)
    settle()
    assert states("batch") == ["ready", "pending"]  # no room elsewhere: it goes on
    world.join("three", "four")
    settle()
    assert states("batch") == ["ready", "assigned"]
    assert places(rows("batch")[1]) == ["four", "three"]
    world.serve("three", "four")
    serving.run()
    old, new = rows("batch")
    assert (old.state, new.state, old.reason) == ("draining", "ready", "DeviceFault")
    assert old.message == "Its GPU has errors on its NVLinks (Xid 74), so this replica is replaced on another one."
    world.serve("one", "two")
    assert states("batch") == ["stopped", "ready"]
    assert set(places(rows("batch")[0])) == set()


def test_one_with_a_dead_device_anywhere_gets_nothing_from_the_report_on(world):
    gateway = FakeGateway().join()
    assert gateway.urls_of("batch")
    world.fault(world.follower, 79)
    assert gateway.urls_of("batch") == []
    settle()
    assert states("batch") == ["draining", "pending"]


def test_one_on_a_draining_node_moves_and_a_gap_that_one_of_them_accepts_ends_it(world):
    admin = actor_for(make_user(admin=True))
    fleet.drain(actor=admin, node=world.row(world.leader))
    settle()
    assert states("batch") == ["ready", "pending"]
    world.join("three", "four")
    settle()
    assert states("batch") == ["ready", "assigned"]
    assert places(rows("batch")[1]) == ["four", "three"]
    fleet.drain(actor=admin, node=world.row(world.follower), accept_gap=True)
    serving.run()
    old = rows("batch")[0]
    assert (old.state, old.reason) == ("draining", "NodeDraining")


def test_ranks_that_fail_beside_the_first_stop_traffic_at_once_and_are_not_tried_there_again(world):
    gateway = FakeGateway().join()
    follower = world.nodes[world.follower]
    (key,) = follower.replicas
    follower.change(key, Phase.FAILED, reason="EngineExited", message="killed")
    follower.report()
    failed = rows("batch")[0]
    assert (failed.state, failed.reason, gateway.urls_of("batch")) == ("failed", "RankFailed", [])
    assert failed.explanation["failed_on"] == follower.id
    world.nodes[world.leader].report()
    assert rows("batch")[0].failures == 1
    Replica._base_manager.update(state="pending")
    assert [str(ask.avoid) for ask in cycle.waiting()] == [follower.id]


def lost(world, name):
    Node.objects.filter(id=world.nodes[name].id).update(state="lost", returns_to="ready")


def test_what_other_nodes_run_of_one_with_a_lost_node_ends_where_its_successor_needs_it(world):
    lost(world, world.leader)
    settle()
    assert states("batch") == ["unreachable", "pending"]
    settle()
    assert states("batch") == ["unreachable", "pending"]  # it would not help: it may still come back
    world.join("three")
    settle()
    old, new = rows("batch")
    assert (old.state, old.reason, old.message) == ("draining", "NodeLost", planning.STRANDED_TEXT)
    assert new.reason == "MakingRoom"
    world.serve(world.follower)
    assert places(old) == [world.leader]  # what the lost node holds stays taken
    settle()
    assert states("batch") == ["draining", "assigned"]
    assert places(rows("batch")[1]) == sorted(["three", world.follower])
    world.serve(world.leader)
    assert states("batch") == ["stopped", "assigned"]
    assert places(old) == []
    assert Member._base_manager.filter(replica_id=old.id).count() == 0


def test_what_other_nodes_run_of_one_with_a_lost_node_ends_once_its_successor_serves(world):
    world.join("three", "four")
    lost(world, world.leader)
    settle()
    assert states("batch") == ["unreachable", "assigned"]
    serving.run()
    assert states("batch")[0] == "unreachable"
    world.serve("three", "four")
    serving.run()
    assert states("batch") == ["draining", "ready"]
    world.serve(world.follower)
    assert places(rows("batch")[0]) == [world.leader]
    world.serve(world.leader)
    assert states("batch") == ["stopped", "ready"]
