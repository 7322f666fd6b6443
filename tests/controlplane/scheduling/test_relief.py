"""Who may be taken away for whom."""

import uuid

import pytest

from scheduling.plan import MAX_VICTIMS, plan
from scheduling.snapshot import Holding
from tests.build.fleets import GIB, ask, gpu, holder, need, node, snapshot, tenant

NEED = {"cuda": need("cuda", 40, 1, 1000)}


def relieved(holders, tenants, nodes=None, devices=None, **facts):
    nodes = nodes or [node(held_millicpus=7000)]
    devices = devices or [gpu(1, held_bytes=78 * GIB, shared=True)]
    wanted = ask(**{"needs": NEED, "tenant_id": uuid.UUID(int=1), "priority": 1, **facts})
    (answer,) = plan(snapshot(nodes, devices, holders, tenants), [wanted])
    assert answer.places == ()
    if answer.relief is None:
        return None
    return [each.label for each in answer.relief.evicts], [each.label for each in answer.relief.moves]


FREE_TENANTS = [tenant(1, -1, -1, 0), tenant(2, 0, -1, 80)]


@pytest.mark.parametrize(
    ("holders", "tenants", "want"),
    [
        pytest.param([holder(1, 1, 39)], [tenant(1, -1, -1, 39)], (["r1"], []), id="lower priority of its own tenant"),
        pytest.param([holder(1, 1, 39, priority=1)], [tenant(1, -1, -1, 39)], None, id="not its equals"),
        pytest.param([holder(1, 1, 39, priority=2)], [tenant(1, -1, -1, 39)], None, id="not its betters"),
        pytest.param([holder(1, 1, 39, tenant_number=2)], [tenant(1, -1, -1, 0), tenant(2, 39, -1, 39)], None,
                     id="never what is guaranteed to another"),
        pytest.param([holder(1, 1, 39, tenant_number=2)], [tenant(1, -1, -1, 0), tenant(2, -1, -1, 39)], None,
                     id="without a limit all is guaranteed"),
        pytest.param([holder(1, 1, 39, tenant_number=2)], [tenant(1, -1, -1, 0), tenant(2, 10, -1, 50)], (["r1"], []),
                     id="what another borrowed, by priority"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=1)],
                     [tenant(1, 100, -1, 0), tenant(2, 0, -1, 39)], (["r1"], []), id="reclaim within the guarantee"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=1)],
                     [tenant(1, 10, -1, 0), tenant(2, 0, -1, 39)], None, id="no reclaim for what is borrowed itself"),
        pytest.param([holder(1, 1, 20), holder(2, 1, 18), holder(3, 1, 39)], [tenant(1, -1, -1, 77)], (["r3"], []),
                     id="one instead of two"),
        pytest.param([holder(1, 1, 20), holder(2, 1, 18)], [tenant(1, -1, -1, 38)], (["r1", "r2"], []),
                     id="two where one is not enough"),
        pytest.param([holder(1, 1, 10)], [tenant(1, -1, -1, 10)], None, id="nothing when it would not help"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=1)],
                     [tenant(1, 0, -1, 0), tenant(2, 0, -1, 120)], (["r1"], []), id="from who borrows more"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=1)],
                     [tenant(1, 0, -1, 0), tenant(2, 0, -1, 120, weight=900)], None, id="more, but by weight less"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=1)],
                     [tenant(1, 0, -1, 0, weight=0), tenant(2, 0, -1, 120)], None, id="nothing above without a weight"),
        pytest.param([holder(1, 1, 39, tenant_number=2, gpu_millis=500)],
                     [tenant(1, -1, -1, 0), tenant(2, 0, -1, 39, guaranteed_millis=500, held_millis=500)], None,
                     id="never the guaranteed GPUs of another"),
        pytest.param([holder(1, 1, 39, tenant_number=2, gpu_millis=500)],
                     [tenant(1, -1, -1, 0), tenant(2, -1, -1, 39, guaranteed_millis=0, held_millis=500)], (["r1"], []),
                     id="GPUs above the guarantee"),
        pytest.param([holder(1, 1, 39, tenant_number=2, gpu_millis=500)],
                     [tenant(1, -1, -1, 0), tenant(2, 320, -1, 39, guaranteed_millis=0, held_millis=500)], (["r1"], []),
                     id="GPUs above the guarantee, with less memory than is guaranteed"),
        pytest.param([holder(1, 1, 39, tenant_number=2)],
                     [tenant(1, -1, -1, 0), tenant(2, 10, -1, 39, guaranteed_millis=0, held_millis=9000)], None,
                     id="GPUs above the guarantee: nothing of what is on none"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=2)],
                     [tenant(1, 100, -1, 0), tenant(2, 0, -1, 39)], (["r1"], []),
                     id="what is guaranteed, whatever priority another gives itself"),
        pytest.param([holder(1, 1, 39, tenant_number=2, priority=2)],
                     [tenant(1, 10, -1, 0), tenant(2, 0, -1, 390)], None, id="above it, not from a higher priority"),
        pytest.param([holder(1, 1, 39, leaving=True, endable=False), holder(2, 1, 39)], [tenant(1, -1, -1, 78)],
                     ([], []), id="nobody where waiting is enough"),
        pytest.param([holder(1, 1, 10, leaving=True, endable=False), holder(2, 1, 29)], [tenant(1, -1, -1, 39)],
                     (["r2"], []), id="as few as needed beside what leaves anyway"),
        pytest.param([holder(1, 1, 39, endable=False)], [tenant(1, -1, -1, 39)], None, id="not what is ending already"),
    ],
)  # fmt: skip
def test_who_goes(holders, tenants, want):
    assert relieved(holders, tenants) == want


