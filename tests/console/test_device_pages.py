"""The GPU map of a large fleet: a page of nodes at a time, the same queries and totals on each, filters that stay."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fleet.models import Device, DeviceKind, Node
from fleet.selectors import device_totals
from kernel import clock, ids
from tenants.models import Tenant
from tests.build.controlplane import make_user

pytestmark = pytest.mark.django_db
GIB = 1024**3
MOST_QUERIES = 24


def _fleet(nodes: int, per_node: int = 8, first: int = 0) -> None:
    now = clock.now()
    made = [
        Node(
            name=f"node-{number:03}", machine_id=str(ids.new_id()), state="ready", state_changed_at=now, created_at=now,
            cpus=8, memory_bytes=64 * GIB, memory_available_bytes=48 * GIB, last_seen_at=now,
        )
        for number in range(first, first + nodes)
    ]  # fmt: skip
    Node.objects.bulk_create(made)
    Device.objects.bulk_create(
        Device(
            node=node, uuid=f"GPU-{node.name}-{slot}", kind=DeviceKind.SIMULATED, product=f"Sim {80 if slot else 40}",
            memory_bytes=80 * GIB, state="suspect" if slot == 7 else "healthy", state_changed_at=now,
        )
        for node in made
        for slot in range(per_node)
    )  # fmt: skip


@pytest.fixture
def client() -> Client:
    made = Client()
    made.force_login(make_user(admin=True))
    return made


def _uuids(text: str) -> list[str]:
    return re.findall(r'class="device" href="\?device=(GPU-node-\d+-\d)', text)


def test_pages_of_nodes_show_every_device_once_with_the_totals_of_all(client: Client) -> None:
    _fleet(30)
    seen, query = [], ""
    for _page in range(3):
        text = client.get(f"/platform/devices/?{query}").content.decode()
        assert "0 of 240 devices held, 210 free, 30 out of service." in text
        assert "30 not healthy." in text
        assert len(_uuids(text)) <= 96
        seen += _uuids(text)
        assert query in text.replace("&amp;", "&"), "opening a device stays on its page"
        older = re.search(r'href="\?((?!device=)[^"]*after=[^"]+)"[^>]*>', text)
        query = older[1].replace("&amp;", "&") if older else ""
    assert not query
    assert len(seen) == len(set(seen)) == 240


def test_held_free_and_out_of_service_are_all_and_a_gpu_that_is_cut_counts_by_its_instances(client: Client) -> None:
    _fleet(1)
    sick, well = Device.objects.get(uuid__endswith="-7"), Device.objects.get(uuid__endswith="-6")
    cut = Device.objects.get(uuid__endswith="-5")
    Device.objects.filter(id__in=[sick.id, well.id]).update(held_bytes=GIB)
    for number in range(2):
        Device.objects.create(
            node=cut.node, parent=cut, uuid=f"MIG-{number}", kind=DeviceKind.SIMULATED, product="Sim MIG",
            memory_bytes=40 * GIB, state="healthy", state_changed_at=clock.now(),
        )  # fmt: skip
    totals = device_totals()
    assert (totals["total"], totals["held"], totals["free"], totals["away"], totals["unwell"]) == (9, 2, 7, 0, 1)
    text = client.get("/platform/devices/").content.decode()
    assert "2 of 9 devices held, 7 free." in text
    assert "1 not healthy." in text
    Device.objects.filter(id=sick.id).update(held_bytes=0)
    assert "1 of 9 devices held, 7 free, 1 out of service." in client.get("/platform/devices/").content.decode()


def test_filters_stay_over_pages_and_count_only_what_they_show(client: Client) -> None:
    _fleet(20)
    text = client.get("/platform/devices/?state=suspect&product=Sim+80").content.decode()
    assert {uuid[-1] for uuid in _uuids(text)} == {"7"}
    assert re.search(r'href="\?state=suspect&amp;product=Sim\+80&amp;after=[0-9a-f-]{36}"', text)
    assert _uuids(client.get("/platform/devices/?q=node-004-3").content.decode()) == ["GPU-node-004-3"]
    assert len(_uuids(client.get("/platform/devices/?node=node-004").content.decode())) == 8
    assert "Nothing matches" in client.get("/platform/devices/?q=nowhere").content.decode()


def test_queries_do_not_grow_with_the_fleet(client: Client) -> None:
    def queries() -> int:
        client.get("/platform/devices/")
        with CaptureQueriesContext(connection) as asked:
            assert client.get("/platform/devices/").status_code == 200
        return len(asked)

    _fleet(2)
    few = queries()
    _fleet(40, first=2)
    assert queries() == few <= MOST_QUERIES


def test_tenants_come_in_pages_and_are_found_by_name(client: Client) -> None:
    Tenant.objects.bulk_create(
        Tenant(slug=f"guest-{number:03}", name=f"Guest {number:03}", created_at=clock.now()) for number in range(90)
    )
    seen, query = [], ""
    for _page in range(3):
        text = client.get(f"/platform/tenants/?q=guest&{query}").content.decode()
        table = text[text.index("<tbody>") : text.index("</tbody>")]
        seen += dict.fromkeys(re.findall(r"Guest \d{3}", table))
        older = re.search(r'href="\?q=guest&amp;(after=[^"]+)"', text)
        query = older[1] if older else ""
    assert not query
    assert len(seen) == len(set(seen)) == 90
    assert "Guest 007" in client.get("/platform/tenants/?q=Guest+007").content.decode()
    assert "Nothing matches" in client.get("/platform/tenants/?q=nobody").content.decode()


def test_the_dialog_of_a_drain_says_what_is_left_to_do(client: Client) -> None:
    _fleet(1)
    node = Node.objects.get()
    where = f"/platform/nodes/{node.id}/drain/"
    assert "No replica is here" in client.get(where).content.decode()
    Node.objects.update(state="draining")
    text = client.get(where).content.decode()
    assert "Let the rest stop on node-000" in text
    assert '<input type="hidden" name="accept_gap" value="on">' in text
    assert "Let the rest stop" not in client.get(f"/platform/nodes/{node.id}/").content.decode(), "nothing is left"
