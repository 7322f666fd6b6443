"""Real ranks over several nodes: only among nodes whose agents were given an address for ranks, and the reason else."""

import pytest

from fleet.models import Node, Partition
from runtime.wire.reports import Phase
from scheduling import feasible, holders, topology
from scheduling.board import Board
from scheduling.feasible import Reason
from scheduling.snapshot import Holding
from scheduling.whynot import Why
from tests.build.controlplane import client_for, make_user
from tests.build.fleets import GIB, gpu, holder, need, node, snapshot
from tests.build.spreads import asked, deploy, machine, members, real, row, settle

pytestmark = pytest.mark.django_db


def test_stages_go_to_nodes_that_take_part_and_meet_at_the_address_of_the_first(tenant, version):
    real("aside")  # first by name, and not reachable for ranks of others
    agents = {agent.id: agent for agent in (real("one", rank_address="10.0.0.1"), real("two", rank_address="10.0.0.2"))}
    answer = asked(tenant, version, kv_cache_gib=24)
    assert answer.fits
    assert answer.need["parallel"]["chosen"]["name"] == "TP2 x PP2"
    assert answer.need["parallel"]["chosen"]["collectives"][1]["link"] == "Ethernet 100 Gb/s"
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    placed = row()
    assert {str(member.node_id) for member in members()} == set(agents)
    assert Partition.objects.count() == 4
    leader = agents.pop(str(placed.node_id))
    (follower,) = agents.values()
    told = [each.assignments() for each in (leader, follower)]
    (first,), (second,) = (each.replicas for each in told)
    assert (first.world.ranks, second.world.ranks) == ([0, 1], [2, 3])
    assert (first.world.tensor, first.world.pipeline, first.world.size) == (2, 2, 4)
    assert first.world.leader == second.world.leader == f"{leader.rank_address}:{placed.parallel['port']}"
    assert first.token == second.token
    leader.rank_address = "10.0.0.9"
    leader.report()
    again = [each.assignments() for each in (leader, follower)]
    assert {each.replicas[0].world.leader for each in again} == {f"10.0.0.9:{placed.parallel['port']}"}
    assert all(new.generation > old.generation for new, old in zip(again, told, strict=True))
    for agent in (leader, follower, leader):
        agent.cycle()
    assert row().state == "ready"
    (key,) = follower.replicas
    follower.change(key, Phase.FAILED, reason="LeaderGone", message="The leader of this replica is gone.")
    follower.report()
    leader.report()
    assert (row().state, row().reason) == ("failed", "RankFailed")


def test_a_leader_that_waits_for_ranks_that_failed_is_not_left_waiting(tenant, version):
    agents = {agent.id: agent for agent in (real("one", rank_address="10.0.0.1"), real("two", rank_address="10.0.0.2"))}
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    leader = agents.pop(str(row().node_id))
    (follower,) = agents.values()
    leader.obey(Phase.LOADING)
    leader.report()
    assert row().state == "loading"
    follower.obey(Phase.FAILED, reason="DoesNotFit", message="The weights do not fit.")
    follower.report()
    placed = row()
    assert (placed.state, placed.reason) == ("failed", "RankFailed")
    assert placed.message == f"Ranks on node {follower.name} failed: The weights do not fit."
    leader.report()  # it waits on, which heals nothing
    assert (row().state, row().failures) == ("failed", 1)
    (key,) = follower.replicas
    follower.change(key, Phase.LOADING)
    follower.report()
    leader.report()
    assert row().state == "loading"


def test_what_fits_on_one_node_stays_there(tenant, version):
    for name in ("one", "two"):
        real(name, gpus=4, rank_address=f"10.0.0.{len(name)}")
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    assert members() == []
    assert {part.device.node_id for part in Partition.objects.select_related("device")} == {row().node_id}


