"""Who gives back what a group of tenants lacks."""

import uuid

import pytest

from scheduling.plan import plan
from scheduling.snapshot import Holding
from tests.build.fleets import GIB, ask, gpu, group, holder, need, node, snapshot, tenant

WHOLE = {"cuda": need("cuda", 70, 1, 500, whole=True)}


IN_GROUP = uuid.UUID(int=70)


def member(number, guaranteed, held, **facts):
    """A tenant of the group, with so many GPUs."""
    return tenant(
        number, -1, -1, int(70 * held), guaranteed_millis=int(guaranteed * 1000), held_millis=int(held * 1000),
        **{"group": IN_GROUP, **facts},
    )  # fmt: skip


def whole(number, of, **facts):
    """A replica with a whole GPU."""
    holding = Holding(device_id=uuid.UUID(int=1000 + number), memory_bytes=70 * GIB, exclusive=True)
    return holder(number, number, 70, tenant_number=of, gpu_millis=1000, holdings=(holding,), **facts)


def of_group(holders, tenants, limit=4, gpus=8, asks=((1, 1),)):
    """``gpus`` of one node, and a group with ``limit`` of them; ``asks`` say which tenant wants how many replicas."""
    taken = {each.holdings[0].device_id for each in holders}
    devices = [gpu(n, gpu_millis=1000) for n in range(1, gpus + 1)]
    devices = [
        gpu(n, gpu_millis=1000, held_bytes=70 * GIB, exclusive=True) if device.id in taken else device
        for n, device in enumerate(devices, 1)
    ]  # fmt: skip
    wanted = [
        ask(10 * of + n, needs=WHOLE, tenant_id=uuid.UUID(int=of)) for of, count in asks for n in range(count)
    ]  # fmt: skip
    groups = [group(70, tenants, limit_millis=int(limit * 1000))]
    return plan(snapshot([node(millicpus=99_000)], devices, holders, tenants, groups), wanted)


def gone_for(answers):
    return [
        sorted(each.label for each in answer.relief.victims) if answer.relief else answer.reason for answer in answers
    ]


THREE = [whole(n, 2) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("case", "want"),
    [
        pytest.param({"holders": [*THREE, whole(4, 3)], "tenants": [member(1, 2, 0), member(2, 1, 3), member(3, 1, 1)]},
                     [["r1"]], id="who has borrowed in the group, though GPUs are free"),
        pytest.param({"holders": [*THREE, whole(4, 3)], "tenants": [member(1, 0, 0), member(2, 1, 3), member(3, 1, 1)]},
                     ["QuotaExceeded"], id="nobody for what is not guaranteed"),
        pytest.param({"holders": [*THREE, whole(4, 3), whole(5, 3)], "limit": 5,
                      "tenants": [member(1, 1, 0), member(2, 1, 3, weight=300), member(3, 0, 2)]},
                     [["r4"]], id="who is furthest above by weight"),
        pytest.param({"holders": [whole(1, 2, priority=2), whole(2, 2), whole(3, 2, priority=1), whole(4, 3)],
                      "tenants": [member(1, 1, 0), member(2, 1, 3), member(3, 0, 1)]},
                     [["r2"]], id="of its replicas the lowest priority"),
        pytest.param({"holders": [*THREE, whole(4, 2)], "tenants": [member(1, 1, 0), member(2, 4, 4)]},
                     ["QuotaExceeded"], id="nothing of what is guaranteed"),
        pytest.param({"holders": [*THREE, whole(4, 2), whole(5, 9), whole(6, 9)],
                      "tenants": [member(1, 1, 0), member(2, 4, 4), member(9, 0, 2, group=None)]},
                     ["QuotaExceeded"], id="nobody of another group"),
        pytest.param({"holders": [*THREE, whole(4, 2), *(whole(n, 9) for n in (5, 6, 7, 8))],
                      "tenants": [member(1, 1, 0), member(2, 3, 4), member(9, 0, 4, group=None)]},
                     [["r1"]], id="one that gives back both, where GPUs are short too"),
        pytest.param({"holders": [whole(n, 2) for n in (1, 2, 3, 4)], "limit": 3, "asks": ((1, 1),),
                      "tenants": [member(1, 1, 0), member(2, 1, 4)]},
                     [["r1", "r2"]], id="as many as are above a limit that was lowered"),
        pytest.param({"holders": [*THREE, whole(4, 2)], "asks": ((1, 3),),
                      "tenants": [member(1, 3, 0), member(2, 2, 4)]},
                     [["r1"], ["r2"], "QuotaExceeded"], id="each ask another, and a guarantee holds for all together"),
        pytest.param({"holders": [whole(1, 2, leaving=True, endable=False), whole(2, 2), whole(3, 2), whole(4, 2)],
                      "asks": ((1, 2),), "tenants": [member(1, 2, 0), member(2, 1, 4, passing_millis=1000)]},
                     [[], ["r2"]], id="what leaves is waited for once"),
        pytest.param({"holders": [*THREE, whole(4, 2)], "asks": ((2, 1), (1, 1)),
                      "tenants": [member(1, 1, 0), member(2, 1, 4)]},
                     [["r1"], "QuotaExceeded"], id="what ends for one is not borrowed by the next"),
        pytest.param({"holders": THREE, "asks": ((1, 2),), "tenants": [member(1, 1, 0), member(2, 1, 3)]},
                     ["", "QuotaExceeded"], id="nobody while there is room"),
    ],
)  # fmt: skip
def test_who_goes_where_a_group_is_full(case, want):
    assert gone_for(of_group(**case)) == want


