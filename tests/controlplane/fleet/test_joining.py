"""Joining: a one-time token buys a credential; the same machine stays the same node."""

import datetime

import pytest

from fleet.models import Gateway, JoinToken, MachineKind, Node
from kernel import clock
from ledger.models import AuditEvent
from runtime.wire.joining import JoinReply, JoinRequest
from runtime.wire.version import ProtocolVersion
from tests.build.controlplane import client_for, make_user
from tests.build.machines import FakeAgent, FakeGateway, Refused, join_token

pytestmark = pytest.mark.django_db


def refusal(action):
    with pytest.raises(Refused) as caught:
        action()
    return caught.value.status, caught.value.body.code.value


def test_a_token_works_once_and_only_digests_are_kept():
    token = join_token()
    agent = FakeAgent("alpha")
    agent.join(token)
    assert agent.credential.startswith("mpn_")
    node = Node.objects.get()
    assert (node.name, node.state, str(node.id)) == ("alpha", "joining", agent.id)
    row = JoinToken.objects.get()
    assert (row.used_by, row.used_at is not None) == (node.id, True)
    kept = str([JoinToken.objects.values(), Node.objects.values(), AuditEvent.objects.values()])
    assert token not in kept
    assert agent.credential not in kept
    assert refusal(lambda: FakeAgent().join(token)) == (401, "token_used")


def test_unknown_expired_and_foreign_tokens_are_refused():
    assert refusal(lambda: FakeAgent().join("mpj_abcdefghjkmn_nonsense")) == (401, "unauthenticated")
    assert refusal(lambda: FakeAgent().join(join_token(MachineKind.GATEWAY))) == (401, "unauthenticated")
    token = join_token()
    with clock.frozen(clock.now() + datetime.timedelta(minutes=61)):
        assert refusal(lambda: FakeAgent().join(token)) == (401, "unauthenticated")
    assert Node.objects.count() == 0


def test_the_same_machine_is_the_same_node_with_a_new_credential():
    first = FakeAgent("alpha", machine_id="machine-0001")
    first.join()
    first.report()
    again = FakeAgent("renamed", machine_id="machine-0001")
    again.join()
    assert again.id == first.id
    assert Node.objects.get().name == "renamed"
    assert refusal(first.report) == (401, "unauthenticated")
    again.report()
    assert Node.objects.get().state == "ready"


def test_a_gateway_joins_and_reports():
    gateway = FakeGateway("edge")
    gateway.join()
    gateway.routes()
    gateway.report(in_flight=3)
    row = Gateway.objects.get()
    assert (row.name, row.in_flight, row.applied_generation) == ("edge", 3, gateway.table.generation)
    admin = client_for(make_user(admin=True))
    (shown,) = admin.get("/api/v1/gateways").json()["data"]
    assert (shown["live"], shown["current"]) == (True, True)
    assert refusal(lambda: gateway.report(gateway_id="somebody")) == (400, "malformed")
    assert admin.post(f"/api/v1/gateways/{row.id}/remove").status_code == 200
    assert refusal(gateway.routes) == (410, "removed")


def test_a_node_credential_opens_no_gateway_door_and_the_other_way_round():
    agent, gateway = FakeAgent(), FakeGateway()
    agent.join()
    gateway.join()
    agent.credential, gateway.credential = gateway.credential, agent.credential
    assert refusal(agent.report) == (401, "unauthenticated")
    assert refusal(gateway.routes) == (401, "unauthenticated")
    agent.credential = ""
    assert refusal(agent.report) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"machine_id": "short"}, "malformed"),
        ({"name": ""}, "malformed"),
        ({"name": "bad\nname"}, "malformed"),
        ({"protocol": ProtocolVersion(major=2)}, "unsupported_protocol"),
    ],
)
def test_a_join_request_that_cannot_be_used(change, code):
    values = {"token": join_token(), "name": "n", "machine_id": "machine-0001", "version": "1", **change}
    assert refusal(lambda: FakeAgent().post("/join", JoinRequest(**values), JoinReply)) == (400, code)
    assert JoinToken.objects.get().used_at is None


def test_tokens_are_made_by_platform_admins_over_rest():
    admin = client_for(make_user(admin=True))
    answer = admin.post("/api/v1/nodes/tokens", {"kind": "node", "name": "rack-7"}, format="json")
    assert answer.status_code == 201
    body = answer.json()
    assert "python -m runtime.agent" in body["command"]
    assert body["token"] not in body["command"]  # arguments and variables can be read by others
    agent = FakeAgent("own-name")
    agent.join(body["token"])
    assert Node.objects.get().name == "rack-7"
    assert client_for(make_user()).post("/api/v1/nodes/tokens", {}, format="json").status_code == 403


def test_malformed_bodies_and_wrong_methods_are_answered_in_the_wires_words():
    agent = FakeAgent()
    agent.join()
    answer = agent.http.post(
        "/internal/v1/nodes/report", b"{", content_type="application/json", headers=agent.headers()
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    answer = agent.http.get("/internal/v1/nodes/report", headers=agent.headers())
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    answer = agent.http.post(
        "/internal/v1/nodes/report", b"x" * (4 * 1024**2 + 1), content_type="application/json", headers=agent.headers()
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "malformed")