@pytest.mark.parametrize(
    ("memory", "gpus", "want"),
    [
        pytest.param(0, 3000, (["r1"], []), id="no memory is guaranteed beside them"),
        pytest.param(300, 0, None, id="none is, whatever memory is"),
        pytest.param(0, -1, None, id="without one memory decides: there is none of it"),
        pytest.param(300, -1, (["r1"], []), id="without one memory decides"),
    ],
)
def test_the_guarantee_of_gpus_decides_what_is_on_gpus(memory, gpus, want):
    mine = tenant(1, memory, -1, 0, guaranteed_millis=gpus)
    other = tenant(2, 0, -1, 39, guaranteed_millis=0, held_millis=1000)
    full = [gpu(1, held_bytes=78 * GIB, shared=True, gpu_millis=1000)]
    held = [holder(1, 1, 39, tenant_number=2, priority=2, gpu_millis=1000)]
    assert relieved(held, [mine, other], devices=full) == want


def test_a_guarantee_holds_for_all_that_go_together():
    two = [holder(1, 1, 20, tenant_number=2), holder(2, 1, 18, tenant_number=2)]
    assert relieved(two, [tenant(1, -1, -1, 0), tenant(2, 20, -1, 38)]) is None
    assert relieved(two, [tenant(1, -1, -1, 0), tenant(2, 0, -1, 38)]) == (["r1", "r2"], [])


def test_who_finds_a_place_elsewhere_is_moved():
    nodes = [node(1, held_millicpus=7000), node(2, held_millicpus=7000)]
    devices = [gpu(1, 1, held_bytes=78 * GIB, shared=True), gpu(2, 2, held_bytes=41 * GIB, shared=True)]
    found = relieved([holder(1, 1, 39)], [tenant(1, -1, -1, 39)], nodes, devices)
    assert found == ([], ["r1"])
    for names, want in ((("H100",), ([], ["r1"])), (("A100",), (["r1"], []))):  # and only to what its config names
        assert relieved([holder(1, 1, 39, products=names)], [tenant(1, -1, -1, 39)], nodes, devices) == want


def test_what_is_cleared_for_one_is_not_given_to_the_next():
    """Otherwise a lower one takes the room beside it each time, and the same two are moved in and out for ever."""
    fleet = snapshot(
        [node(held_millicpus=5000)], [gpu(1, held_bytes=39 * GIB, shared=True)], [holder(1, 1, 39)],
        [tenant(1, -1, -1, 39)],
    )  # fmt: skip
    high = ask(1, needs={"cuda": need("cuda", 60, 1, 500)}, tenant_id=uuid.UUID(int=1), priority=1)
    low = ask(2, needs={"cuda": need("cuda", 30, 1, 500)}, tenant_id=uuid.UUID(int=1))
    first, second = plan(fleet, [low, high])
    assert (first.ask, [each.label for each in first.relief.evicts]) == (high, ["r1"])
    assert (second.ask, second.places, second.reason) == (low, (), "InsufficientDeviceMemory")


def test_two_that_wait_do_not_count_on_the_same_victim():
    fleet = snapshot(
        [node(held_millicpus=7000)], [gpu(1, held_bytes=78 * GIB, shared=True)], [holder(1, 1, 39)],
        [tenant(1, -1, -1, 39)],
    )  # fmt: skip
    asks = [ask(number, needs=NEED, tenant_id=uuid.UUID(int=1), priority=1) for number in range(2)]
    first, second = plan(fleet, asks)
    assert first.relief is not None
    assert second.relief is None