def test_what_is_given_back_for_a_group_is_ended_not_moved_and_others_may_wait_for_its_place():
    """Moved it would hold as much of the group elsewhere."""
    tenants = [member(1, 1, 0), member(2, 0, 1), member(9, 0, 0, group=None)]
    first, second = of_group([whole(1, 2)], tenants, limit=1, gpus=2, asks=((1, 1), (9, 1)))
    assert [each.label for each in first.relief.evicts] == ["r1"]
    assert first.relief.moves == ()
    assert first.message.startswith("The quota on GPUs is 0; 0 are held and 1 more are asked for.")
    assert second.relief.victims == ()
    assert [each.label for each in second.relief.waits] == ["r1"]


def test_a_large_one_goes_where_a_small_one_before_it_would_leave_too_little():
    """A whole GPU is above the guarantee: half of it, though it is the less important, would keep the rest there."""
    half = holder(9, 8, 20, tenant_number=2, gpu_millis=500)
    tenants = [member(1, 1, 0), member(2, 0.5, 1.5), member(3, 1, 1)]
    assert gone_for(of_group([half, whole(1, 2, priority=1), whole(3, 3)], tenants, limit=2.5)) == [["r1"]]


def test_where_a_group_and_gpus_are_short_what_leaves_serves_both():
    """One of the group for both, however important, before one for each; one for each where there is no such."""
    tenants = [member(1, 1, 0), member(2, 0, 1), member(9, 0, 1, group=None)]
    holders = [whole(1, 2, priority=2), whole(2, 9)]
    assert gone_for(of_group(holders, tenants, limit=1, gpus=2)) == [["r1"]]
    nodes = [node(1, millicpus=99_000), node(2, state="cordoned", millicpus=99_000)]
    devices = [gpu(n, on, gpu_millis=1000, held_bytes=70 * GIB, exclusive=True) for n, on in ((1, 2), (2, 1))]
    fleet = snapshot(nodes, devices, holders, tenants, [group(70, tenants, limit_millis=1000)])
    (answer,) = plan(fleet, [ask(needs=WHOLE, tenant_id=uuid.UUID(int=1))])
    assert gone_for([answer]) == [["r1", "r2"]]
    assert [each.label for each in answer.relief.for_group] == ["r1"]


def test_what_is_placed_counts_for_all_tenants_of_a_group():
    """Otherwise the commit of the second would refuse what its plan gave it."""
    tenants = [member(1, 0, 1), member(2, 1, 1)]
    answers = of_group([whole(1, 1), whole(2, 2)], tenants, limit=3, asks=((1, 1), (2, 1)))
    assert gone_for(answers) == ["", "QuotaExceeded"]
