"""Cordon, drain and remove: what admins do to nodes, over REST."""

import uuid

import pytest
from django.db import transaction

from fleet import partitions
from fleet.models import Device, Node
from fleet.partitions import Share
from ledger.models import AuditEvent
from serving.reconcile import cycle
from tests.build.controlplane import client_for, make_user
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin():
    return client_for(make_user(admin=True))


@pytest.fixture
def node():
    agent = FakeAgent("alpha")
    agent.join()
    agent.report()
    return Node.objects.get()


def post(client, node, verb, **body):
    answer = client.post(f"/api/v1/nodes/{node.id}/{verb}", body, format="json")
    return answer.status_code, answer.json()


def test_cordon_and_uncordon_are_recorded_with_their_actor(admin, node):
    assert post(admin, node, "cordon")[1]["state"] == "cordoned"
    assert post(admin, node, "cordon")[1]["state"] == "cordoned"
    assert post(admin, node, "uncordon")[1]["state"] == "ready"
    events = AuditEvent.objects.filter(subject_kind="node", actor_kind="user").order_by("id")
    assert [event.action for event in events] == ["node.cordoned", "node.ready"]


def test_an_empty_node_is_drained_at_the_next_look(admin, node):
    assert post(admin, node, "drain", accept_gap=True)[1]["state"] == "draining"
    assert Node.objects.get().accepts_gap
    cycle.run()
    assert Node.objects.get().state == "drained"
    assert post(admin, node, "remove")[1]["state"] == "removed"
    assert admin.get("/api/v1/nodes").json()["data"] == []
    assert not Device.objects.exists()


def test_a_lost_node_comes_back_as_it_was_wanted(admin, node):
    Node.objects.update(state="lost", returns_to="ready")
    assert post(admin, node, "cordon")[1]["state"] == "lost"
    assert Node.objects.get().returns_to == "cordoned"


def test_a_node_that_holds_something_is_not_removed(admin, node):
    share = Share(memory_bytes=GIB, host_bytes=GIB, millicpus=500)
    with transaction.atomic():
        locked = partitions.lock_device(Device.objects.get().id)
        partitions.take(uuid.uuid4(), [partitions.Rank(device=locked, share=share)])
    status, body = post(admin, node, "remove")
    assert (status, body["code"], body["data"]) == (409, "node_holds_replicas", {"replicas": 1})


def test_only_platform_admins(node):
    client = client_for(make_user())
    for verb in ("cordon", "uncordon", "drain", "remove"):
        assert post(client, node, verb)[0] == 403
    assert client.get(f"/api/v1/nodes/{node.id}").status_code == 403


def test_an_unknown_node(admin):
    assert admin.post(f"/api/v1/nodes/{uuid.uuid4()}/cordon").json()["code"] == "node_not_found"
