"""Endpoints, grants and deployments over REST."""

import uuid

import pytest

from fleet.models import Node, Partition
from kernel import scope
from ledger import outbox
from quotas.amount import Amount, Kind
from quotas.services import set_quota
from runtime.wire.reports import Phase
from scheduling import cycle as scheduling
from serving.models import Deployment, Replica
from serving.reconcile import cycle
from tenants.roles import Role
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, key_client, make_member, make_tenant, make_user, owner_of
from tests.build.machines import FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def client(tenant):
    return client_for(owner_of(tenant))


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def agent():
    made = FakeAgent()
    made.join()
    made.report()
    return made


def body(served, **facts):
    return {"endpoint": "chat", "model": served.model.name, "version": str(served.number), "replicas": 1, **facts}


def deploy(client, served, status=201, **facts):
    answer = client.post("/api/v1/tenants/acme/deployments", body(served, **facts), format="json")
    assert answer.status_code == status, answer.json()
    return answer.json()


def test_a_deployment_from_birth_to_ready(client, version):
    made = deploy(client, version)
    assert (made["state"], made["ready_replicas"], made["endpoint"]) == ("pending", 0, "chat")
    assert made["revision"]["config"]["dtype"] == "float32"
    (replica,) = made["replicas"]
    assert (replica["state"], replica["node"], replica["device"]) == ("pending", None, None)
    node = agent()
    scheduling.run()
    node.obey(Phase.READY, log_tail=["loaded", "warm"])
    node.report()
    url = f"/api/v1/tenants/acme/deployments/{made['id']}"
    shown = client.get(url).json()
    assert (shown["state"], shown["ready_replicas"], shown["sentence"]) == ("ready", 1, "1 of 1 replica ready.")
    (replica,) = shown["replicas"]
    assert (replica["node"], replica["device"], replica["isolation"]) == (
        node.name,
        node.devices[0].uuid,
        "cooperative",
    )
    assert replica["ledger"]["weights_bytes"] == 400
    assert {c["type"]: c["status"] for c in shown["conditions"]} == {
        "Available": "True", "Progressing": "False", "QuotaOK": "True", "Healthy": "True",
    }  # fmt: skip
    assert client.get(f"{url}/replicas/{replica['id']}/logs").json() == {"lines": ["loaded", "warm"]}
    actions = [event["action"] for event in client.get(f"{url}/events").json()["data"]]
    assert actions == ["replica.ready", "replica.assigned", "replica.created", "deployment.created"]
    (series,) = client.get(f"{url}/metrics?minutes=5").json()["series"]
    assert series["metrics"]["tokens_per_second"] == [12.5]
    assert client.get(f"{url}/metrics?minutes=0").status_code == 400
    (row,) = client.get(f"{url}/replicas").json()["data"]
    assert row["id"] == replica["id"]
    (listed,) = client.get("/api/v1/tenants/acme/deployments").json()["data"]
    assert (listed["id"], listed["state"], listed["wanted"]) == (made["id"], "ready", "running")


def test_scale_stop_start_and_delete(client, version):
    url = f"/api/v1/tenants/acme/deployments/{deploy(client, version)['id']}"
    scaled = client.patch(url, {"replicas": 3, "weight": 10}, format="json").json()
    assert (scaled["desired_replicas"], scaled["weight"], len(scaled["replicas"]), scaled["generation"]) == (
        3,
        10,
        3,
        2,
    )
    assert client.patch(url, {}, format="json").json()["generation"] == 2
    stopped = client.post(f"{url}/stop").json()
    assert (stopped["wanted"], stopped["state"]) == ("stopped", "stopped")
    assert client.post(f"{url}/start").json()["state"] == "pending"
    deleted = client.delete(url)
    assert (deleted.status_code, deleted.json()["state"]) == (202, "deleting")
    assert client.get(url).json()["state"] == "deleting"
    assert client.patch(url, {"replicas": 1}, format="json").json()["code"] == "deployment_deleting"
    cycle.run()
    assert client.get(url).json()["code"] == "deployment_not_found"


@pytest.mark.parametrize(
    ("facts", "status", "code"),
    [
        ({"endpoint": "Chat"}, 400, "invalid_name"),
        ({"endpoint": "-chat"}, 400, "invalid_name"),
        ({"endpoint": "x" * 81}, 400, "invalid_input"),
        ({"replicas": -1}, 400, "invalid_input"),
        ({"replicas": 65}, 400, "invalid_input"),
        ({"weight": 1001}, 400, "invalid_input"),
        ({"model": "nothing"}, 404, "model_not_found"),
        ({"version": "99"}, 404, "version_not_found"),
        ({"config": {"dtype": "int3"}}, 400, "invalid_config"),
        ({"config": {"max_model_len": 10**6}}, 400, "invalid_config"),
    ],
)
def test_what_cannot_be_deployed(client, version, facts, status, code):
    assert deploy(client, version, status, **facts)["code"] in (code, "invalid_input")
    with scope.all_tenants():
        assert not Deployment.objects.exists()


