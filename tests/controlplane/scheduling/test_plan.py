"""The planner as tables: who goes where, and what a refusal says."""

import dataclasses
import random
import uuid

import pytest

from scheduling.bins import NEVER
from scheduling.board import Board
from scheduling.demand import Demand
from scheduling.feasible import Reason, refuse
from scheduling.plan import Planner, plan
from tests.build.fleets import DEPLOYMENT, GIB, ask, device, gpu, need, node, snapshot

NEEDS = {"cpu": need(), "cuda": need("cuda", 2, 1, 1000)}


@pytest.mark.parametrize(
    ("where", "what", "reason", "words"),
    [
        (node(), device(), None, ""),
        (node(), device(exclusive=True), Reason.DEVICE_TAKEN, "as a whole"),
        (node(state="cordoned"), device(), Reason.NODE_CORDONED, "n1 is cordoned"),
        (node(state="draining"), device(), Reason.NODE_DRAINING, "being drained"),
        (node(state="drained"), device(), Reason.NODE_DRAINING, "being drained"),
        (node(state="lost"), device(), Reason.NODE_LOST, "does not answer"),
        (node(state="joining"), device(), Reason.NODE_NOT_READY, "has not reported"),
        (node(), device(kind="simulated"), Reason.SIMULATED_DEVICE, "no engine can run"),
        (node(), device(kind="tpu"), Reason.WRONG_DEVICE_KIND, "cpu or cuda"),
        (node(), device(present=False), Reason.DEVICE_MISSING, "does not report"),
        (node(), device(state="suspect", message="ECC"), Reason.DEVICE_UNHEALTHY, "suspect: ECC"),
        (node(), device(held_bytes=7 * GIB), Reason.INSUFFICIENT_DEVICE_MEMORY, "has 1.00 GiB free of 8.00 GiB"),
        (node(), device(held_bytes=6 * GIB), None, "exactly what is free fits"),
        (node(held_host_bytes=63 * GIB), device(), Reason.INSUFFICIENT_HOST_MEMORY, "1.00 GiB not promised to others"),
        (node(memory_available_bytes=GIB), device(), Reason.INSUFFICIENT_HOST_MEMORY, "1.00 GiB available right now"),
        (node(held_millicpus=7600), device(), Reason.INSUFFICIENT_CPU, "Needs 0.5 CPU; node n1 has 0.4 CPU left"),
    ],
)  # fmt: skip
def test_filters(where, what, reason, words):
    refusal = refuse(what, where, NEEDS)
    if reason is None:
        assert refusal is None
    else:
        assert (refusal.reason, words in refusal.message) == (reason, True), refusal.message


TIGHT_AND_WIDE = [device(1, 1, held_bytes=GIB), device(2, 2)]
FULL_AND_FREE = [device(1, 1, held_bytes=8 * GIB), device(2, 2)]


def chosen(nodes, devices, *asks):
    answers = plan(snapshot(nodes, devices), asks or [ask()])
    return [answer.chosen.uuid if answer.chosen else answer.reason for answer in answers]


@pytest.mark.parametrize(
    ("nodes", "devices", "want"),
    [
        pytest.param([node()], [device(1), device(2, held_bytes=4 * GIB)], "d2", id="the tightest fit"),
        pytest.param([node()], [device(1), device(2, kind="cuda")], "d2", id="a GPU before a CPU"),
        pytest.param([node(1, replicas={DEPLOYMENT: 1}), node(2)], TIGHT_AND_WIDE, "d2", id="spread before fit"),
        pytest.param([node(1), node(2, stored=frozenset({"w"}))], TIGHT_AND_WIDE, "d2", id="weights before fit"),
        pytest.param([node(1), node(2)], [device(2, 2), device(1, 1)], "d1", id="ties by name"),
        pytest.param([], [], "NoDevices", id="an empty fleet"),
        pytest.param([node(1), node(2, state="lost")], FULL_AND_FREE, "InsufficientDeviceMemory", id="the nearest"),
    ],
)  # fmt: skip
def test_ranking(nodes, devices, want):
    assert chosen(nodes, devices, ask(files=frozenset({"w"}))) == [want]


def test_where_it_failed_is_tried_last():
    nodes, devices = [node(1), node(2)], [device(1, 1), device(2, 2)]
    assert chosen(nodes, devices, ask(avoid=uuid.UUID(int=1))) == ["d2"]
    assert chosen(nodes[:1], devices[:1], ask(avoid=uuid.UUID(int=1))) == ["d1"]


def test_what_one_takes_is_gone_for_the_next():
    asks = [ask(number) for number in range(5)]
    assert chosen([node()], [device()], *asks) == ["d1"] * 4 + ["InsufficientDeviceMemory"]
    assert chosen([node(held_millicpus=7000)], [device()], *asks[:3]) == ["d1", "d1", "InsufficientCpu"]