def test_a_plan_never_moves_more_than_its_bound():
    holders = [holder(n, n, 70) for n in range(1, 31)]
    devices = [gpu(n, held_bytes=70 * GIB, shared=True) for n in range(1, 31)]
    fleet = snapshot([node(millicpus=200_000)], devices, holders, [tenant(1, -1, -1, 2100)])
    asks = [ask(n, needs={"cuda": need("cuda", 70, 1, 500)}, tenant_id=uuid.UUID(int=1), priority=1) for n in range(30)]
    answers = plan(fleet, asks)
    assert sum(len(each.relief.victims) for each in answers if each.relief) == MAX_VICTIMS


def test_weights_count_above_a_guarantee_of_gpus_as_above_one_of_memory():
    """With a quota on GPUs alone: who is further above its guarantee asks last, and gives back what the other wants."""
    part = {"cuda": need("cuda", 60, 1, 500)}
    full = [gpu(n, gpu_millis=1000, held_bytes=60 * GIB, shared=True) for n in range(1, 4)]
    heavy = tenant(2, -1, -1, 180, guaranteed_millis=0, held_millis=2250)
    light = tenant(1, -1, -1, 0, guaranteed_millis=500, held_millis=0)
    held = [holder(n, n, 60, tenant_number=2, gpu_millis=750) for n in range(1, 4)]
    asks = [ask(n, needs=part, tenant_id=uuid.UUID(int=n)) for n in (2, 1)]
    first, second = plan(snapshot([node(millicpus=99_000)], full, held, [light, heavy]), asks)
    assert (first.ask.tenant_id.int, len(first.relief.evicts), second.relief) == (1, 1, None)
    even = tenant(2, -1, -1, 180, guaranteed_millis=2000, held_millis=2250)
    (kept,) = plan(snapshot([node(millicpus=99_000)], full, held, [light, even]), asks[1:])
    assert kept.relief is None


WHOLE = {"cuda": need("cuda", 70, 1, 500, whole=True)}


def eight_of_one(leaving=(), wanted=4, guaranteed=1000, held=8000, asking=(2000, 0, -1), excused=(), **facts):
    """Eight GPUs of one node, all of the tenant 2; the tenant 1 asks for some. Who goes, and who is waited for."""
    whole = [Holding(device_id=uuid.UUID(int=1000 + n), memory_bytes=70 * GIB, exclusive=True) for n in range(9)]
    holders = [
        holder(n, n, 70, tenant_number=2, gpu_millis=1000, leaving=n in leaving, endable=n not in leaving,
               holdings=(whole[n],), counts=n not in excused)
        for n in range(1, 9)
    ]  # fmt: skip
    devices = [gpu(n, held_bytes=70 * GIB, exclusive=True, gpu_millis=1000) for n in range(1, 9)]
    firm, mine, limit = asking
    tenants = [
        tenant(1, -1, -1, 0, guaranteed_millis=firm, held_millis=mine, limit_millis=limit),
        tenant(2, -1, -1, 0, guaranteed_millis=guaranteed, held_millis=held, **facts),
    ]
    asks = [ask(n, needs=WHOLE, tenant_id=uuid.UUID(int=1)) for n in range(wanted)]
    found = [each.relief for each in plan(snapshot([node()], devices, holders, tenants), asks) if each.relief]
    gone = sorted(each.label for relief in found for each in relief.victims)
    return len(found), gone, sorted(each.label for relief in found for each in relief.waits)


def test_those_that_wait_share_what_leaves_their_node():
    """Else the first waits for all that leave there, and others have to go for the next."""
    assert eight_of_one(leaving=[1, 2, 3, 4], passing_millis=4000) == (4, [], ["r1", "r2", "r3", "r4"])
    assert eight_of_one(leaving=[1, 2, 3], passing_millis=3000) == (4, ["r4"], ["r1", "r2", "r3"])


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        pytest.param({"guaranteed": 6000}, ["r1", "r2"], id="a guarantee holds for all asks of a plan together"),
        pytest.param({"guaranteed": 6000, "held": 8000, "passing_millis": 1000}, ["r1"], id="and with what ends"),
        pytest.param({"wanted": 8}, ["r1", "r2", "r3", "r4"], id="nobody above both guarantees ends up with more"),
        pytest.param({"asking": (2000, 0, 3000)}, ["r1", "r2", "r3"], id="not for more than the asking may hold"),
        pytest.param({"asking": (2000, 3000, -1), "wanted": 8}, ["r1", "r2", "r3"],
                     id="what the asking holds already counts"),
        pytest.param({"guaranteed": 5000, "held": 6000, "excused": [1, 2], "asking": (8000, 0, -1), "wanted": 8},
                     ["r1", "r2", "r3"],
                     id="what does not count takes nothing from a guarantee"),
    ],
)  # fmt: skip
def test_what_is_made_room_for_counts_for_the_next_ask(facts, want):
    assert eight_of_one(**facts)[1] == want