def test_an_idempotency_key_deploys_once(client, version):
    header = {"HTTP_IDEMPOTENCY_KEY": "abc"}
    first = client.post("/api/v1/tenants/acme/deployments", body(version), format="json", **header)
    second = client.post("/api/v1/tenants/acme/deployments", body(version), format="json", **header)
    assert first.json()["id"] == second.json()["id"]
    with scope.all_tenants():
        assert Deployment.objects.count() == 1


def test_roles(client, version, tenant):
    viewer = client_for(make_member(tenant, Role.VIEWER))
    developer = client_for(make_member(tenant, Role.DEVELOPER))
    assert viewer.post("/api/v1/tenants/acme/deployments", body(version), format="json").status_code == 403
    made = deploy(developer, version)
    assert viewer.get(f"/api/v1/tenants/acme/deployments/{made['id']}").status_code == 200
    assert viewer.delete(f"/api/v1/tenants/acme/deployments/{made['id']}").status_code == 403
    other = make_tenant("other")
    answer = developer.post("/api/v1/tenants/acme/endpoints/chat/grants", {"tenant": other.slug}, format="json")
    assert answer.status_code == 403
    assert deploy(key_client(tenant), version, endpoint="by-key")["endpoint"] == "by-key"


def test_a_quota_on_replicas_is_asked_before_rows_are_made(client, version, tenant):
    admin = actor_for(make_user(admin=True))
    set_quota(actor=admin, tenant=tenant, changes={Kind.REPLICAS: Amount.limit(2)})
    made = deploy(client, version, replicas=2)
    assert deploy(client, version, 403, endpoint="more")["code"] == "quota_exceeded"
    url = f"/api/v1/tenants/acme/deployments/{made['id']}"
    assert client.patch(url, {"replicas": 3}, format="json").json()["code"] == "quota_exceeded"
    assert client.patch(url, {"replicas": 1}, format="json").status_code == 200
    deploy(client, version, endpoint="more")


def test_a_quota_on_memory_is_a_reason_to_wait(client, version, tenant):
    agent()
    admin = actor_for(make_user(admin=True))
    set_quota(actor=admin, tenant=tenant, changes={Kind.HBM_BYTES: Amount.limit(1000)})
    made = deploy(client, version)
    scheduling.run()
    url = f"/api/v1/tenants/acme/deployments/{made['id']}"
    shown = client.get(url).json()
    assert (shown["replicas"][0]["reason"], shown["replicas"][0]["device"]) == ("QuotaExceeded", None)
    assert {c["type"]: c["status"] for c in shown["conditions"]}["QuotaOK"] == "False"
    set_quota(actor=admin, tenant=tenant, changes={Kind.HBM_BYTES: Amount.limit(-1)})
    scheduling.run()
    assert client.get(url).json()["replicas"][0]["state"] == "assigned"


def test_endpoints_and_grants(client, version, tenant):
    made = client.post(
        "/api/v1/tenants/acme/endpoints", {"name": "chat", "slo": {"ttft_p95_ms": 500}}, format="json"
    ).json()
    assert (made["name"], made["slo"], made["state"], made["grants"]) == ("chat", {"ttft_p95_ms": 500.0}, "idle", [])
    again = client.post("/api/v1/tenants/acme/endpoints", {"name": "chat"}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "endpoint_name_taken")
    wrong = client.patch("/api/v1/tenants/acme/endpoints/chat", {"slo": {"speed": 1}}, format="json")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_input")
    assert client.patch("/api/v1/tenants/acme/endpoints/chat", {"slo": {}}, format="json").json()["slo"] == {}
    assert client.get(f"/api/v1/tenants/acme/endpoints/{made['id']}").json()["id"] == made["id"]

    friend = make_tenant("friend")
    grants = "/api/v1/tenants/acme/endpoints/chat/grants"
    granted = client.post(grants, {"tenant": "friend"}, format="json")
    assert granted.status_code == 201
    assert client.post(grants, {"tenant": "friend"}, format="json").json()["code"] == "grant_exists"
    assert client.post(grants, {"tenant": "acme"}, format="json").status_code == 400
    theirs = client_for(owner_of(friend))
    (callable_,) = theirs.get("/api/v1/tenants/friend/callable-endpoints").json()
    assert (callable_["model"], callable_["owner"], callable_["own"]) == ("acme/chat", "acme", False)
    (mine,) = client.get("/api/v1/tenants/acme/callable-endpoints").json()
    assert (mine["model"], mine["own"]) == ("chat", True)
    assert theirs.get("/api/v1/tenants/friend/endpoints").json()["data"] == []
    gateway = FakeGateway()
    gateway.join()
    assert gateway.routes().endpoints[0].granted_tenant_ids == [str(friend.id)]
    assert client.delete(f"{grants}/{granted.json()['id']}").status_code == 204
    assert gateway.routes().endpoints[0].granted_tenant_ids == []

    deployed = deploy(client, version)
    assert client.delete("/api/v1/tenants/acme/endpoints/chat").json()["code"] == "endpoint_in_use"
    client.delete(f"/api/v1/tenants/acme/deployments/{deployed['id']}")
    cycle.run()
    assert client.delete("/api/v1/tenants/acme/endpoints/chat").status_code == 204
    assert client.get("/api/v1/tenants/acme/endpoints/chat").json()["code"] == "endpoint_not_found"


