"""Pages of keys, limits, prices and promises: what is filled in arrives, and what gateways say is seen."""

import datetime

import pytest
from django.test import Client

from dispatch import revocation
from fleet import gateways as fleet_gateways
from fleet.models import Device, Node
from kernel import clock, ids, scope
from metering import booking, deviceprices, prices
from metering.models import Holding
from metering.prices import TokenPrices
from serving import services as serving
from serving.models import Endpoint, Replica
from tenants import services
from tenants.models import ApiKey, Tenant
from tenants.terms import Budget
from tests.build import catalog
from tests.build.controlplane import actor_for, make_member, make_tenant, make_user, owner_of
from tests.build.machines import FakeGateway
from tests.controlplane.metering.usage_records import GATEWAY, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("harbor")


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def a_key(tenant: Tenant, **fields) -> ApiKey:
    return services.create_api_key(
        actor=actor_for(owner_of(tenant)), tenant=tenant, name="ci", scopes=["inference"], **fields
    )[0]


FORM = {
    "name": "ci", "scopes": ["inference"], "expires": "30", "rpm_limit": "60", "max_budget": "2.5",
    "budget_unit": "cost", "budget_duration": "week", "budget_does": "alerts",
    "allowed_addresses": "10.0.0.0/8\n2001:db8::1", "criticalities": ["critical"],
}  # fmt: skip


def test_a_key_is_made_with_all_its_terms(tenant: Tenant) -> None:
    client = signed_in(make_member(tenant))
    assert b"mp_" in client.post("/t/harbor/keys/new/", FORM).content
    with scope.all_tenants():
        key = ApiKey.objects.get()
    assert (key.requests_per_minute, key.budget_limit, key.budget_duration) == (60, 2_500_000, "week")
    assert (key.budget_unit, key.budget_blocks, key.criticalities) == ("cost", False, ["critical"])
    assert key.allowed_addresses == ["10.0.0.0/8", "2001:db8::1/128"]
    page = client.get("/t/harbor/keys/").content.decode()
    assert "2.50 USD" in page
    assert "only alerts" in page


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"allowed_addresses": "somewhere"}, "takes networks like"),
        ({"max_budget": "0.5", "budget_unit": "tokens"}, "counted whole"),
        ({"rpm_limit": "0"}, "At least 1"),
    ],
)
def test_what_cannot_be_is_said_in_the_dialog(tenant: Tenant, fields: dict, said: str) -> None:
    answer = signed_in(make_member(tenant)).post("/t/harbor/keys/new/", {**FORM, **fields})
    assert (answer.status_code, said in answer.content.decode()) == (422, True)


def test_a_key_is_edited_and_keeps_what_is_left(tenant: Tenant) -> None:
    key = a_key(tenant, requests_per_minute=5, expires_at=None, budget=Budget(limit=1000))
    client = signed_in(make_member(tenant))
    dialog = client.get(f"/t/harbor/keys/{key.id}/edit/").content.decode()
    assert 'value="1000"' in dialog
    form = {"name": "renamed", "expires": "keep", "tpm_limit": "700", "max_budget": "2000", "budget_unit": "tokens"}
    assert client.post(f"/t/harbor/keys/{key.id}/edit/", form).status_code == 302
    key.refresh_from_db()
    assert (key.name, key.requests_per_minute, key.tokens_per_minute) == ("renamed", None, 700)
    assert (key.budget_limit, key.expires_at) == (2000, None)


def test_a_new_secret_is_shown_once_and_the_old_one_lasts_as_chosen(tenant: Tenant) -> None:
    key = a_key(tenant)
    client = signed_in(make_member(tenant))
    assert b"New secret for ci?" in client.get(f"/t/harbor/keys/{key.id}/rotate/").content
    answer = client.post(f"/t/harbor/keys/{key.id}/rotate/", {"overlap": "3600"})
    assert "no-store" in answer["Cache-Control"]
    assert b"mp_" in answer.content
    before, _ = key.digest, key.refresh_from_db()
    assert key.previous_digest == before
    assert (key.previous_expires_at - clock.now()).total_seconds() == pytest.approx(3600, abs=60)
    assert "old secret ends" in client.get("/t/harbor/keys/").content.decode()


