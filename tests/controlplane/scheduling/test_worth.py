"""What free parts are worth: prices of sizes, what CPU strands, and what follows for placement."""

import itertools

import pytest

from scheduling.demand import Demand, Shape
from scheduling.plan import plan
from scheduling.prices import worth
from scheduling.worth import Worth, expected_shortage
from tests.build.fleets import GIB, ask, gpu, need, node, snapshot


def shape(part, millicpus=4000, devices=1):
    return Shape("cuda", devices, 0, part, millicpus)


def test_prices_of_two_sizes_that_fill_a_device_together_add_up_to_it():
    free = worth({60: 1.0, 40: 1.0})
    assert free[100] == 1
    assert free[60] + free[40] == pytest.approx(1)
    assert free[39] == 0


def test_what_only_fits_into_leftovers_is_worth_nothing():
    free = worth({81: 10.0, 47: 10.0, 16: 1.0})  # a leftover of 19 beside every 81
    assert (free[16], free[19], free[47], free[81]) == (0, 0, pytest.approx(0.5), pytest.approx(1))


def test_without_sizes_every_part_is_worth_its_share():
    assert worth({}) == tuple(unit / 100 for unit in range(101))
    assert worth({100: 5.0}) == worth({})


def test_worth_never_falls_with_more_free():
    free = worth({17: 3.0, 23: 2.0, 31: 4.0, 55: 1.0, 8: 0.5})
    assert all(less <= more + 1e-9 for less, more in itertools.pairwise(free))


def test_shortage_of_cpu():
    assert expected_shortage(0, 0) == 0
    assert expected_shortage(-3, 0) == 3
    assert expected_shortage(0, 1) == pytest.approx(0.3989, abs=1e-4)
    assert expected_shortage(1000, 1) == 0


def test_a_part_counts_as_often_as_it_can_be_used():
    table = Worth(Demand.of({shape(1000): 3, shape(500): 1}), "cuda", 80 * GIB)
    rich, poor = table.parts(8000), table.parts(1000)
    assert rich.of(1000) > rich.of(999) > rich.of(499)
    assert poor.of(1000) - poor.of(0) < rich.of(1000) - rich.of(0)
    assert table.parts(8000).gangs(8) == 0


def test_demand_forgets_the_rarest_and_adds_up_to_one():
    many = Demand.of({shape(part): part for part in range(1, 300)})
    assert len(many.weights) == 128
    assert sum(weight for _shape, weight in many.weights) == pytest.approx(1)
    assert min(kept.millis for kept, _weight in many.weights) == 172


def where(fleet, wanted, demand):
    (answer,) = plan(fleet, [ask(needs={wanted.kind: wanted})], demand)
    return answer.chosen.uuid


def test_the_part_that_completes_a_pattern_is_kept_for_it():
    """40 % fits beside 60 % exactly; beside 55 % it would waste 5, so the 55 % keeps its 45 % for what is asked for."""
    demand = Demand.of({shape(600): 10, shape(400): 10, shape(450): 10, shape(550): 10})
    devices = [gpu(1, held_bytes=55 * GIB, gib=100), gpu(2, held_bytes=60 * GIB, gib=100)]
    fleet = snapshot([node(millicpus=64_000)], devices)
    assert where(fleet, need("cuda", 40, 1, 4000), demand) == "d2"
    assert where(fleet, need("cuda", 45, 1, 4000), demand) == "d1"


def test_work_that_needs_much_cpu_goes_where_cpu_is_not_what_gpus_wait_for():
    demand = Demand.of({shape(1000, 12_000): 10})
    poor, rich = node(1, millicpus=24_000), node(2, millicpus=96_000)
    fleet = snapshot([poor, rich], [gpu(1, 1), gpu(2, 1), gpu(3, 2), gpu(4, 2)])
    assert where(fleet, need("cuda", 80, 1, 20_000), demand) == "d3"
    assert where(fleet, need("cuda", 80, 1, 2_000), demand) == "d1"


def test_big_holes_stay_whole_for_those_who_want_several():
    demand = Demand.of({shape(1000): 10, shape(1000, 16_000, devices=4): 5})
    nodes = [node(1, millicpus=64_000), node(2, millicpus=64_000)]
    devices = [gpu(number, 1) for number in range(1, 5)] + [gpu(number, 2) for number in range(5, 8)]
    assert where(snapshot(nodes, devices), need("cuda", 80, 1, 4000), demand) == "d5"