def test_lists_cost_the_same_for_one_and_for_many(client, version, django_assert_num_queries):
    for number in range(3):
        deploy(client, version, endpoint=f"chat-{number}", replicas=2)
    client.get("/api/v1/tenants/acme/deployments")
    with django_assert_num_queries(7):  # token, last use, roles, user, tenant, deployments, replicas
        assert len(client.get("/api/v1/tenants/acme/deployments").json()["data"]) == 3
    with django_assert_num_queries(9):  # …, tenant, endpoints, deployments, replicas, grants
        assert len(client.get("/api/v1/tenants/acme/endpoints").json()["data"]) == 3
    with django_assert_num_queries(8):  # …, tenant, endpoints, deployments, replicas
        assert len(client.get("/api/v1/tenants/acme/callable-endpoints").json()) == 3


def test_a_replica_of_another_deployment_is_not_found(client, version):
    first, second = deploy(client, version), deploy(client, version)
    foreign = second["replicas"][0]["id"]
    url = f"/api/v1/tenants/acme/deployments/{first['id']}/replicas/{foreign}/logs"
    assert client.get(url).json()["code"] == "replica_not_found"
    url = f"/api/v1/tenants/acme/deployments/{uuid.uuid4()}"
    assert client.get(url).json()["code"] == "deployment_not_found"


def test_the_database_keeps_a_placed_replica_on_a_node(client, version):
    from django.db import IntegrityError, transaction

    deploy(client, version)
    with scope.all_tenants(), pytest.raises(IntegrityError), transaction.atomic():
        Replica.objects.update(state="ready")


def test_one_that_failed_before_its_node_fell_silent_is_given_up_when_that_is_back(client, version):
    deploy(client, version)
    scheduling.run()
    node = agent()
    scheduling.run()
    node.cycle()
    (key,) = node.replicas
    node.change(key, Phase.FAILED, reason="EngineExited", message="killed")
    node.report()
    with scope.all_tenants():
        Replica.objects.update(recalled=True)
        Node.objects.update(state="lost", returns_to="ready")
        cycle.run()
        assert Replica.objects.get(recalled=True).state == "unreachable"
        node.replicas.clear()
        node.applied = node.assignments().generation
        node.report()  # and is not refused for it
        given_up = Replica.objects.get(id=key)
    assert (given_up.state, given_up.node, given_up.generation) == ("failed", None, 2)
    assert given_up.message == cycle.GIVEN_UP_TEXT
    assert not Partition.objects.filter(replica_id=key).exists()


def test_a_granted_tenant_learns_whether_a_model_answers_and_nothing_of_its_owner(client, version, tenant):
    deployed = deploy(client, version)
    friend = make_tenant("friend")
    client.post("/api/v1/tenants/acme/endpoints/chat/grants", {"tenant": "friend"}, format="json")
    with scope.all_tenants():
        Replica.objects.update(state="failed", reason="EngineFailed", message="GPU-1234 on node one says: secret words")
    (mine,) = client.get("/api/v1/tenants/acme/callable-endpoints").json()
    assert "secret words" in mine["sentence"]
    theirs = client_for(owner_of(friend))
    answer = theirs.get("/api/v1/tenants/friend/callable-endpoints")
    assert answer.json()[0]["sentence"] == "The model is not answering now. Its owner can see why."
    assert deployed["id"] not in answer.content.decode()
    gateway = FakeGateway()
    gateway.join()
    assert gateway.routes().endpoints[0].state == answer.json()[0]["sentence"]


def test_a_grant_tells_nothing_about_who_else_is_here(client):
    """A name that nobody has is taken like one that somebody has, and holds once there is such a tenant."""
    make_tenant("somebody")
    client.post("/api/v1/tenants/acme/endpoints", {"name": "chat"}, format="json")
    grants = "/api/v1/tenants/acme/endpoints/chat/grants"
    known = client.post(grants, {"tenant": "somebody"}, format="json")
    unknown = client.post(grants, {"tenant": "nobody"}, format="json")
    assert (known.status_code, unknown.status_code) == (201, 201)
    assert set(known.json()) == set(unknown.json())
    assert client.post(grants, {"tenant": "nobody"}, format="json").json()["code"] == "grant_exists"
    gateway = FakeGateway()
    gateway.join()
    assert len(gateway.routes().endpoints[0].granted_tenant_ids) == 1
    before = gateway.routes().generation
    late = make_tenant("nobody")
    outbox.drain()
    table = gateway.routes()
    assert str(late.id) in table.endpoints[0].granted_tenant_ids
    assert table.generation > before
    (callable_,) = client_for(owner_of(late)).get("/api/v1/tenants/nobody/callable-endpoints").json()
    assert callable_["model"] == "acme/chat"
