"""Replicas over several nodes: room is made for all of one or for none of it, and one that goes goes as a whole."""

import uuid

import pytest

from scheduling.plan import MAX_VICTIMS, plan
from scheduling.relief import MAX_FOR_ONE
from scheduling.snapshot import Holding
from tests.build.fleets import GIB, ask, gpu, holder, need, node, snapshot, tenant

PIPELINE = {"cuda": need("cuda", 40, 1, 1000, stages=2)}
ONE = {"cuda": need("cuda", 40, 1, 1000)}
ALL_MINE = [tenant(1, -1, -1, 80)]


def on(*devices, gib=80):
    """The parts of a replica, one on each of the devices."""
    return tuple(
        Holding(device_id=uuid.UUID(int=1000 + number), memory_bytes=gib * GIB, host_bytes=GIB, millicpus=500)
        for number in devices
    )


def fleet(holders, tenants, nodes=3, **facts):
    """Nodes with one GPU each, whose held bytes are those of the holders."""
    held = {}
    for each in holders:
        for part in each.holdings:
            held[part.device_id.int - 1000] = held.get(part.device_id.int - 1000, 0) + part.memory_bytes
    devices = [gpu(n, n, held_bytes=held.get(n, 0), shared=n in held) for n in range(1, nodes + 1)]
    states = facts.pop("states", {})
    return snapshot(
        [node(n, held_millicpus=500 * (n in held), state=states.get(n, "ready")) for n in range(1, nodes + 1)],
        devices, holders, tenants,
    )  # fmt: skip


def relieved(holders, tenants, needs=PIPELINE, **facts):
    (answer,) = plan(fleet(holders, tenants, **facts), [ask(needs=needs, tenant_id=uuid.UUID(int=1), priority=1)])
    assert answer.places == ()
    if answer.relief is None:
        return None
    assert answer.relief.moves == ()
    return gone(answer)


def gone(answer):
    return sorted(each.label for each in answer.relief.victims), sorted({each.bin for each in answer.relief.spots})


GANG = holder(9, 1, 80, holdings=on(1, 2))
KEPT = holder(3, 3, 80, priority=1)
THEIRS = [holder(number, number, 80, tenant_number=2) for number in (1, 2)]


@pytest.mark.parametrize(
    ("holders", "tenants", "needs", "want"),
    [
        pytest.param([holder(n, n, 80) for n in (1, 2, 3)], ALL_MINE, PIPELINE, (["r1", "r2"], [0, 1]),
                     id="one on each of two nodes"),
        pytest.param([holder(1, 1, 80), holder(2, 2, 80)], ALL_MINE, PIPELINE, (["r1"], [0, 2]),
                     id="one where a node is free"),
        pytest.param([holder(1, 1, 80), holder(2, 2, 80, priority=1), KEPT], ALL_MINE, PIPELINE,
                     None, id="nobody where it is not enough for all"),
        pytest.param([*THEIRS, KEPT],
                     [tenant(1, -1, -1, 80), tenant(2, 80, -1, 160)], PIPELINE, None,
                     id="never a guarantee, counted over all nodes"),
        pytest.param([*THEIRS, KEPT],
                     [tenant(1, -1, -1, 80), tenant(2, 0, -1, 160)], PIPELINE, (["r1", "r2"], [0, 1]),
                     id="what is borrowed on several nodes"),
        pytest.param([GANG, KEPT], ALL_MINE, ONE, (["r9"], [0]), id="all of one over two nodes"),
        pytest.param([GANG, holder(3, 3, 60)], ALL_MINE, ONE, (["r3"], [2]), id="rather a smaller one"),
        pytest.param([GANG, holder(3, 3, 80)], ALL_MINE, PIPELINE, (["r9"], [0, 1]), id="two for two"),
        pytest.param([holder(9, 1, 80, holdings=on(1, 2), tenant_number=2), KEPT],
                     [tenant(1, -1, -1, 80), tenant(2, 1, -1, 160)], ONE, None,
                     id="not one over two of which a part is guaranteed"),
        pytest.param([holder(9, 1, 80, holdings=on(1, 2), leaving=True, endable=False), holder(3, 3, 80)], ALL_MINE,
                     PIPELINE, ([], [0, 1]), id="what leaves over two nodes is waited for"),
    ],
)  # fmt: skip
def test_who_goes_over_nodes(holders, tenants, needs, want):
    assert relieved(holders, tenants, needs) == want