def test_without_addresses_the_reason_says_what_would_help(tenant, version):
    real("one", rank_address="10.0.0.1")
    real("two")
    answer = asked(tenant, version, kv_cache_gib=24)
    assert (answer.fits, answer.reason) == (False, "ParallelPlanImpossible")
    assert "TP2 x PP2: it needs several nodes: of 2 with Test cuda, 0 take part" in answer.message
    assert answer.devices[0]["plan_code"] == Why.NO_RANK_ADDRESS
    assert answer.would_fit_if == (
        "the agents of more of these nodes were given an address for ranks (MILLPOND_RANK_ADDRESS)"
    )
    named = asked(tenant, version, kv_cache_gib=1, pipeline_parallel=4)
    assert "PP4: it needs several nodes" in named.message
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    assert (row().state, row().reason) == ("pending", "ParallelPlanImpossible")


def test_a_node_that_is_given_an_address_lets_what_waits_be_placed(tenant, version):
    one, two = real("one", rank_address="10.0.0.1"), real("two")
    deploy(tenant, version, kv_cache_gib=24)
    settle()
    assert row().state == "pending"
    two.rank_address = "10.0.0.2"
    two.restart()
    two.report()
    assert Node.objects.get(id=two.id).rank_address == "10.0.0.2"
    settle()
    assert row().state == "assigned"
    assert {str(member.node_id) for member in members()} == {one.id, two.id}


def test_one_with_no_plan_over_any_nodes_is_not_told_of_addresses(tenant, version):
    real("one")
    real("two")
    many = asked(tenant, version, kv_cache_gib=1, tensor_parallel=4)
    assert "ranks need one domain of 4" in many.message
    assert "address for ranks" not in many.would_fit_if


def test_simulated_nodes_need_no_address(tenant, version):
    for name in ("one", "two"):
        machine(name, gpus=2)
    assert asked(tenant, version, kv_cache_gib=24).fits


def test_a_device_of_a_node_without_an_address_is_refused_for_stages_over_nodes():
    over = {"cuda": need("cuda", 8, stages=2, over_nodes=True)}
    alone = node(1)
    refused = feasible.refuse(gpu(1, 1), alone, over)
    assert (refused.reason, refused.message) == (
        Reason.NO_RANK_ADDRESS,
        "This needs several nodes; node n1 takes part in no replica over several nodes.",
    )
    assert feasible.refuse(gpu(1, 1), node(1, rank_address="10.0.0.1"), over) is None
    assert feasible.refuse(gpu(1, 1), alone, {"cuda": need("cuda", 8)}) is None


def test_a_replica_that_has_to_go_is_moved_only_among_nodes_that_take_part():
    devices = [gpu(10 * on + at, on) for on in (1, 2) for at in range(2)]
    parts = tuple(Holding(device_id=each.id, memory_bytes=8 * GIB) for each in devices)
    moved = holder(1, 10, 8, holdings=parts, stages=2)

    def over_nodes(**facts):
        board = Board(snapshot([node(1, **facts), node(2, **facts)], devices))
        return holders.need_of(board, moved).over_nodes

    assert over_nodes(rank_address="10.0.0.1")
    assert not over_nodes()


def test_the_nodes_that_take_part_are_a_fleet_of_their_own():
    nodes = {each.id: each for each in (node(1), *(node(n, rank_address=f"10.0.0.{n}", rdma=True) for n in (2, 3)))}
    devices = [gpu(10 * on + at, on) for on in (1, 2, 3) for at in range(8 if on == 1 else 4)]
    (kind,) = topology.kinds(nodes, devices, "cuda")
    assert (kind.nodes, kind.node_devices, kind.fabric.name) == (3, 8, "Ethernet 100 Gb/s")
    assert (kind.joined.nodes, kind.joined.node_devices, kind.joined.fabric.name) == (2, 4, "RDMA 400 Gb/s")
    (few,) = topology.kinds(nodes, [each for each in devices if each.node_id != node(3).id], "cuda")
    assert few.joined is None


def test_the_address_is_shown_over_rest():
    agent = real("one", rank_address="10.0.0.1")
    shown = client_for(make_user(admin=True)).get(f"/api/v1/nodes/{agent.id}").json()
    assert shown["rank_address"] == "10.0.0.1"
