"""Faults and maintenance, quotas with use, home's charts: what an admin and a member see."""

import datetime
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from console.pages import deployment_parts
from console.presenters import audit, needs
from fleet.models import Device, HealthEvent, Node
from kernel import clock, ids, scope
from ledger.models import AuditEvent
from quotas.amount import Amount, Kind
from quotas.services import set_group, set_quota
from serving.conditions import Health
from serving.models import Deployment
from serving.services.traffic import set_weights
from telemetry.series import Point, write
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.crowd import crowd

pytestmark = pytest.mark.django_db
HTMX = {"HTTP_HX_REQUEST": "true", "HTTP_HX_CURRENT_URL": "http://testserver/platform/faults/?q=Xid"}


def admin_client() -> Client:
    client = Client()
    client.force_login(make_user(admin=True))
    return client


def make_device(name: str = "mill-1", state: str = "healthy", node_state: str = "ready", **more) -> Device:
    now = clock.now()
    node, _made = Node.objects.get_or_create(
        name=name, defaults={"machine_id": name, "state": node_state, "state_changed_at": now, "created_at": now}
    )
    return Device.objects.create(
        node=node, uuid=f"GPU-{ids.new_id()}", kind="cuda", product="NVIDIA L4", memory_bytes=1, state=state,
        state_changed_at=now, **more,
    )  # fmt: skip


def test_an_open_fault_says_what_was_decided_and_has_its_acts() -> None:
    client = admin_client()
    assert "Every device is healthy. No node is out of service." in client.get("/platform/faults/").content.decode()
    make_device()
    sick = make_device(
        state="quarantined", reason="Xid79", message="It has fallen off the bus.", repair="reboot", node_state="ready"
    )
    make_device("mill-2", node_state="cordoned")
    page = client.get("/platform/faults/").content.decode()
    assert "1 device is not healthy. 1 node is out of service." in page
    for text in (
        "Xid79",
        "fallen off the bus",
        "It waits for a restart of its machine.",
        "systemctl reboot",
        "Cordoned",
    ):
        assert text in page
    back = f"/platform/devices/{sick.id}/return/"
    assert back in page
    assert page.count("/return/") == 1
    answer = client.post(back, {"message": "new board"}, **HTMX)
    assert answer.headers["HX-Redirect"] == "/platform/faults/?q=Xid"
    sick.refresh_from_db()
    assert sick.state == "recovering"


def test_health_events_are_filtered_and_paged_in_page_and_rest_alike() -> None:
    client, device = admin_client(), make_device()
    for number in range(60):
        HealthEvent.objects.create(
            at=clock.now(), node=device.node, device=device, code=f"Xid{number % 2 + 48}", message=f"event {number}",
            data={"action": "reset", "times": 3},
        )  # fmt: skip
    page = client.get("/platform/faults/").content.decode()
    assert len(re.findall(r"event \d+", page)) == 50
    assert "replicas moved, reset needed" in page
    older = re.search(r'href="\?([^"]*after=[^"]+)"', page)
    assert older
    assert len(re.findall(r"event \d+", client.get(f"/platform/faults/?{older[1]}").content.decode())) == 10
    only = client.get("/platform/faults/?q=Xid48").content.decode()
    assert "Xid49" not in only
    assert len(re.findall(r"event \d+", only)) == 30
    assert "Nothing matches" in client.get("/platform/faults/?q=nowhere").content.decode()
    rows = client.get("/api/v1/health-events?q=Xid49&limit=20").json()
    assert rows["has_more"]
    assert {(row["code"], row["node"], row["decision"], row["times"]) for row in rows["data"]} == {
        ("Xid49", "mill-1", "reset", 3)
    }
    other = Client()
    other.force_login(make_user())
    assert other.get("/api/v1/health-events").status_code == 403
    assert other.get("/platform/faults/").status_code in (403, 404)


def test_the_page_of_faults_costs_the_same_for_many() -> None:
    client = admin_client()

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            assert client.get("/platform/faults/").status_code == 200
        return len(asked)

    make_device("mill-0", state="suspect", node_state="draining")
    queries()
    few = queries()
    for number in range(1, 30):
        make_device(f"mill-{number}", state="quarantined", node_state="draining", repair="reset")
    assert queries() == few