def test_of_one_with_a_part_on_a_lost_node_the_rest_is_freed():
    held = [holder(9, 1, 80, holdings=on(1, 2), stranded=True), KEPT]
    assert relieved(held, ALL_MINE, ONE, states={2: "lost"}) == (["r9"], [0])
    assert relieved(held, ALL_MINE, PIPELINE, states={2: "lost"}) is None
    assert relieved(held, ALL_MINE, ONE, states={1: "lost", 2: "lost"}) is None
    assert relieved(held, ALL_MINE, ONE) is None  # its node is back: it serves again soon
    assert relieved([GANG, KEPT], ALL_MINE, ONE, states={2: "lost"}) is None  # silent, and not declared lost


def test_a_successor_takes_what_is_left_of_it_before_others_go():
    beside = [holder(3, 3, 80), holder(4, 4, 80)]
    held = [holder(9, 1, 80, holdings=on(1, 2), priority=1, stranded=True), *beside]
    theirs = ask(needs=ONE, tenant_id=uuid.UUID(int=1), deployment_id=held[0].deployment_id, priority=1)
    (answer,) = plan(fleet(held, ALL_MINE, nodes=4, states={2: "lost"}), [theirs])
    assert gone(answer) == (["r9"], [0])
    assert answer.relief.moves == ()  # it is the successor
    (answer,) = plan(fleet([GANG, *beside], ALL_MINE, nodes=4), [theirs])
    assert gone(answer) == (["r3"], [2])


#: Two stages of 40 GiB on two nodes with 80; spare nodes have 48 GiB.
LOW = holder(9, 1, 40, holdings=on(1, 2, gib=40), stages=2)
FULL = {"cuda": need("cuda", 60, 1, 1000)}


def with_spares(spares, holders=(LOW,), tenants=ALL_MINE, asked=FULL, **facts):
    """What is asked for needs more than a spare device has, and more than is left beside those who are here."""
    devices = [gpu(n, n, held_bytes=40 * GIB, shared=True) for n in (1, 2)]
    devices += [gpu(n, n, gib=48, **facts) for n in range(3, 3 + spares)]
    nodes = [node(n) for n in range(1, 3 + spares)]
    wanted = ask(needs=asked, tenant_id=uuid.UUID(int=1), priority=1)
    (answer,) = plan(snapshot(nodes, devices, holders, tenants), [wanted])
    return [each.label for each in answer.relief.evicts], [each.label for each in answer.relief.moves]


@pytest.mark.parametrize(
    ("spares", "facts", "want"),
    [
        pytest.param(2, {}, ([], ["r9"]), id="all stages find places elsewhere"),
        pytest.param(1, {}, ([], ["r9"]), id="or one of them beside what it has"),
        pytest.param(0, {}, (["r9"], []), id="nowhere"),
        pytest.param(1, {"asked": {"cuda": need("cuda", 60, 1, 1000, stages=2)}}, (["r9"], []), id="not a part of it"),
        pytest.param(2, {"asked": {"cuda": need("cuda", 60, 1, 1000, stages=2)}}, ([], ["r9"]), id="two for two"),
        pytest.param(2, {"product": "L40S"}, (["r9"], []), id="not on other devices than it was planned for"),
        pytest.param(2, {"tenants": [tenant(1, -1, 150, 80)]}, ([], ["r9"]), id="its successor needs no more quota"),
    ],
)  # fmt: skip
def test_one_over_two_nodes_is_moved_where_all_of_it_finds_places(spares, facts, want):
    assert with_spares(spares, **facts) == want


