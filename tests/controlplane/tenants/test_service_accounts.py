"""Service accounts: a role and keys, no sign-in; ended at once; named in the audit log."""

import pytest
from rest_framework.test import APIClient

from kernel import scope
from ledger.models import AuditEvent
from tenants.models import ApiKey, Tenant
from tenants.roles import Role
from tenants.selectors import live_inference_keys
from tests.build.controlplane import bearer, client_for, key_client, make_member, make_tenant, owner_of

pytestmark = pytest.mark.django_db
URL = "/api/v1/tenants/acme/service-accounts"
KEYS = "/api/v1/tenants/acme/keys"


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def owner(tenant: Tenant) -> APIClient:
    return client_for(owner_of(tenant))


def make(client: APIClient, role: str = "developer", name: str = "CI") -> dict:
    answer = client.post(URL, {"name": name, "role": role}, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()


def key_of(client: APIClient, account: dict, **fields: object) -> dict:
    answer = client.post(f"{URL}/{account['id']}/keys", {"name": "k", "scopes": ["manage"], **fields}, format="json")
    assert answer.status_code == 201, answer.json()
    return answer.json()


@pytest.mark.parametrize(
    ("role", "reads", "makes_keys", "grants"),
    [("viewer", 200, 403, 403), ("developer", 200, 201, 403), ("admin", 200, 201, 404)],
)
def test_a_key_may_what_the_role_permits_and_no_more(
    owner: APIClient, role: str, reads: int, makes_keys: int, grants: int
) -> None:
    client = bearer(key_of(owner, make(owner, role))["key"])
    assert client.get(KEYS).status_code == reads
    assert client.post(KEYS, {"name": "x"}, format="json").status_code == makes_keys
    path = "/api/v1/tenants/acme/endpoints/none/grants"
    assert client.post(path, {"tenant": "other"}, format="json").status_code == grants
    assert client.get("/api/v1/me").json()["tenants"] == [{"slug": "acme", "name": "Acme", "role": role}]


def test_no_key_manages_members(owner: APIClient) -> None:
    client = bearer(key_of(owner, make(owner, "admin"))["key"])
    assert client.post(URL, {"name": "y", "role": "viewer"}, format="json").status_code == 403
    body = {"email": "x@example.org", "role": "viewer"}
    assert client.post("/api/v1/tenants/acme/invitations", body, format="json").status_code == 403


def test_what_it_does_is_audited_under_its_name(owner: APIClient) -> None:
    client = bearer(key_of(owner, make(owner))["key"])
    made = client.post(KEYS, {"name": "app"}, format="json", HTTP_X_REQUEST_ID="req-77777777").json()
    assert made["service_account"] == "CI"  # what it makes is its own, and ends with it
    event = AuditEvent.objects.filter(action="api_key.created", subject_id=made["id"]).get()
    assert (event.actor_kind, event.actor_label, event.way) == ("key", "service account CI", "api")
    assert (event.address, event.request_id) == ("127.0.0.1", "req-77777777")


@pytest.mark.parametrize("end", ["disable", "delete"])
def test_its_end_revokes_every_key_at_once(owner: APIClient, tenant: Tenant, end: str) -> None:
    account = make(owner)
    client = bearer(key_of(owner, account, scopes=["manage", "inference"])["key"])
    client.post(KEYS, {"name": "app"}, format="json")
    assert live_inference_keys().count() == 2
    if end == "disable":
        answer = owner.post(f"{URL}/{account['id']}/disable")
        assert (answer.status_code, answer.json()["keys_revoked"]) == (200, 2)
    else:
        assert owner.delete(f"{URL}/{account['id']}").status_code == 204
    assert live_inference_keys().count() == 0
    assert client.get("/api/v1/me").json()["code"] == "invalid_api_key"
    with scope.tenant(tenant.id):
        assert not ApiKey.objects.filter(revoked_at=None, service_account=account["id"]).exists()
        assert not ApiKey.objects.filter(revoked_generation=None).exists()
    refused = owner.post(f"{URL}/{account['id']}/keys", {"name": "k"}, format="json")
    if end == "delete":
        assert refused.status_code == 404
        assert make(owner)["name"] == "CI"  # the name is free again
        return
    assert refused.json()["code"] == "service_account_disabled"
    owner.post(f"{URL}/{account['id']}/enable")
    assert key_of(owner, account)["key"]
    assert client.get("/api/v1/me").status_code == 401


def test_another_role_holds_from_the_next_call_on(owner: APIClient) -> None:
    account = make(owner)
    client = bearer(key_of(owner, account)["key"])
    assert client.post(KEYS, {"name": "x"}, format="json").status_code == 201
    owner.patch(f"{URL}/{account['id']}", {"role": "viewer"}, format="json")
    assert client.post(KEYS, {"name": "x"}, format="json").status_code == 403


def test_nobody_gets_hold_of_a_key_that_may_more_than_they(owner: APIClient, tenant: Tenant) -> None:
    """A developer may manage keys, but neither those of service accounts nor those that may grant."""
    developer = client_for(make_member(tenant, Role.DEVELOPER))
    account = make(owner, "admin")
    theirs = key_of(owner, account)
    wide = owner.post(KEYS, {"name": "wide", "scopes": ["manage"]}, format="json").json()
    assert developer.post(f"{URL}/{account['id']}/keys", {"name": "k"}, format="json").status_code == 403
    for key in (theirs, wide):
        assert developer.post(f"{KEYS}/{key['id']}/rotate").status_code == 403
        assert developer.patch(f"{KEYS}/{key['id']}", {"allowed_addresses": []}, format="json").status_code == 403
    other = key_client(tenant)
    assert other.post(f"{KEYS}/{theirs['id']}/rotate").json()["code"] == "key_too_wide"
    mine = bearer(theirs["key"])
    assert mine.post(f"{KEYS}/{theirs['id']}/rotate").status_code == 200
    assert bearer(key_of(owner, make(owner, name="B"))["key"]).post(f"{KEYS}/{theirs['id']}/rotate").status_code == 403
    assert mine.post(f"{KEYS}/{wide['id']}/rotate").json()["code"] == "key_too_wide"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "CI", "role": "owner"}, 400, "invalid_input"),
        ({"name": " ", "role": "viewer"}, 400, "invalid_input"),
        ({"name": "ci", "role": "viewer"}, 409, "name_taken"),
    ],
)
def test_what_cannot_be(owner: APIClient, body: dict, status: int, code: str) -> None:
    make(owner)
    answer = owner.post(URL, body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
