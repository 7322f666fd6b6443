"""What keys may: names of REST, bounds, edits, rotation, addresses, and that a key gives no more than it has."""

import datetime

import pytest
from rest_framework.test import APIClient

from kernel import clock
from ledger import generations
from tenants import terms
from tenants.models import Tenant
from tenants.roles import Role
from tenants.terms import Budget, Terms
from tests.build.controlplane import bearer, client_for, key_client, make_member, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db

FULL = {
    "name": "prod",
    "rpm_limit": 60,
    "tpm_limit": 100_000,
    "max_parallel_requests": 4,
    "max_budget": 12.5,
    "budget_unit": "cost",
    "budget_duration": "week",
    "budget_blocks": False,
    "allowed_endpoints": ["chat", "other/chat"],
    "allowed_addresses": ["10.1.2.3/8", "2001:db8::/32"],
    "criticalities": ["critical"],
    "expires_at": "2030-01-01T00:00:00Z",
}


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def owner(tenant: Tenant) -> APIClient:
    return client_for(owner_of(tenant))


URL = "/api/v1/tenants/acme/keys"


def make(client: APIClient, want: int = 201, **fields: object) -> dict:
    answer = client.post(URL, {"name": "k", **fields}, format="json")
    assert answer.status_code == want, answer.json()
    return answer.json()


def test_a_key_is_made_with_the_names_that_users_know_and_read_back(owner: APIClient) -> None:
    made = make(owner, **FULL)
    want = {**FULL, "allowed_addresses": ["10.0.0.0/8", "2001:db8::/32"]}
    read = owner.get(f"{URL}/{made['id']}").json()
    assert {name: read[name] for name in want} == want
    assert "key" not in read


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rpm_limit": 0}, "rpm_limit"),
        ({"max_budget": 0}, "max_budget"),
        ({"max_budget": 1.5}, "max_budget"),  # half a token
        ({"max_budget": 10**14, "budget_unit": "cost"}, "max_budget"),
        ({"budget_duration": "year"}, "budget_duration"),
        ({"allowed_addresses": ["10.0.0.0/33"]}, "allowed_addresses"),
        ({"allowed_addresses": ["example.org"]}, "allowed_addresses"),
        ({"allowed_addresses": ["10.0.0.1"] * 51}, "allowed_addresses"),
        ({"criticalities": ["urgent"]}, "criticalities"),
        ({"name": "\u202egnirts"}, "name"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_what_cannot_be_is_refused_by_name(owner: APIClient, fields: dict, field: str) -> None:
    assert field in str(make(owner, 400, **fields))


def test_limits_are_edited_without_a_new_secret_and_gateways_hear_of_it(owner: APIClient) -> None:
    made = make(owner, **FULL, scopes=["manage"])
    before = generations.current(generations.ROUTES)
    answer = owner.patch(f"{URL}/{made['id']}", {"rpm_limit": None, "max_budget": 20, "name": "n"}, format="json")
    assert answer.status_code == 200, answer.json()
    body = answer.json()
    assert (body["rpm_limit"], body["tpm_limit"], body["max_budget"], body["name"]) == (None, 100_000, 20, "n")
    assert (body["budget_unit"], body["budget_duration"]) == ("cost", "week")
    assert (body["masked"], "key" in body) == (made["masked"], False)
    assert generations.current(generations.ROUTES) == before + 1
    gone = owner.patch(f"{URL}/{made['id']}", {"max_budget": None}, format="json").json()
    assert gone["max_budget"] is None
    viewer = client_for(make_member(Tenant.objects.get(slug="acme"), Role.VIEWER))
    assert viewer.patch(f"{URL}/{made['id']}", {"rpm_limit": 1}, format="json").status_code == 403


def test_another_unit_needs_a_number(owner: APIClient) -> None:
    made = make(owner, max_budget=1000)
    answer = owner.patch(f"{URL}/{made['id']}", {"budget_unit": "cost"}, format="json")
    assert (answer.status_code, "max_budget" in answer.json()["detail"]) == (400, True)


def test_an_expired_key_can_be_edited_and_given_new_life(owner: APIClient) -> None:
    made = make(owner, expires_at=(clock.now() + datetime.timedelta(hours=1)).isoformat())
    later = clock.now() + datetime.timedelta(days=1)
    with clock.frozen(later):
        assert owner.patch(f"{URL}/{made['id']}", {"name": "old"}, format="json").status_code == 200
        fresh = (later + datetime.timedelta(days=1)).isoformat()
        assert owner.patch(f"{URL}/{made['id']}", {"expires_at": fresh}, format="json").status_code == 200


def test_a_revoked_key_is_not_edited_or_rotated(owner: APIClient) -> None:
    made = make(owner)
    owner.post(f"{URL}/{made['id']}/revoke")
    assert owner.patch(f"{URL}/{made['id']}", {"rpm_limit": 1}, format="json").json()["code"] == "key_revoked"
    assert owner.post(f"{URL}/{made['id']}/rotate").json()["code"] == "key_revoked"


def test_rotation_overlaps(owner: APIClient) -> None:
    made = make(owner, scopes=["manage"])
    turned = owner.post(f"{URL}/{made['id']}/rotate", {"overlap_seconds": 60}, format="json").json()
    assert turned["key"] != made["key"]
    assert turned["previous_expires_at"]
    both = [bearer(made["key"]), bearer(turned["key"])]
    assert [client.get("/api/v1/me").status_code for client in both] == [200, 200]
    with clock.frozen(clock.now() + datetime.timedelta(seconds=61)):
        assert [client.get("/api/v1/me").status_code for client in both] == [401, 200]
    # A second rotation: the first text is out at once, whatever time it had.
    third = owner.post(f"{URL}/{made['id']}/rotate", {"overlap_seconds": 0}, format="json").json()
    assert third["previous_expires_at"] is None
    texts = [made["key"], turned["key"], third["key"]]
    assert [bearer(text).get("/api/v1/me").status_code for text in texts] == [401, 401, 200]
    too_long = owner.post(f"{URL}/{made['id']}/rotate", {"overlap_seconds": 10**8}, format="json")
    assert too_long.status_code == 400


def test_a_key_for_other_addresses_is_refused(owner: APIClient) -> None:
    near = make(owner, scopes=["manage"], allowed_addresses=["127.0.0.0/8"])
    far = make(owner, scopes=["manage"], allowed_addresses=["10.0.0.0/8"])
    assert bearer(near["key"]).get("/api/v1/me").status_code == 200
    assert bearer(far["key"]).get("/api/v1/me").json()["code"] == "address_not_allowed"


LIMITED = Terms(
    requests_per_minute=10,
    tokens_per_minute=1000,
    max_parallel_requests=2,
    budget=Budget(limit=500, unit="tokens", duration="day"),
    expires_at=datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC),
    allowed_endpoints=("chat", "code"),
    allowed_addresses=("127.0.0.0/8",),
)


