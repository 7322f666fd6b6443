"""Quotas over REST."""

import pytest

from quotas.amount import Kind
from runtime.wire.devices import DeviceKind
from scheduling import cycle
from serving import services as serving
from tenants.roles import Role
from tests.build import catalog
from tests.build import controlplane as build
from tests.build.machines import FakeAgent

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
    assert after == before | {"replicas": 7, "hbm_bytes": -1}
    assert admin.get("/api/v1/tenants/acme/quota").json() == response.json()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing named"),
        pytest.param({"replicas": -2}, id="below unlimited"),
        pytest.param({"replicas": 2**31}, id="too many"),
        pytest.param({"hbm_bytes": "much"}, id="no number"),
        pytest.param({"gpu_millis": 1000, "guaranteed_gpu_millis": 2000}, id="more guaranteed than allowed"),
        pytest.param({"over_quota_weight": 1001}, id="too heavy"),
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


def test_guarantee_weight_and_use_stand_beside_each_other(tenant, admin):
    body = {"gpu_millis": 4000, "guaranteed_gpu_millis": 1500, "over_quota_weight": 50}
    answer = admin.put("/api/v1/admin/tenants/acme/quota", body, format="json").json()
    line = next(item for item in answer["items"] if item["quota"] == "gpu_millis")
    assert line == {
        "quota": "gpu_millis", "used": 0, "limit": 4000, "left": 4000, "guaranteed": 1500, "borrowed": 0,
    }  # fmt: skip
    assert (answer["over_quota_weight"], answer["group"]) == (50, "")


def test_a_group_bounds_its_tenants_together(tenant, admin):
    groups = "/api/v1/admin/quota-groups"
    made = admin.put(f"{groups}/research", {"replicas": 3, "gpu_millis": 2000}, format="json")
    assert (made.status_code, made.json()["members"]) == (200, [])
    other = build.make_tenant("other")
    for slug in ("acme", "other"):
        body = {"group": "research", "replicas": 3, "guaranteed_gpu_millis": 0}
        assert admin.put(f"/api/v1/admin/tenants/{slug}/quota", body, format="json").json()["group"] == "research"
    version = catalog.checked_version(other)
    serving.deploy_version(
        actor=build.actor_for(build.owner_of(other)), tenant=other, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=2,
    )  # fmt: skip
    items = admin.get("/api/v1/tenants/acme/quota").json()["items"]
    assert next(item for item in items if item["quota"] == "replicas")["left"] == 1
    mine = catalog.checked_version(tenant)
    body = {"endpoint": "chat", "model": mine.model.name, "version": str(mine.number), "replicas": 2}
    client = build.client_for(build.owner_of(tenant))
    refused = client.post("/api/v1/tenants/acme/deployments", body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    assert "its group has no more" in refused.json()["detail"]
    assert admin.get(groups).json()["items"][0]["members"] == ["acme", "other"]
    assert admin.delete(f"{groups}/research").json()["code"] == "quota_group_in_use"
    for slug, guaranteed, status in (("acme", 1500, 200), ("other", 600, 400), ("other", 500, 200)):
        answer = admin.put(f"/api/v1/admin/tenants/{slug}/quota", {"guaranteed_gpu_millis": guaranteed}, format="json")
        assert answer.status_code == status, answer.json()
    for slug in ("acme", "other"):
        admin.put(f"/api/v1/admin/tenants/{slug}/quota", {"group": ""}, format="json")
    assert admin.delete(f"{groups}/research").status_code == 204
    assert admin.delete(f"{groups}/research").json()["code"] == "quota_group_not_found"


def test_a_preview_says_whom_a_change_would_hurt_and_writes_nothing(tenant, admin):
    node = FakeAgent("mill", kind=DeviceKind.CUDA)
    node.join()
    node.report()
    version = catalog.checked_version(tenant)
    serving.deploy_version(
        actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    cycle.run()
    where = "/api/v1/admin/tenants/acme/quota/preview"
    before = admin.get("/api/v1/tenants/acme/quota").json()
    nothing = admin.post(where, {"replicas": 5}, format="json").json()
    assert (nothing["hurts"], nothing["reclaimable"]) == (False, [])
    found = admin.post(where, {"replicas": 0, "guaranteed_gpu_millis": 0}, format="json").json()
    change = {each["quota"]: each for each in found["changes"]}
    assert (change["replicas"]["over"], change["gpu_millis"]["over"]) == (1, 0)
    assert change["gpu_millis"]["newly_borrowed"] == change["gpu_millis"]["used"] > 0
    assert [(held["endpoint"], held["gpu_millis"]) for held in found["reclaimable"]] == [
        ("chat", change["gpu_millis"]["used"])
    ]
    small = admin.post(where, {"gpu_millis": 0, "storage_bytes": 1}, format="json").json()
    kept = {each["quota"]: (each["over"] > 0, each["newly_borrowed"]) for each in small["changes"]}
    assert (kept["storage_bytes"], kept["gpu_millis"], small["reclaimable"]) == ((True, 0), (True, 0), [])
    assert admin.get("/api/v1/tenants/acme/quota").json() == before
    admin.put("/api/v1/admin/tenants/acme/quota", {"guaranteed_gpu_millis": 0}, format="json")
    lighter = admin.post(where, {"over_quota_weight": 1}, format="json").json()
    assert [held["endpoint"] for held in lighter["reclaimable"]] == ["chat"]
    both = {"guaranteed_hbm_bytes": 2**37, "over_quota_weight": 1}  # GPUs decide: they are above their guarantee
    assert [held["endpoint"] for held in admin.post(where, both, format="json").json()["reclaimable"]] == ["chat"]
    build.make_tenant("other")
    body = {"gpu_millis": 5000, "guaranteed_gpu_millis": 0}
    admin.put("/api/v1/admin/tenants/other/quota", body, format="json")
    larger = admin.post("/api/v1/admin/tenants/other/quota/preview", {"guaranteed_gpu_millis": 900}, format="json")
    assert [each["tenant"] for each in larger.json()["may_lose"]] == ["acme"]
    owner = build.client_for(build.owner_of(tenant))
    assert owner.post(where, {"replicas": 5}, format="json").status_code == 403
