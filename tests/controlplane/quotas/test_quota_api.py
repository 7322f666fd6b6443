"""Quotas over REST."""

import pytest

from quotas.amount import Kind
from tenants.roles import Role
from tests.build import controlplane as build

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return build.make_tenant("acme")


@pytest.fixture
def admin():
    return build.client_for(build.make_user(admin=True))


def test_every_member_sees_what_is_held_and_allowed(tenant):
    client = build.client_for(build.make_member(tenant, Role.VIEWER))
    response = client.get("/api/v1/tenants/acme/quota")
    assert response.status_code == 200
    items = response.json()["items"]
    assert [item["quota"] for item in items] == [kind.value for kind in Kind]
    assert all(item["used"] == 0 and item["limit"] >= -1 for item in items)


def test_a_platform_admin_sets_some_limits_and_the_others_stay(tenant, admin):
    before = {item["quota"]: item["limit"] for item in admin.get("/api/v1/tenants/acme/quota").json()["items"]}
    response = admin.put("/api/v1/admin/tenants/acme/quota", {"replicas": 7, "hbm_bytes": -1}, format="json")
    assert response.status_code == 200
    after = {item["quota"]: item["limit"] for item in response.json()["items"]}
    assert after == {"replicas": 7, "hbm_bytes": -1, "storage_bytes": before["storage_bytes"]}
    assert admin.get("/api/v1/tenants/acme/quota").json() == response.json()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing named"),
        pytest.param({"replicas": -2}, id="below unlimited"),
        pytest.param({"replicas": 2**31}, id="too many"),
        pytest.param({"hbm_bytes": "much"}, id="no number"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(tenant, admin, body):
    response = admin.put("/api/v1/admin/tenants/acme/quota", body, format="json")
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_input"


def test_owners_and_keys_cannot_set_their_own_limits(tenant):
    for client in (build.client_for(build.owner_of(tenant)), build.key_client(tenant)):
        response = client.put("/api/v1/admin/tenants/acme/quota", {"replicas": -1}, format="json")
        assert response.status_code == 403


def test_another_tenants_quota_does_not_exist(tenant):
    stranger = build.client_for(build.owner_of(build.make_tenant()))
    response = stranger.get("/api/v1/tenants/acme/quota")
    assert (response.status_code, response.json()["code"]) == (404, "tenant_not_found")