def test_no_domain_gets_more_than_a_quarter_while_others_have_room():
    racks = [node(1, fault_domain="a"), node(2, fault_domain="a"), node(3, fault_domain="b")]
    devices = [device(1, 1, held_bytes=4 * GIB), device(2, 2, held_bytes=3 * GIB), device(3, 3)]
    asks = [ask(number, desired=2) for number in range(3)]
    assert chosen(racks, devices, *asks) == ["d1", "d3", "d1"]  # the tightest, the other rack, then the tightest again
    asks = [ask(number, desired=8) for number in range(3)]
    assert chosen(racks, devices, *asks) == ["d1", "d1", "d3"]  # two of eight may share one


def test_a_gang_is_placed_whole_or_not_at_all():
    nodes = [node(1, millicpus=64_000), node(2, millicpus=64_000)]
    pairs = [gpu(number, 1 + (number > 4), link_domain=f"pair{(number - 1) // 2}") for number in range(1, 7)]
    four = ask(needs={"cuda": need("cuda", 70, 4, 4000, devices=4)})
    two = ask(2, needs={"cuda": need("cuda", 70, 4, 4000, devices=2, linked=True)})
    first, second, third, fourth = plan(snapshot(nodes, pairs), [two, two, four, two])
    assert [[place.device.uuid for place in each.places] for each in (first, second, fourth)] == [
        ["d5", "d6"], ["d1", "d2"], ["d3", "d4"],
    ]  # fmt: skip
    assert (third.places, third.reason) == ((), "NotEnoughDevices")
    assert "Needs 4 devices together; node n1 has 2 that could." in third.message
    assert sum(place.host_bytes for place in first.places) == 4 * GIB


def test_linked_devices_are_of_one_domain():
    apart = [gpu(1, link_domain="a"), gpu(2, link_domain="b"), gpu(3), gpu(4)]
    wanted = ask(needs={"cuda": need("cuda", 10, 4, 4000, devices=2, linked=True)})
    (answer,) = plan(snapshot([node()], apart), [wanted])
    assert answer.reason == "NotEnoughDevices"
    assert "over NVLink" in answer.message
    (loose,) = plan(snapshot([node()], apart), [ask(needs={"cuda": need("cuda", 10, 4, 4000, devices=2)})])
    assert len(loose.places) == 2


def test_stages_are_of_one_product_and_leave_nothing_behind_when_one_is_missing():
    nodes = [node(number, millicpus=64_000) for number in (1, 2, 3)]
    devices = [gpu(1, 1), gpu(2, 2), gpu(3, 3, product="L40S")]
    planner = Planner(snapshot(nodes, devices))
    three = ask(needs={"cuda": need("cuda", 40, 4, 4000, stages=3)})
    two = ask(2, needs={"cuda": need("cuda", 80, 4, 4000, stages=2)})
    refused = planner.decide(three)
    assert (refused.places, refused.reason) == ((), "NotEnoughDevices")
    placed = planner.decide(two)
    assert [(place.stage, place.device.uuid) for place in placed.places] == [(0, "d1"), (1, "d2")]


def test_a_whole_device_is_empty_and_stays_alone():
    devices = [gpu(1, held_bytes=GIB, shared=True), gpu(2)]
    whole = ask(needs={"cuda": need("cuda", 10, whole=True)})
    part = ask(2, needs={"cuda": need("cuda", 10)})
    answers = plan(snapshot([node()], devices), [whole, whole, part, part])
    assert [answer.chosen.uuid if answer.chosen else answer.reason for answer in answers] == [
        "d2", "DeviceTaken", "d1", "d1",
    ]  # fmt: skip


def test_compute_shares_count_beside_bytes():
    half = {"cuda": need("cuda", 1, millis=500)}
    answers = plan(snapshot([node()], [gpu(1)]), [ask(number, needs=half) for number in range(3)])
    assert [answer.reason for answer in answers] == ["", "", "InsufficientCompute"]
    assert "Needs 50 % of a device's compute; H100 has 0 % left." in answers[2].message


def test_a_refusal_explains_itself_per_device_and_says_what_would_help():
    (answer,) = plan(snapshot([node(), node(2, state="cordoned")], [device(held_bytes=7 * GIB), device(2, 2)]), [ask()])
    told = answer.explanation()
    assert [row["reason"] for row in told["devices"]] == ["InsufficientDeviceMemory", "NodeCordoned"]
    assert told["would_fit_if"].startswith("1.00 GiB more were free on Test CPU of node n1")
    assert "None of 2 devices can take it (1 InsufficientDeviceMemory, 1 NodeCordoned)" in answer.message


def random_device(draw, number, nodes):
    kind = draw.choice(["cpu", "cuda", "cuda", "simulated"])
    return device(
        number, draw.choice(nodes).id.int, held_bytes=draw.randrange(8 * GIB), kind=kind,
        state=draw.choice(["healthy"] * 5 + ["suspect"]), present=draw.random() < 0.9,
        exclusive=draw.random() < 0.1, held_millis=draw.choice([0, 0, 400]), shared=True,
        memory_bytes=draw.choice([8, 16]) * GIB, link_domain=draw.choice(["", "a", "b"]),
    )  # fmt: skip


