"""Who may be taken away for whom, what would help, and that nobody learns of others' replicas."""

import uuid

import pytest

from scheduling.plan import MAX_VICTIMS, plan
from scheduling.snapshot import Holding
from tests.build.fleets import GIB, ask, device, gpu, group, holder, need, node, snapshot, tenant

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


def test_quota_refuses_before_devices_do():
    fleet = snapshot([node()], [gpu(1)], [], [tenant(1, 50, 50, 20)])
    (answer,) = plan(fleet, [ask(needs=NEED, tenant_id=uuid.UUID(int=1))])
    assert (answer.places, answer.reason) == ((), "QuotaExceeded")
    assert answer.message.startswith("The quota on device memory is 50.00 GiB; 20.00 GiB are held and 40.00 GiB more")
    assert "quota were larger" in answer.would_fit_if
    asks = [ask(number, needs={"cuda": need("cuda", 20)}, tenant_id=uuid.UUID(int=1)) for number in range(3)]
    assert [bool(each.places) for each in plan(fleet, asks)] == [True, False, False]


def test_what_a_quota_lacks_is_counted_on_what_the_fleet_has():
    """A CPU would need less, and there is none."""
    fleet = snapshot([node()], [gpu(1)], [], [tenant(1, 50, 50, 20)])
    (answer,) = plan(fleet, [ask(needs=NEED | {"cpu": need("cpu", 35)}, tenant_id=uuid.UUID(int=1))])
    assert "20.00 GiB are held and 40.00 GiB more" in answer.message


def test_a_quota_on_gpus_is_the_reason_also_where_a_cpu_is_there_that_is_too_small():
    """A CPU counts no GPUs, so quota leaves it; what it cannot take does not wait for it."""
    fleet = snapshot(
        [node()], [gpu(1, gpu_millis=1000), device(2, memory_bytes=8 * GIB)], [],
        [tenant(1, -1, -1, 0, limit_millis=2500, held_millis=2000)],
    )  # fmt: skip
    whole = {"cuda": need("cuda", 20, 1, 500, whole=True), "cpu": need("cpu", 20)}
    (answer,) = plan(fleet, [ask(needs=whole, tenant_id=uuid.UUID(int=1))])
    assert (answer.places, answer.reason) == ((), "QuotaExceeded")
    assert answer.message.startswith("The quota on GPUs is 2.5; 2 are held and 1 more are asked for.")
    (small,) = plan(fleet, [ask(needs={**whole, "cpu": need("cpu", 2)}, tenant_id=uuid.UUID(int=1))])
    assert [place.device.kind for place in small.places] == ["cpu"]


def test_a_quota_on_memory_is_the_reason_also_where_one_device_of_another_kind_would_be_enough():
    needs = {"simulated": need("simulated", 60, 1, 500), "cuda": need("cuda", 64, 1, 500, devices=2)}
    fleet = snapshot([node()], [gpu(1), gpu(2)], [], [tenant(1, -1, 100, 0)])
    (answer,) = plan(fleet, [ask(needs=needs, tenant_id=uuid.UUID(int=1))])
    assert answer.reason == "QuotaExceeded"
    assert answer.message.startswith("The quota on device memory is 100.00 GiB; 0 bytes are held and 128.00 GiB more")


def test_help_names_own_replicas_and_no_others():
    holders = [holder(1, 1, 39), holder(2, 1, 39, tenant_number=2)]
    fleet = snapshot([node(held_millicpus=6000)], [gpu(1, held_bytes=78 * GIB, shared=True)], holders)
    (mine,) = plan(fleet, [ask(needs=NEED, tenant_id=uuid.UUID(int=1))])
    assert mine.would_fit_if.startswith("38.00 GiB more were free on H100 of node n1: stop r1 there")
    assert mine.devices()[0]["would_fit_if"] == mine.would_fit_if
    assert "r2" not in str(mine.explanation())
    (theirs,) = plan(fleet, [ask(needs=NEED, tenant_id=uuid.UUID(int=3))])
    assert "r1" not in str(theirs.explanation())
    assert "stop another replica there" in theirs.would_fit_if


def test_where_no_device_is_of_the_kind_one_of_the_kind_would_help():
    (answer,) = plan(snapshot([node()], [gpu(1)], [], []), [ask(needs={"cpu": need("cpu", 1)})])
    assert answer.would_fit_if == "a node with a free device of what it needs joined the fleet"


def test_a_quota_on_gpus_counts_slices_and_shares():
    fleet = snapshot(
        [node()],
        [gpu(1, gib=80, gpu_millis=1000), gpu(2, gib=10, product="MIG 1g.10gb", gpu_millis=143, parent="d1")],
        [],
        [tenant(1, -1, -1, 0, limit_millis=250)],
    )  # fmt: skip
    asks = [ask(number, needs={"cuda": need("cuda", 8, 1, 500)}, tenant_id=uuid.UUID(int=1)) for number in range(4)]
    first, second, third, fourth = plan(fleet, asks)
    assert [bool(each.places) for each in (first, second, third, fourth)] == [True, True, False, False]
    assert third.reason == "QuotaExceeded"
    assert third.message.startswith("The quota on GPUs is 0.25; 0.2 are held and 0.1 more")
    whole = ask(9, needs={"cuda": need("cuda", 8, 1, 500, whole=True)}, tenant_id=uuid.UUID(int=1))
    (answer,) = plan(fleet, [whole])
    assert answer.chosen.product == "MIG 1g.10gb"


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
