"""What a quota refuses, and what would help; nobody learns of the replicas of others."""

import uuid

from scheduling.plan import plan
from tests.build.fleets import GIB, ask, device, gpu, holder, need, node, snapshot, tenant

NEED = {"cuda": need("cuda", 40, 1, 1000)}


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
