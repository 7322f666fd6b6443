"""What placing costs the database: bounds on the number of queries, which neither the fleet nor the ranks raise."""

import contextlib

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet.models import Device, Partition
from kernel import actors
from kernel.isolation import Isolation
from ledger import generations
from quotas import services as quotas
from quotas.amount import UNLIMITED, Amount, Kind
from scheduling import commit, cycle, demand_log, reading
from scheduling.plan import plan
from scheduling.spreading import spread_out
from serving.reconcile import cycle as serving
from tests.build.controlplane import make_tenant
from tests.build.spreads import deploy, machine, settle, wide_version

pytestmark = pytest.mark.django_db
#: Of one replica on one free device, of a tenant without limits; the fewer the better.
FOR_ONE = 15
#: Port, members and their orders, and what those are told.
FOR_SEVERAL = 6


@pytest.fixture
def tenant():
    made = make_tenant("acme")
    limits(made, dict.fromkeys(Kind, UNLIMITED))
    return made


@pytest.fixture
def version(tenant):
    return wide_version(tenant)


def limits(tenant, changes):
    quotas.set_quota(actor=actors.system("tests"), tenant=tenant, changes=changes)


@contextlib.contextmanager
def counted():
    """Statements of the block, without those that only open and close transactions (here they are savepoints)."""
    found = []
    with CaptureQueriesContext(connection) as asked:
        yield found
    found += [each["sql"] for each in asked.captured_queries if "SAVEPOINT" not in each["sql"]]


def planned(tenant):
    snapshot = reading.take(holders_of=[tenant.id])
    asks = spread_out(cycle.waiting(), snapshot)
    return [answer for answer in plan(snapshot, asks, demand_log.current()) if answer.places]


def test_placing_one_replica_takes_few_queries(tenant, version):
    machine("one", gpus=4)
    deploy(tenant, version, replicas=3, isolation="exclusive")
    serving.run()
    for answer in planned(tenant):
        with counted() as asked:
            commit.commit(answer)
        assert len(asked) <= FOR_ONE, "\n".join(asked)
    assert Partition.objects.count() == 3


def test_shares_of_one_device_take_one_more(tenant, version):
    machine("one", gpus=1)
    deploy(tenant, version, replicas=2)
    serving.run()
    first, second = planned(tenant)
    commit.commit(first)
    with counted() as asked:
        commit.commit(second)
    assert len(asked) <= FOR_ONE + 1, "\n".join(asked)
    assert Device.objects.get(id=second.places[0].device.id).partitions.count() == 2


def test_limits_are_counted_in_one_query(tenant, version):
    machine("one", gpus=4)
    limits(tenant, {Kind.GPU_MILLIS: Amount.of(3000), Kind.HBM_BYTES: Amount.of(1 << 50)})
    deploy(tenant, version, replicas=3, isolation="exclusive")
    serving.run()
    for answer in planned(tenant):
        with counted() as asked:
            commit.commit(answer)
        assert len(asked) <= FOR_ONE + 1, "\n".join(asked)


@pytest.mark.parametrize("gpus", [2, 4])
def test_more_ranks_take_no_more_queries(tenant, version, gpus):
    machine("one", gpus=gpus)
    deploy(tenant, version, tensor_parallel=gpus, kv_cache_gib=1)
    serving.run()
    (answer,) = planned(tenant)
    with counted() as asked:
        commit.commit(answer)
    assert Partition.objects.count() == gpus
    assert len(asked) <= FOR_ONE + 1, "\n".join(asked)


def test_ranks_on_two_nodes_are_committed_together(tenant, version):
    machine("one", gpus=2)
    machine("two", gpus=2)
    deploy(tenant, version, kv_cache_gib=24)
    serving.run()
    (answer,) = planned(tenant)
    with counted() as asked:
        commit.commit(answer)
    assert Partition.objects.values("device__node").distinct().count() == 2
    assert len(asked) <= FOR_ONE + FOR_SEVERAL, "\n".join(asked)
    assert {part.device.held_bytes for part in Partition.objects.select_related("device")} == {
        part.memory_bytes for part in Partition.objects.all()
    }


@pytest.mark.parametrize("limited", [False, True])
def test_a_snapshot_takes_as_many_queries_for_a_larger_fleet(tenant, version, limited):
    if limited:
        limits(tenant, {Kind.GPU_MILLIS: Amount.of(3000), Kind.HBM_BYTES: Amount.of(1 << 50)})
    machine("one", gpus=2)
    deploy(tenant, version, replicas=4, isolation="exclusive")
    settle()
    with counted() as few:
        small = reading.take(holders_of=[tenant.id])
    machine("two", gpus=4)
    machine("three", gpus=3, kind="cpu", stand_in=False)
    settle()
    with counted() as many:
        large = reading.take(holders_of=[tenant.id])
    assert (len(small.devices), len(large.devices)) == (2, 9)
    assert (len(small.holders), len(large.holders)) == (2, 4)
    assert len(many) == len(few), "\n".join(many)


def test_a_look_at_locked_devices_says_what_a_snapshot_says(tenant, version):
    machine("one", gpus=1)
    machine("two", gpus=1)
    deploy(tenant, version, replicas=1, isolation="exclusive")
    settle()
    whole = {view.id: view for view in reading.take().devices}
    rows = list(Device.objects.select_related("node", "parent"))
    with counted() as asked:
        views = reading.look(rows).devices
    assert len(asked) == 1
    assert {view.exclusive for view in views} == {True, False}
    for view in views:
        assert (view.exclusive, view.sharers, view.free_bytes, view.state, view.gpu_millis) == (
            whole[view.id].exclusive, whole[view.id].sharers, whole[view.id].free_bytes, whole[view.id].state,
            whole[view.id].gpu_millis,
        )  # fmt: skip
    assert {part.isolation for part in Partition.objects.all()} == {Isolation.EXCLUSIVE}


def test_a_counter_rises_in_one_statement():
    with counted() as asked:
        values = [generations.bump("thing"), generations.bump("thing"), generations.bump("other")]
    assert (values, len(asked)) == ([1, 2, 1], 3)
    assert generations.current_of(["thing", "other", "none"]) == {"thing": 2, "other": 1}