def limited_client(tenant: Tenant) -> APIClient:
    fields = {name: getattr(LIMITED, name) for name in terms.PUBLIC_NAMES}
    return key_client(tenant, **fields)


def test_a_limited_key_hands_on_its_own_limits(tenant: Tenant) -> None:
    made = make(limited_client(tenant))
    assert (made["rpm_limit"], made["tpm_limit"], made["max_parallel_requests"]) == (10, 1000, 2)
    assert (made["max_budget"], made["budget_duration"]) == (500, "day")
    assert (made["allowed_endpoints"], made["allowed_addresses"]) == (["chat", "code"], ["127.0.0.0/8"])
    assert made["expires_at"].startswith("2031-01-01")
    narrower = make(
        limited_client(tenant), rpm_limit=5, max_budget=100, budget_duration="day", allowed_endpoints=["code"],
        allowed_addresses=["127.0.0.1"], expires_at="2030-01-01T00:00:00Z",
    )  # fmt: skip
    assert (narrower["rpm_limit"], narrower["allowed_endpoints"]) == (5, ["code"])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rpm_limit": 11}, "rpm_limit"),
        ({"tpm_limit": 1001}, "tpm_limit"),
        ({"max_parallel_requests": 3}, "max_parallel_requests"),
        ({"max_budget": 501, "budget_duration": "day"}, "max_budget"),
        ({"max_budget": 500, "budget_duration": "hour"}, "max_budget"),
        ({"max_budget": 1, "budget_unit": "cost", "budget_duration": "day"}, "max_budget"),
        ({"max_budget": 5, "budget_duration": "day", "budget_blocks": False}, "max_budget"),
        ({"expires_at": "2032-01-01T00:00:00Z"}, "expires_at"),
        ({"allowed_endpoints": ["chat", "secret"]}, "allowed_endpoints"),
        ({"allowed_addresses": ["0.0.0.0/0"]}, "allowed_addresses"),
        ({"criticalities": ["critical"]}, "criticalities"),
    ],
)
def test_a_key_cannot_make_a_wider_one_nor_widen_one(tenant: Tenant, fields: dict, named: str) -> None:
    client = limited_client(tenant)
    refused = make(client, 403, **fields)
    assert (refused["code"], named in refused["detail"]) == ("key_too_wide", True)
    made = make(client)
    widened = client.patch(f"{URL}/{made['id']}", fields, format="json")
    assert (widened.status_code, widened.json()["code"]) == (403, "key_too_wide")


def test_a_limited_key_gets_no_hold_of_a_wider_one(owner: APIClient, tenant: Tenant) -> None:
    wide = make(owner)
    client = limited_client(tenant)
    assert client.post(f"{URL}/{wide['id']}/rotate").json()["code"] == "key_too_wide"
    assert client.patch(f"{URL}/{wide['id']}", {"name": "mine"}, format="json").json()["code"] == "key_too_wide"
    assert client.post(f"{URL}/{wide['id']}/revoke").status_code == 200


def test_an_unlimited_key_makes_any(tenant: Tenant) -> None:
    assert make(key_client(tenant), rpm_limit=10**9)["rpm_limit"] == 10**9


def test_tenant_limits_are_set_by_platform_admins_and_seen_by_members(owner: APIClient) -> None:
    admin = client_for(make_user(admin=True))
    url = "/api/v1/admin/tenants/acme/limits"
    assert owner.patch(url, {"rpm_limit": 1}, format="json").status_code == 403
    asked = {"rpm_limit": 600, "max_budget": 99.5, "budget_unit": "cost", "weight": 2.5}
    answer = admin.patch(url, asked, format="json")
    assert answer.status_code == 200, answer.json()
    admin.patch(url, {"tpm_limit": 7000}, format="json")
    seen = owner.get("/api/v1/tenants/acme").json()
    assert {name: seen[name] for name in asked} == asked
    assert (seen["tpm_limit"], seen["budget_duration"], seen["budget_blocks"]) == (7000, "month", True)
    assert admin.patch(url, {"weight": 0}, format="json").status_code == 400
    assert admin.patch(url, {"weight": 1000}, format="json").status_code == 400