def test_groups_that_are_linked_find_linked_ones():
    held = [holder(9, 1, 40, holdings=on(1, 2, gib=40))]
    devices = [gpu(n, 1, held_bytes=40 * GIB, shared=True, link_domain="a") for n in (1, 2)]
    asked = ask(needs={"cuda": need("cuda", 60, 1, 1000)}, tenant_id=uuid.UUID(int=1), priority=1)
    for domains, moved in ((("b", "b"), ["r9"]), (("b", "c"), []), (("", ""), [])):
        spares = [gpu(n, 2, gib=48, link_domain=domain) for n, domain in zip((3, 4), domains, strict=True)]
        (answer,) = plan(snapshot([node(1), node(2)], [*devices, *spares], held, ALL_MINE), [asked])
        assert [each.label for each in answer.relief.moves] == moved


@pytest.mark.parametrize(("where", "moved"), [("xxyy", ["r9"]), ("xyxy", ["r9"]), ("xyyy", []), ("xyzu", [])])
def test_stages_of_pairs_in_one_group_find_whole_pairs(where, moved):
    held = [holder(9, 1, 40, holdings=on(1, 2, 3, 4, gib=40))]
    devices = [gpu(n, 1, held_bytes=40 * GIB, shared=True, link_domain="aabb"[n - 1]) for n in (1, 2, 3, 4)]
    spares = [gpu(n, 2, gib=48, link_domain=domain) for n, domain in zip((5, 6, 7, 8), where, strict=True)]
    asked = ask(needs={"cuda": need("cuda", 60, 1, 1000)}, tenant_id=uuid.UUID(int=1), priority=1)
    (answer,) = plan(snapshot([node(1), node(2)], [*devices, *spares], held, ALL_MINE), [asked])
    assert [each.label for each in answer.relief.moves] == moved


def test_stages_are_made_room_for_on_devices_of_one_product():
    held = [holder(n, n, 80) for n in (1, 2, 3)]
    devices = [gpu(n, n, held_bytes=80 * GIB, shared=True, product="H100" if n != 2 else "H200") for n in (1, 2, 3)]
    asked = ask(needs=PIPELINE, tenant_id=uuid.UUID(int=1), priority=1)
    (answer,) = plan(snapshot([node(n) for n in (1, 2, 3)], devices, held, ALL_MINE), [asked])
    assert sorted(each.label for each in answer.relief.victims) == ["r1", "r3"]


def test_what_is_cleared_on_all_nodes_is_kept_for_it():
    held = [holder(n, n, 80) for n in (1, 2)]
    high = ask(1, needs=PIPELINE, tenant_id=uuid.UUID(int=1), priority=1)
    low = ask(2, needs={"cuda": need("cuda", 20, 1, 500)}, tenant_id=uuid.UUID(int=1))
    first, second = plan(fleet(held, ALL_MINE, nodes=2), [low, high])
    assert (first.ask, len(first.relief.victims)) == (high, 2)
    assert (second.ask, second.places) == (low, ())


def test_one_that_needs_many_to_go_gets_its_room_alone():
    parts = [holder(n * 100 + at, n, 4) for n in (1, 2) for at in range(20)]
    asked = [ask(number, needs=PIPELINE, tenant_id=uuid.UUID(int=1), priority=1) for number in range(2)]
    nodes = [node(n, held_millicpus=0) for n in (1, 2, 3, 4)]
    parts += [holder(n * 100 + at, n, 4) for n in (3, 4) for at in range(20)]
    devices = [gpu(n, n, held_bytes=80 * GIB, shared=True) for n in (1, 2, 3, 4)]
    first, second = plan(snapshot(nodes, devices, parts, ALL_MINE), asked)
    assert MAX_VICTIMS < len(first.relief.victims) == 20 <= MAX_FOR_ONE
    assert second.relief is None