def test_quotas_stand_beside_their_use() -> None:
    client, admin = admin_client(), make_user(admin=True)
    tenant = make_tenant("harbor")
    crowd(tenant, actor_for(owner_of(tenant)), deployments=2, replicas=1, keys=1)
    set_group(actor=actor_for(admin), name="harbors", changes={Kind.REPLICAS: Amount.of(50)})
    set_quota(
        actor=actor_for(admin), tenant=tenant, group="harbors", weight=250,
        changes={Kind.REPLICAS: Amount.of(9), Kind.GPU_MILLIS: Amount.of(4000)},
        guaranteed={Kind.GPU_MILLIS: Amount.of(1500)},
    )  # fmt: skip
    page = client.get("/platform/quotas/").content.decode()
    assert "/ 9" in page
    assert "/ 50" in page
    assert "1.5 guaranteed" in page
    assert ">250<" in page
    assert "/platform/tenants/harbor/quota/" in page
    assert "Nothing matches" in client.get("/platform/quotas/?q=nobody").content.decode()


def test_home_has_charts_of_the_chosen_range() -> None:
    tenant = make_tenant("harbor")
    crowd(tenant, actor_for(owner_of(tenant)), deployments=1, replicas=1, keys=1)
    with scope.tenant(tenant.id):
        replica = Deployment.objects.get().replicas.all()[0]
    start = clock.now() - datetime.timedelta(minutes=5)
    step = datetime.timedelta(seconds=10)
    points = [
        Point(replica_id=replica.id, at=start + step * n, requests_total=total, level=0.5 + n / 10)
        for n, total in enumerate((100, 120, 150, 10))  # the last: the engine began anew
    ]
    write(points)
    assert [rate for _at, rate in deployment_parts.request_rate({replica.id: points})] == [2.0, 3.0, 1.0]
    client = Client()
    client.force_login(owner_of(tenant))
    hour = client.get("/t/harbor/?range=1h").content.decode()
    assert "HBM level" in hour
    assert "As a table" in hour
    assert 'href="?range=1h" aria-current="true"' in hour
    assert 'href="?range=24h" aria-current="true"' in client.get("/t/harbor/?range=junk").content.decode()


def test_attention_says_a_thing_once() -> None:
    tenant = make_tenant("harbor")
    crowd(tenant, actor_for(owner_of(tenant)), deployments=1, replicas=1, keys=1)
    with scope.tenant(tenant.id):
        deployment = Deployment.objects.select_related("endpoint").get()
    (need,) = needs.of_deployments("harbor", [(deployment, _health(needs.WAITING))])
    assert (need.text, need.detail) == ("replicas wait for a place.", "")
    (need,) = needs.of_deployments("harbor", [(deployment, _health("No GPU has 38 GiB free."))])
    assert need.detail == "No GPU has 38 GiB free."


def _health(sentence: str) -> Health:
    return Health("pending", sentence, (), 0)


def test_moved_traffic_says_to_what_share() -> None:
    tenant = make_tenant("harbor")
    actor = actor_for(owner_of(tenant))
    crowd(tenant, actor, deployments=1, replicas=0, keys=1)
    with scope.tenant(tenant.id):
        deployment = Deployment.objects.get()
    set_weights(actor=actor, tenant=tenant, weights={deployment.id: 250})
    event = AuditEvent.objects.filter(action="deployment.weighted").latest("id")
    assert audit.line(event).text.endswith(": 100 % of it to v1")
    event.data = {"share": 12.5, "version": 3}
    assert audit.line(event).text.endswith(": 12.5 % of it to v3")
    event.data = {"before": 1, "after": 2}
    assert ":" not in audit.line(event).text


def test_dates_and_conditions_are_words() -> None:
    from console.tags.times import day

    at = datetime.date(2026, 11, 30)
    assert day(at) == "30 Nov 2026"
    with translation.override("zh-hans"):
        assert day(at) == "2026年11月30日"
    page = admin_client().get("/platform/system/").content.decode()
    assert "No mass silence" in page
    assert "MassSilence" not in page
