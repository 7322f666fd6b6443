"""What the product of a GPU is worth to those who can use no other: who goes where, and nobody is refused for it."""

import dataclasses
import random
import uuid

import pytest

from scheduling.board import Board
from scheduling.demand import MAX_SHAPES, Demand, Shape
from scheduling.plan import Planner, plan
from scheduling.scarcity import MAX_SETS, Scarcity
from scheduling.worth import PRICE_WEIGHT, WHOLE
from tests.build.fleets import GIB, ask, gpu, need, node, snapshot

ANY = need("cuda", 80, 1, 1000)
PLAIN = Shape("cuda", 1, 80 * GIB, 0, 1000)


def named(*products, devices=1):
    return dataclasses.replace(PLAIN, products=products, devices=devices)


def on(*products):
    return dataclasses.replace(ANY, products=frozenset(products))


#: One request in four is for the T4.
MIX = Demand.of({PLAIN: 3, named("T4"): 1})


def fleet(*products):
    """One GPU a node, in the order of their names."""
    nodes = [node(number) for number in range(1, len(products) + 1)]
    return snapshot(nodes, [gpu(number, number, product=name) for number, name in enumerate(products, 1)])


def chosen(planner, *needs):
    asked = [ask(number, needs={each.kind: each}, deployment_id=uuid.uuid4()) for number, each in enumerate(needs)]
    return [answer.chosen.product if answer.chosen else answer.reason for answer in map(planner.decide, asked)]


def test_who_may_go_anywhere_leaves_the_product_that_others_name():
    two = fleet("T4", "V100")
    assert chosen(Planner(two), ANY) == ["T4"]  # nothing is named: the first by name
    assert chosen(Planner(two, Demand.of({PLAIN: 4})), ANY) == ["T4"]
    assert chosen(Planner(two, MIX), ANY) == ["V100"]


def test_nobody_is_refused_while_there_is_room():
    assert chosen(Planner(fleet("T4", "V100"), MIX), ANY, ANY, ANY) == ["V100", "T4", "InsufficientDeviceMemory"]
    assert chosen(Planner(fleet("T4", "V100"), MIX), ANY, on("T4"), on("T4")) == [
        "V100",
        "T4",
        "InsufficientDeviceMemory",
    ]


def test_of_the_products_that_one_may_use_it_takes_the_one_that_others_name_least():
    mix = Demand.of({PLAIN: 3, named("A10"): 2, named("T4"): 1})
    assert chosen(Planner(fleet("A10", "T4", "V100"), mix), on("A10", "T4")) == ["T4"]
    mix = Demand.of({PLAIN: 3, named("A10"): 1, named("T4"): 2})
    assert chosen(Planner(fleet("A10", "T4", "V100"), mix), on("A10", "T4")) == ["A10"]


def test_among_equals_the_first_by_name_and_plenty_costs_nothing():
    """A hundred T4 and one request in a hundred for them: taking one is no loss, so packing and names decide."""
    rare = Demand.of({PLAIN: 99, named("T4"): 1})
    plenty = fleet(*["T4"] * 100, "V100")
    assert Board(plenty, rare).scarcity().costs(ANY) == {}
    assert chosen(Planner(plenty, rare), ANY) == ["T4"]


def test_of_a_node_with_several_products_the_device_is_chosen_too():
    mixed = snapshot([node()], [gpu(1, product="T4"), gpu(2, product="V100")])
    assert chosen(Planner(mixed, MIX), ANY, ANY) == ["V100", "T4"]
    pair = dataclasses.replace(ANY, devices=2)
    assert chosen(Planner(mixed, MIX), pair) == ["T4"]  # both of them
    assert chosen(Planner(mixed, MIX), on("T4")) == ["T4"]


def test_a_replica_goes_where_its_weights_are_only_while_that_costs_little():
    there = snapshot([node(1, stored=frozenset({"w"})), node(2)], [gpu(1, product="T4"), gpu(2, 2, product="V100")])
    asked = ask(needs={"cuda": ANY}, files=frozenset({"w"}))
    assert plan(there, [asked])[0].chosen.product == "T4"
    assert plan(there, [asked], MIX)[0].chosen.product == "V100"