def test_revoking_says_which_gateways_refuse_the_key(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "WAIT_SECONDS", 0.0)
    key = a_key(tenant)
    gateway = FakeGateway("gw-1")
    gateway.join()
    gateway.routes()
    gateway.report()
    client = signed_in(make_member(tenant))
    answer = client.post(f"/t/harbor/keys/{key.id}/revoke/", follow=True).content.decode()
    assert "0 of 1 gateways refuse it; not yet: gw-1" in answer
    assert "acknowledged by 0 of 1 gateways, not yet by gw-1" in answer
    gateway.routes()
    gateway.report()
    assert "refused by all gateways" in client.get("/t/harbor/keys/").content.decode()


def test_limits_stand_beside_their_use(tenant: Tenant) -> None:
    admin = signed_in(make_user(admin=True))
    dialog = "/platform/tenants/harbor/limits/"
    assert b"Limits of Harbor" in admin.get(dialog).content
    form = {"rpm_limit": "600", "max_budget": "1000", "budget_unit": "tokens", "budget_duration": "day", "weight": "2"}
    assert admin.post(dialog, form).status_code == 302
    assert admin.post(dialog, {**form, "weight": "1000"}).status_code == 422
    tenant.refresh_from_db()
    assert (tenant.requests_per_minute, tenant.budget_limit, tenant.weight) == (600, 1000, 2.0)
    booking.book(gateway_id=GATEWAY, records=[record(tenant.id, at=clock.now(), completion_tokens=240)])
    page = signed_in(owner_of(tenant)).get("/t/harbor/settings/").content.decode()
    assert "250" in page
    assert "Weight beside other tenants: 2" in page
    assert signed_in(owner_of(tenant)).get(dialog).status_code == 403


def test_prices_are_set_and_seen(tenant: Tenant) -> None:
    owner = owner_of(tenant)
    endpoint = serving.create_endpoint(actor=actor_for(owner), tenant=tenant, name="chat")
    admin = signed_in(make_user(admin=True))
    assert admin.get("/platform/prices/set/").status_code == 200
    assert admin.post("/platform/prices/set/", {"prompt": "0.5", "completion": "1.5"}).status_code == 302
    one = {"endpoint": str(endpoint.id), "prompt": "3", "cached": "0.3", "completion": "4"}
    admin.post("/platform/prices/set/", one)
    assert prices.current().of(endpoint.id) == TokenPrices(prompt=3_000_000, cached=300_000, completion=4_000_000)
    assert b"harbor/chat" in admin.get("/platform/prices/").content
    assert 'value="3"' in admin.get(f"/platform/prices/set/?endpoint={endpoint.id}").content.decode()
    assert b"0.30" in signed_in(owner).get("/t/harbor/settings/").content
    assert admin.post("/platform/prices/set/", {"prompt": "-1", "completion": "1"}).status_code == 422
    assert admin.post(f"/platform/prices/{endpoint.id}/remove/").status_code == 302
    assert prices.current().of(endpoint.id).prompt == 500_000


def test_prices_for_later_are_seen_and_taken_back(tenant: Tenant) -> None:
    build_device("H100")
    admin = signed_in(make_user(admin=True))
    start = (clock.now() + datetime.timedelta(days=40)).replace(minute=0, second=0, microsecond=0, tzinfo=None)
    form = {"prompt": "7", "completion": "8", "valid_from": start.isoformat(timespec="minutes")}
    assert admin.post("/platform/prices/set/", form).status_code == 302
    assert admin.post("/platform/prices/set/", {**form, "valid_from": "2020-01-01T00:00"}).status_code == 422
    dialog = "/platform/prices/devices/set/"
    assert "H100" in admin.get(dialog).content.decode()
    assert (
        admin.post(dialog, {"product": "H100", "per_hour": "2.5", "valid_from": form["valid_from"]}).status_code == 302
    )
    assert admin.post(dialog, {"product": "H100", "per_hour": "2", "valid_from": "2020-01-01T00:00"}).status_code == 422
    assert admin.post(dialog, {"product": "", "per_hour": ""}).status_code == 422
    page = admin.get("/platform/prices/").content.decode()
    assert "7.00" in page
    assert "2.50" in page
    (token,) = prices.to_come()
    assert admin.post("/platform/prices/withdraw/", {"price": token[1].id}).status_code == 302
    (device,) = deviceprices.book().after(clock.now())
    taken = {"product": device.product, "valid_from": device.valid_from.isoformat()}
    assert admin.post("/platform/prices/withdraw/", taken).status_code == 302
    assert "2.50" not in admin.get("/platform/prices/").content.decode()


