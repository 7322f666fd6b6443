"""Whose turn it is: guarantees, priorities, weights, and what others end for already."""

import uuid

import pytest

from scheduling.plan import plan
from tests.build.fleets import GIB, ask, gpu, need, node, snapshot, tenant


def test_those_within_their_guarantee_come_first_then_who_borrows_least_by_weight():
    tenants = [tenant(1, 0, -1, 10), tenant(2, 40, -1, 0), tenant(3, 0, -1, 10, weight=200)]
    fleet = snapshot([node()], [gpu(1, gib=60)], [], tenants)
    asks = [ask(n, needs={"cuda": need("cuda", 20, 1, 500)}, tenant_id=uuid.UUID(int=n)) for n in (1, 2, 3)]
    assert [each.ask.tenant_id.int for each in plan(fleet, asks)] == [2, 3, 1]
    high = ask(4, needs={"cuda": need("cuda", 20, 1, 500)}, tenant_id=uuid.UUID(int=1), priority=1)
    low = ask(5, needs={"cuda": need("cuda", 20, 1, 500)}, tenant_id=uuid.UUID(int=2), priority=-1)
    turns = [(each.ask.tenant_id.int, each.ask.priority) for each in plan(fleet, [*asks, low, high])]
    assert turns == [(2, 0), (2, -1), (1, 1), (3, 0), (1, 0)]


@pytest.mark.parametrize(
    ("gib", "priority", "turns"),
    [
        pytest.param(50, 0, [20, 30, 50], id="of one priority what is guaranteed first"),
        pytest.param(50, -1, [30, 50, 20], id="a higher one of its own goes before it where there is room for that"),
        pytest.param(70, -1, [70, 20, 30], id="but not where nothing can be done for that"),
    ],
)
def test_what_is_guaranteed_waits_for_nothing_that_cannot_be(gib, priority, turns):
    """Tenant 1 asks for more than is guaranteed to it, and for a part of that; tenant 2 for something important."""

    def wants(number, gib, **facts):
        return ask(number, needs={"cuda": need("cuda", gib, 1, 500)}, deployment_id=uuid.UUID(int=number), **facts)

    mine, other = uuid.UUID(int=1), uuid.UUID(int=2)
    asks = [
        wants(1, gib, tenant_id=mine), wants(2, 20, tenant_id=mine, priority=priority),
        wants(3, 30, tenant_id=other, priority=1),
    ]  # fmt: skip
    fleet = snapshot([node()], [gpu(1, gib=60)], [], [tenant(1, 40, -1, 0), tenant(2, 0, -1, 0)])
    assert [each.ask.needs["cuda"].memory_bytes // GIB for each in plan(fleet, asks)] == turns


@pytest.mark.parametrize(
    ("held", "gib", "making_room", "turns"),
    [
        pytest.param(30, 20, True, [20, 30, 10], id="its tenant first, until it has what is guaranteed"),
        pytest.param(30, 70, True, [70, 10, 30], id="itself, where nothing can be done for what is before it"),
        pytest.param(40, 20, True, [30, 20, 10], id="nobody first who has that: others could take it back"),
        pytest.param(30, 20, False, [30, 20, 10], id="nobody first for whom nobody goes"),
    ],
)
def test_what_is_cleared_for_a_guarantee_is_not_taken_by_others(held, gib, making_room, turns):
    """Tenant 1, which 40 are guaranteed to, asks for two things, others end for the lesser; tenant 2 for something
    important. Else each would take from the other what was made room for, for ever."""

    def wants(number, gib, **facts):
        return ask(number, needs={"cuda": need("cuda", gib, 1, 500)}, deployment_id=uuid.UUID(int=number), **facts)

    mine, other = uuid.UUID(int=1), uuid.UUID(int=2)
    asks = [
        wants(1, gib, tenant_id=mine), wants(2, 10, tenant_id=mine, priority=-1, making_room=making_room),
        wants(3, 30, tenant_id=other, priority=1),
    ]  # fmt: skip
    fleet = snapshot([node()], [gpu(1, gib=60)], [], [tenant(1, 40, -1, held), tenant(2, 0, -1, 0)])
    assert [each.ask.needs["cuda"].memory_bytes // GIB for each in plan(fleet, asks)] == turns