def costs(mix, *products):
    return Board(fleet(*products), mix).scarcity().costs(ANY)


def test_the_cost_grows_as_what_is_named_runs_out_and_is_never_more_than_all_of_it():
    found = [costs(MIX, *["T4"] * count, *["V100"] * 20) for count in range(12, 0, -1)]
    of_t4 = [each.get("T4", 0.0) for each in found]
    assert of_t4 == sorted(of_t4)
    assert 0 < of_t4[0] < of_t4[-1] <= (1 + PRICE_WEIGHT) * WHOLE
    assert of_t4[-1] > 0.8 * (1 + PRICE_WEIGHT) * WHOLE  # one is free and five are expected
    assert all(each.get("V100", 0.0) == 0 for each in found)


def test_sets_that_overlap_are_judged_together():
    """A or B, and B or C: each pair alone has enough, all three together do not."""
    mix = Demand.of({PLAIN: 3, named("A", "B"): 3, named("B", "C"): 3})
    all_three = costs(mix, *["A", "B", "C"] * 8, *["D"] * 16)
    one_pair = costs(dataclasses.replace(mix, named=mix.named[:1]), *["A", "B", "C"] * 8, *["D"] * 16)
    assert all_three["A"] == all_three["B"] == all_three["C"] > 2 * max(one_pair.values(), default=0.0)
    assert all_three["D"] == 0


def test_demand_for_products_is_a_part_of_all_requests_and_bounded():
    assert MIX.weights == Demand.of({PLAIN: 4}).weights  # what a free part is worth knows no products
    assert MIX.named == ((dataclasses.replace(named("T4"), millicpus=0), 0.25),)
    assert MIX.shares() == [(PLAIN, 1.0)]
    names = [f"p{number:03}" for number in range(200)]
    wide = Demand.of({named(*names[at : at + 2]): 1 for at in range(199)} | {named(*names): 1})
    assert len(wide.named) == MAX_SHAPES
    assert len(Scarcity(wide, Board(fleet(*names), wide).bins)._sets) == MAX_SETS


PRODUCTS = ("T4", "V100", "A10")


def random_need(draw):
    some = draw.choice([(), (), ("T4",), ("A10", "V100")])
    return dataclasses.replace(
        need("cuda", draw.choice([5, 20, 40]), 1, draw.choice([500, 2000])),
        products=frozenset(some), devices=draw.choice([1, 1, 2]), millis=draw.choice([0, 300]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_random_fleets_keep_count_refuse_nobody_for_it_and_repeat(seed):
    draw = random.Random(seed)
    nodes = [node(number, millicpus=draw.choice([4000, 16_000])) for number in range(1, draw.randrange(3, 7))]
    devices = [
        gpu(number, draw.choice(nodes).id.int, draw.choice([40, 80]), product=draw.choice(PRODUCTS), shared=True,
            held_bytes=draw.choice([0, 0, 10 * GIB]), state=draw.choice(["healthy"] * 5 + ["suspect"]))
        for number in range(1, draw.randrange(4, 16))
    ]  # fmt: skip
    kinds = [random_need(draw) for _ in range(5)]
    mix = Demand.seen(draw.choice(kinds).shape for _ in range(20))
    planner, beside = Planner(snapshot(nodes, devices), mix), Planner(snapshot(nodes, devices), mix)
    for number in range(20):
        wanted = draw.choice(kinds)
        asked = ask(number, needs={"cuda": wanted}, deployment_id=uuid.UUID(int=number + 1))
        board = planner.board
        now = snapshot([each.node for each in board.bins], [d for each in board.bins for d in each.devices])
        assert board.scarcity().costs(wanted) == Board(now, mix).scarcity().costs(wanted)
        fits = any(each.can(wanted) for each in board.bins)
        answer, fresh = planner.decide(asked), Planner(now, mix).decide(asked)
        assert bool(answer.places) == fits
        assert all(not wanted.products or place.device.product in wanted.products for place in answer.places)
        assert answer.places == fresh.places == beside.decide(asked).places
