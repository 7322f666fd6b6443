"""REST of tenants, members and keys."""

import datetime

import pytest
from django.core.cache import cache
from rest_framework.test import APIClient

from kernel import clock, scope
from ledger import generations
from ledger.models import AuditEvent
from tenants import services
from tenants.models import ApiKey, Member, Tenant
from tenants.roles import Role
from tenants.selectors import live_inference_keys
from tests.build.controlplane import (
    PASSWORD,
    actor_for,
    bearer,
    client_for,
    key_client,
    make_member,
    make_tenant,
    make_user,
    owner_of,
)

pytestmark = pytest.mark.django_db


def login(email: str, password: str) -> APIClient:
    answer = APIClient().post("/api/v1/login", {"email": email, "password": password}, format="json")
    assert answer.status_code == 201, answer.json()
    return bearer(answer.json()["token"])


def test_login_gives_a_token_that_acts_as_the_user() -> None:
    tenant = make_tenant("acme")
    client = login(owner_of(tenant).email.upper(), PASSWORD)
    me = client.get("/api/v1/me").json()
    assert me["tenants"] == [{"slug": "acme", "name": "Acme", "role": "owner"}]
    assert client.post("/api/v1/logout").status_code == 204
    answer = client.get("/api/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")


@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_password_and_an_unknown_address_look_the_same(known: bool) -> None:
    email = make_user().email if known else "nobody@example.org"
    answer = APIClient().post("/api/v1/login", {"email": email, "password": "wrong"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (401, "wrong_credentials")
    assert answer["Content-Type"] == "application/problem+json"


def test_an_expired_token_is_refused() -> None:
    user = make_user()
    client = client_for(user)
    with clock.frozen(clock.now() + datetime.timedelta(days=31)):
        assert client.get("/api/v1/me").status_code == 401


def test_a_key_is_shown_once_and_stored_as_a_digest() -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    answer = client.post(f"/api/v1/tenants/{tenant.slug}/keys", {"name": "app"}, format="json")
    body = answer.json()
    assert answer.status_code == 201
    assert body["key"].startswith("mp_")
    listed = client.get(f"/api/v1/tenants/{tenant.slug}/keys").json()["data"]
    assert [key["name"] for key in listed] == ["app"]
    assert "key" not in listed[0]
    with scope.all_tenants():
        row = ApiKey.objects.get(id=body["id"])
    assert body["key"] not in {str(value) for value in vars(row).values()}


def test_a_revoked_key_stops_working_and_stays_revoked() -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    made = client.post(f"/api/v1/tenants/{tenant.slug}/keys", {"name": "x", "scopes": ["manage"]}, format="json").json()
    using = bearer(made["key"])
    assert using.get("/api/v1/me").status_code == 200
    assert client.post(f"/api/v1/tenants/{tenant.slug}/keys/{made['id']}/revoke").json()["revoked_at"]
    assert using.get("/api/v1/me").json()["code"] == "invalid_api_key"
    assert client.post(f"/api/v1/tenants/{tenant.slug}/keys/{made['id']}/revoke").status_code == 409


def test_an_inference_key_cannot_manage() -> None:
    client = key_client(make_tenant(), ["inference"])
    assert client.get("/api/v1/me").json()["code"] == "scope_missing"


def test_keys_cannot_manage_members() -> None:
    tenant = make_tenant()
    answer = key_client(tenant).post(
        f"/api/v1/tenants/{tenant.slug}/members", {"email": make_user().email, "role": "owner"}, format="json"
    )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("role", "want"), [(Role.VIEWER, 403), (Role.DEVELOPER, 201), (Role.ADMIN, 201), (Role.OWNER, 201)], ids=str
)
def test_who_may_make_keys(role: Role, want: int) -> None:
    tenant = make_tenant()
    client = client_for(make_member(tenant, role))
    answer = client.post(f"/api/v1/tenants/{tenant.slug}/keys", {"name": "x"}, format="json")
    assert answer.status_code == want
    if want == 403:
        assert "developer" in answer.json()["detail"]


@pytest.mark.parametrize(("role", "want"), [(Role.DEVELOPER, 403), (Role.ADMIN, 201), (Role.OWNER, 201)], ids=str)
def test_a_key_carries_no_more_than_who_makes_it(role: Role, want: int) -> None:
    """A key that manages can grant endpoints, which a developer may not."""
    tenant = make_tenant()
    client = client_for(make_member(tenant, role))
    body = {"name": "x", "scopes": ["inference", "manage"]}
    assert client.post(f"/api/v1/tenants/{tenant.slug}/keys", body, format="json").status_code == want


@pytest.mark.parametrize("end", ["removed", "viewer"])
def test_a_playground_key_ends_with_the_right_to_the_playground(end: str) -> None:
    tenant = make_tenant()
    user = make_member(tenant)
    services.mint_playground_key(actor=actor_for(user), tenant=tenant)
    kept, _text = services.create_api_key(actor=actor_for(user), tenant=tenant, name="app", scopes=["inference"])
    before = generations.current(generations.ROUTES)
    with scope.tenant(tenant.id):
        member = Member.objects.get(user=user)
    owner = actor_for(owner_of(tenant))
    if end == "removed":
        services.remove_member(actor=owner, tenant=tenant, member=member)
    else:
        services.set_member(actor=owner, tenant=tenant, user=user, role=Role.VIEWER)
    assert list(live_inference_keys()) == [kept]
    assert generations.current(generations.ROUTES) > before


def test_the_last_owner_stays() -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    member = client.get(f"/api/v1/tenants/{tenant.slug}/members").json()["data"][0]
    answer = client.delete(f"/api/v1/tenants/{tenant.slug}/members/{member['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")


def test_an_admin_cannot_make_itself_owner() -> None:
    tenant = make_tenant()
    admin = make_member(tenant, Role.ADMIN)
    answer = client_for(admin).post(
        f"/api/v1/tenants/{tenant.slug}/members", {"email": admin.email, "role": "owner"}, format="json"
    )
    assert answer.status_code == 403


def test_a_stranger_learns_nothing() -> None:
    tenant = make_tenant()
    answer = client_for(make_user()).get(f"/api/v1/tenants/{tenant.slug}")
    missing = client_for(make_user()).get("/api/v1/tenants/no-such-tenant")
    assert answer.status_code == missing.status_code == 404
    assert answer.json()["code"] == missing.json()["code"]


def test_tenants_are_made_by_platform_admins_once_per_idempotency_key() -> None:
    admin = client_for(make_user(admin=True))
    body = {"slug": "harbor", "name": "Harbor", "owner_email": make_user().email}
    first = admin.post("/api/v1/tenants", body, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    again = admin.post("/api/v1/tenants", body, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    other = admin.post("/api/v1/tenants", {**body, "name": "Else"}, format="json", HTTP_IDEMPOTENCY_KEY="k1")
    assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
    assert again["Idempotency-Replayed"] == "true"
    assert first.json() == again.json()
    assert Tenant.objects.filter(slug="harbor").count() == 1
    assert admin.post("/api/v1/tenants", body, format="json").json()["code"] == "slug_taken"
    assert client_for(make_user()).post("/api/v1/tenants", body, format="json").status_code == 403


@pytest.mark.parametrize("slug", ["", "Ä", "-x", "x-", "a/b", "x" * 41])
def test_bad_tenant_names_are_refused(slug: str) -> None:
    answer = client_for(make_user(admin=True)).post("/api/v1/tenants", {"slug": slug}, format="json")
    assert answer.status_code == 400


def test_pages_do_not_shift_while_rows_are_added() -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    url = f"/api/v1/tenants/{tenant.slug}/keys"
    for number in range(5):
        client.post(url, {"name": f"k{number}"}, format="json")
    first = client.get(url, {"limit": 2}).json()
    client.post(url, {"name": "late"}, format="json")
    second = client.get(url, {"limit": 2, "after": first["last_id"]}).json()
    back = client.get(url, {"limit": 2, "before": second["first_id"]}).json()
    assert [row["name"] for row in first["data"] + second["data"]] == ["k4", "k3", "k2", "k1"]
    assert back["data"] == first["data"]
    assert client.get(url, {"limit": "0"}).status_code == 400
    assert client.get(url, {"after": "x"}).status_code == 400


def test_every_change_is_audited_with_actor_way_and_request() -> None:
    tenant = make_tenant()
    owner = owner_of(tenant)
    client = client_for(owner)
    client.post(
        f"/api/v1/tenants/{tenant.slug}/keys", {"name": "x"}, format="json", HTTP_X_REQUEST_ID="req-12345678",
        HTTP_USER_AGENT="millpond-cli/0.1.0",
    )  # fmt: skip
    event = AuditEvent.objects.get(action="api_key.created", subject_label="x")
    assert (event.actor_label, event.way, event.request_id) == (owner.email, "cli", "req-12345678")
    listed = client.get(f"/api/v1/tenants/{tenant.slug}/events").json()["data"]
    assert listed[0]["action"] == "api_key.created"


def test_a_suspended_tenant_can_be_read_but_not_changed_until_it_resumes() -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    admin = client_for(make_user(admin=True))
    url = f"/api/v1/admin/tenants/{tenant.slug}"
    assert admin.post(f"{url}/suspend", {}, format="json").status_code == 400
    before = generations.current(generations.ROUTES)
    assert admin.post(f"{url}/suspend", {"reason": "Unpaid."}, format="json").json()["suspended_at"]
    assert generations.current(generations.ROUTES) > before
    assert client.get(f"/api/v1/tenants/{tenant.slug}/keys").status_code == 200
    answer = client.post(f"/api/v1/tenants/{tenant.slug}/keys", {"name": "x"}, format="json")
    assert answer.json()["code"] == "tenant_suspended"
    events = client.get(f"/api/v1/tenants/{tenant.slug}/events").json()["data"]
    assert (events[0]["action"], events[0]["message"]) == ("tenant.suspended", "Unpaid.")
    assert admin.post(f"{url}/resume").json()["suspended_at"] is None
    assert client.post(f"/api/v1/tenants/{tenant.slug}/keys", {"name": "x"}, format="json").status_code == 201


def test_guessing_passwords_is_slowed_down_whatever_the_forwarded_header_says() -> None:
    cache.clear()
    answers = [
        APIClient().post(
            "/api/v1/login",
            {"email": f"n{number}@example.org", "password": "wrong"},
            format="json",
            HTTP_X_FORWARDED_FOR=f"10.0.0.{number}",
        )
        for number in range(11)
    ]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    assert answers[-1]["Content-Type"] == "application/problem+json"
    assert int(answers[-1]["Retry-After"]) >= 1
    cache.clear()
