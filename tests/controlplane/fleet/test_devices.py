"""Devices and partitions: what reports change, and what the database refuses."""

import threading
import uuid

import msgspec
import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from fleet import partitions
from fleet.errors import CapacityGone
from fleet.models import Device, HealthEvent, Node, Partition
from fleet.partitions import Share
from kernel import clock
from kernel.isolation import Isolation
from tests.build.controlplane import client_for, make_user
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db


def agent(**facts):
    made = FakeAgent(**facts)
    made.join()
    made.report()
    return made


def share(gib=1, **facts):
    return Share(**{"memory_bytes": gib * GIB, "host_bytes": gib * GIB, "millicpus": 500, **facts})


def take(device, gib=1, replica_id=None, **facts):
    with transaction.atomic():
        ranks = [partitions.Rank(device=partitions.lock_device(device.id), share=share(gib, **facts))]
        return partitions.take(replica_id or uuid.uuid4(), ranks)[0]


def put(device, isolation, gib=1):
    """A row past the service: what the database itself says."""
    with transaction.atomic():
        Partition.objects.create(
            device=device, isolation=isolation, memory_bytes=gib * GIB, replica_id=uuid.uuid4(), created_at=clock.now()
        )


def test_taking_moves_counters_and_freeing_moves_them_back():
    agent(memory_bytes=4 * GIB)
    device = Device.objects.get()
    owner = uuid.uuid4()
    take(device, 3, owner)
    device.refresh_from_db()
    node = Node.objects.get()
    assert (device.held_bytes, node.held_host_bytes, node.held_millicpus) == (3 * GIB, 3 * GIB, 500)
    with pytest.raises(CapacityGone):
        take(device, 2)
    take(device, 1)  # what is exactly left fits
    with transaction.atomic():
        assert partitions.release(owner) == 1
        assert partitions.release(owner) == 0
    device.refresh_from_db()
    assert (device.held_bytes, Node.objects.get().held_millicpus) == (1 * GIB, 500)


def test_the_database_refuses_a_second_owner_and_mixed_owners():
    agent()
    device = Device.objects.get()
    put(device, Isolation.COOPERATIVE)
    put(device, Isolation.COOPERATIVE)
    with pytest.raises(IntegrityError):
        put(device, Isolation.EXCLUSIVE)
    Partition.objects.all().delete()
    put(device, Isolation.EXCLUSIVE)
    for isolation in (Isolation.EXCLUSIVE, Isolation.COOPERATIVE, Isolation.MIG):
        with pytest.raises(IntegrityError):
            put(device, isolation)


def test_the_database_refuses_promises_past_the_memory():
    agent(memory_bytes=4 * GIB)
    with pytest.raises(IntegrityError), transaction.atomic():
        Device.objects.update(held_bytes=5 * GIB)
    with pytest.raises(IntegrityError), transaction.atomic():
        Device.objects.update(held_bytes=-1)


def test_a_rank_has_one_partition():
    agent()
    device = Device.objects.get()
    owner = uuid.uuid4()
    take(device, 1, owner)
    with pytest.raises(CapacityGone):
        take(device, 1, owner)


def test_a_problem_makes_a_device_suspect_until_it_is_gone():
    made = agent()
    sick = msgspec.structs.replace(made.devices[0], problem="ECC errors")
    made.report(devices=[sick])
    device = Device.objects.get()
    assert (device.state, device.reason, device.message) == ("suspect", "ProblemReported", "ECC errors")
    made.report()
    device.refresh_from_db()
    assert device.state == "healthy"
    assert [event.code for event in HealthEvent.objects.order_by("id")] == ["ProblemReported", "Recovered"]


def test_a_device_that_is_not_listed_is_missing_and_comes_back():
    made = agent()
    made.report(devices=[])
    device = Device.objects.get()
    assert (device.present, device.state, device.reason) == (False, "suspect", "DeviceMissing")
    made.report()
    device.refresh_from_db()
    assert (device.present, device.state) == (True, "healthy")


def test_a_device_never_shrinks_below_what_is_promised():
    made = agent(memory_bytes=4 * GIB)
    take(Device.objects.get(), 3)
    made.report(devices=[msgspec.structs.replace(made.devices[0], memory_bytes=2 * GIB)])
    device = Device.objects.get()
    assert (device.memory_bytes, device.state, device.reason) == (3 * GIB, "suspect", "MemoryShrunk")
    made.report()
    device.refresh_from_db()
    assert (device.memory_bytes, device.state) == (4 * GIB, "healthy")


def test_a_device_follows_its_uuid_unless_somebody_holds_it():
    one, two = agent(name="one"), agent(name="two")
    moved = one.devices[0]
    one.report(devices=[])
    two.report(devices=[*two.devices, moved])
    assert Device.objects.get(uuid=moved.uuid).node.name == "two"
    held = two.devices[0]
    take(Device.objects.get(uuid=held.uuid))
    one.report(devices=[held])
    one.report(devices=[held])
    assert Device.objects.get(uuid=held.uuid).node.name == "two"
    assert HealthEvent.objects.filter(code="DeviceElsewhere").count() == 1


def test_lists_for_admins(django_assert_num_queries):
    for number in range(3):
        made = agent(name=f"node-{number}")
        made.report(devices=[*made.devices, made.device()])
    take(Device.objects.first())
    admin = client_for(make_user(admin=True))
    admin.get("/api/v1/nodes")  # notes the token's use
    with django_assert_num_queries(5):  # token, last use, roles, user, nodes
        nodes = admin.get("/api/v1/nodes").json()["data"]
    assert [(node["device_count"], node["replica_count"]) for node in nodes] == [(2, 0), (2, 0), (2, 1)]
    with django_assert_num_queries(7):  # token, last use, roles, user, devices, partitions, holders
        devices = admin.get("/api/v1/devices").json()["data"]
    assert len(devices) == 6
    assert sum(device["held_bytes"] for device in devices) == GIB
    detail = admin.get(f"/api/v1/nodes/{nodes[0]['id']}").json()
    assert (len(detail["devices"]), detail["health_events"]) == (2, [])
    assert client_for(make_user()).get("/api/v1/nodes").status_code == 403


def test_new_devices_are_as_few_queries_as_one():
    counted = []
    for number in (1, 1, 8):
        made = FakeAgent()
        made.devices = [FakeAgent.device() for _each in range(number)]
        made.join()
        with CaptureQueriesContext(connection) as seen:
            made.report()
        counted.append(len(seen))
        assert Device.objects.filter(node_id=made.id).count() == number
    assert counted[1] == counted[2]


def test_a_report_that_says_something_new_is_looked_at_whole():
    made = agent()
    made.report()
    assert Node.objects.get().settled
    made.devices = [msgspec.structs.replace(made.devices[0], problem="It is hot.")]
    made.report()
    assert (Device.objects.get().state, Node.objects.get().settled) == ("suspect", "")
    made.devices = [msgspec.structs.replace(made.devices[0], problem="")]
    made.report()
    assert Device.objects.get().state == "healthy"
    Node.objects.update(state="lost", returns_to="")
    made.report()  # the very same, but its node was given up meanwhile
    assert Node.objects.get().state == "ready"


@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_never_take_more_than_there_is():
    agent(memory_bytes=4 * GIB)
    device = Device.objects.get()
    outcomes = []

    def one():
        try:
            take(device, 1)
            outcomes.append("taken")
        except CapacityGone:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(outcomes)) == ["refused", "taken"]
    assert outcomes.count("taken") == 4
    assert Device.objects.get().held_bytes == 4 * GIB