def random_need(draw):
    kind = draw.choice(["cpu", "cuda", "cuda"])
    return need(
        kind, draw.choice([0.5, 1, 2, 4]), draw.choice([1, 8]), draw.choice([500, 2000]),
        millis=draw.choice([0, 0, 300]), devices=draw.choice([1, 1, 2]), linked=draw.random() < 0.3,
        whole=draw.random() < 0.1,
    )  # fmt: skip


def random_ask(draw, number):
    wanted = [random_need(draw) for _ in range(2)]
    return ask(number, needs={each.kind: each for each in wanted}, desired=draw.randrange(1, 9))


def random_fleet(draw):
    states = ["ready", "ready", "ready", "lost", "cordoned"]
    nodes = [
        node(number, state=draw.choice(states), held_millicpus=draw.randrange(8001), fault_domain=draw.choice("ab"))
        for number in range(1, draw.randrange(2, 6))
    ]
    return nodes, [random_device(draw, number, nodes) for number in range(1, draw.randrange(2, 15))]


def random_demand(draw):
    return Demand.seen(next(iter(random_ask(draw, number).needs.values())).shape for number in range(10))


@pytest.mark.parametrize("seed", range(50))
def test_random_fleets_are_never_over_committed_and_plans_repeat(seed):
    draw = random.Random(seed)
    nodes, devices = random_fleet(draw)
    asks = [random_ask(draw, number) for number in range(12)]
    demand = random_demand(draw)
    answers = plan(snapshot(nodes, devices), asks, demand)
    assert plan(snapshot(nodes, devices), asks, demand) == answers
    assert all(answer.chosen or answer.reason for answer in answers)
    placed = [(answer.need, place) for answer in answers for place in answer.places]
    for each in devices:
        mine = [wanted for wanted, place in placed if place.device.id == each.id]
        assert each.held_bytes + sum(wanted.memory_bytes for wanted in mine) <= each.memory_bytes
        assert each.held_millis + sum(wanted.millis for wanted in mine) <= each.millis
        assert not mine or (each.kind != "simulated" and not each.exclusive and each.present)
    for each in nodes:
        cpu = sum(place.millicpus for _wanted, place in placed if place.node.id == each.id)
        assert each.held_millicpus + cpu <= each.millicpus or cpu == 0
        assert cpu == 0 or each.state == "ready"


@pytest.mark.parametrize("seed", range(50))
def test_what_is_scored_as_possible_is_what_the_filters_allow(seed):
    draw = random.Random(1000 + seed)
    nodes, devices = random_fleet(draw)
    board = Board(snapshot(nodes, devices), random_demand(draw))
    for _ in range(10):
        wanted = dataclasses.replace(random_need(draw), devices=1, linked=False)
        for each in board.bins:
            able = [d for d in each.devices if refuse(d, each.node, {wanted.kind: wanted}) is None]
            cost, positions = each.cheapest(wanted)
            assert (cost < NEVER) == bool(able)
            assert all(each.devices[at] in able for at in positions)


@pytest.mark.parametrize("seed", range(20))
def test_scores_kept_from_before_are_those_of_a_fresh_look(seed):
    draw = random.Random(2000 + seed)
    nodes, devices = random_fleet(draw)
    demand, kinds = random_demand(draw), [random_need(draw) for _ in range(4)]
    planner = Planner(snapshot(nodes, devices), demand)
    for number in range(15):
        wanted = draw.choice(kinds)
        now = snapshot(
            [each.node for each in planner.board.bins], [d for each in planner.board.bins for d in each.devices]
        )
        asked = ask(number, needs={wanted.kind: wanted}, deployment_id=uuid.UUID(int=number + 1))
        fresh = Planner(now, demand).decide(asked)
        kept = planner.decide(asked)
        assert [place.device.uuid for place in kept.places] == [place.device.uuid for place in fresh.places]
        assert (kept.reason, kept.message) == (fresh.reason, fresh.message)


def test_everything_that_stands_against_a_device_is_named_and_what_may_pass_is_nearest():
    far = node(2, state="cordoned", name="n2")
    small, cordoned = (
        device(1, memory_bytes=2 * GIB),
        device(2, 2, memory_bytes=9 * GIB, state="suspect", message="hot"),
    )
    (answer,) = plan(snapshot([node(), far], [small, cordoned]), [ask(needs={"cpu": need("cpu", 8, 1, 500)})])
    first, second = answer.devices()
    assert [first["reason"], second["reason"]] == ["NodeCordoned", "InsufficientDeviceMemory"]
    assert first["would_fit_if"] == answer.would_fit_if
    assert answer.would_fit_if.split("; and ")[0] == "node n2 were in service: a platform admin can uncordon it"
    assert second["would_fit_if"].startswith("Test CPU of node n1 had 6.00 GiB more memory")
    (both,) = plan(snapshot([far], [device(2, 2, memory_bytes=2 * GIB)]), [ask(needs={"cpu": need("cpu", 8, 1, 500)})])
    assert "had 6.00 GiB more memory; and node n2 were in service" in both.would_fit_if