def build_device(product: str) -> None:
    now = clock.now()
    node = Node.objects.create(name="n", machine_id=product, state_changed_at=now, created_at=now)
    Device.objects.create(
        node=node, uuid=product, kind="cuda", product=product, memory_bytes=80 * 1024**3, state_changed_at=now
    )


@pytest.mark.parametrize("days", ["1", "7", "30", "90", "365", "nonsense"])
def test_usage_shows_devices_held_beside_tokens(tenant: Tenant, days: str) -> None:
    since = clock.now() - datetime.timedelta(hours=3)
    Holding._base_manager.create(
        partition_id=ids.new_id(), replica_id=ids.new_id(), tenant_id=tenant.id, deployment_id=ids.new_id(),
        endpoint_id=ids.new_id(), revision_id=ids.new_id(), product="NVIDIA H100", kind="cuda", millis=1000,
        began_at=since,
    )  # fmt: skip
    client = signed_in(owner_of(tenant))
    for held in ("device", "deployment", "model", "revision", "day", "month"):
        page = client.get(f"/t/harbor/usage/?days={days}&held={held}").content.decode()
        assert ("deleted deployment" in page) == (held == "deployment")
    assert "NVIDIA H100" in client.get(f"/t/harbor/usage/?days={days}").content.decode()


def test_usage_shows_cost_by_revision(tenant: Tenant) -> None:
    prices.set_price(
        actor=actor_for(make_user(admin=True)), endpoint=None, price=TokenPrices(prompt=10**9, completion=10**9)
    )
    booking.book(
        gateway_id=GATEWAY,
        records=[record(tenant.id, at=clock.now(), prompt_tokens=500, cached_tokens=0, completion_tokens=1000)],
    )
    page = signed_in(owner_of(tenant)).get("/t/harbor/usage/?by=revision").content.decode()
    assert "1.50" in page


@pytest.fixture
def deployment(tenant: Tenant):
    version = catalog.checked_version(tenant)
    return serving.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip


def test_an_endpoint_is_given_promises(tenant: Tenant, deployment) -> None:
    client = signed_in(make_member(tenant))
    dialog = f"/t/harbor/deployments/{deployment.id}/endpoint/"
    assert client.get(dialog).status_code == 200
    assert client.post(dialog, {"ttft_p95_ms": "400", "error_rate": "2.5", "sticky": "user"}).status_code == 302
    with scope.all_tenants():
        endpoint = Endpoint.objects.get()
    assert (endpoint.slo, endpoint.sticky) == ({"ttft_p95_ms": 400.0, "error_rate": 0.025}, "user")
    assert 'value="2.5"' in client.get(dialog).content.decode()
    refused = client.post(dialog, {"ttft_p95_ms": "-4", "sticky": "user"})
    assert (refused.status_code, b"ttft_p95_ms is a number" in refused.content) == (422, True)
    assert b"400" in client.get(f"/t/harbor/deployments/{deployment.id}/access/").content


def test_what_gateways_avoid_and_keep_in_flight_is_seen(tenant: Tenant, deployment) -> None:
    gateway = FakeGateway("gw-1")
    gateway.join()
    with scope.all_tenants():
        replica = Replica.objects.get()
    fact = {
        "replica_id": str(replica.id),
        "generation": 1,
        "reason": "NoTokens",
        "message": "No token came.",
        "since": 1.0,
    }
    point = {"deployment_id": str(deployment.id), "limit": 24, "in_flight": 20, "queued": 3}
    fleet_gateways.observe_gateway(
        fleet_gateways.Gateway.objects.get(), version="1", url="", applied_generation=1, table_age_seconds=3.0,
        in_flight=0, journal_pending=0, limits_shared=False, ejected=[fact], adaptive=[point],
    )  # fmt: skip
    page = signed_in(owner_of(tenant)).get(f"/t/harbor/deployments/{deployment.id}/").content.decode()
    assert "No token came." in page
    assert "at most 24 requests in flight here, 20 now; 3 wait" in page
    system = signed_in(make_user(admin=True)).get("/platform/system/").content.decode()
    assert "each gateway alone" in system
    assert "No token came." in system
