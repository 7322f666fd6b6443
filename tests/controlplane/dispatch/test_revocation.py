"""Who knows that a key is revoked, and how long the answer waits for it."""

import datetime

import pytest

from dispatch import revocation
from fleet.models import Gateway
from kernel import clock, scope
from ledger import generations
from runtime.wire.routes import AdaptiveLimit, Ejection
from serving import services as serving
from serving.events import events_of
from serving.models import Replica
from tenants import services
from tenants.models import ApiKey
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, make_user, owner_of
from tests.build.machines import FakeGateway

pytestmark = pytest.mark.django_db


class Time:
    """A monotonic clock that only moves when somebody sleeps."""

    def __init__(self, after=None):
        self.now = 0.0
        self.after = after or {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for moment in sorted(self.after):
            if moment <= self.now:
                self.after.pop(moment)()


def gateways(*names):
    made = []
    for name in names:
        gateway = FakeGateway(name)
        gateway.join()
        gateway.routes()
        gateway.report()
        made.append(gateway)
    return made


def wait(generation, time):
    return revocation.wait(generation, monotonic=time.monotonic, sleep=time.sleep)


def test_the_answer_waits_until_all_have_acknowledged(db):
    one, two = gateways("one", "two")
    make_tenant()  # raises the generation
    generation = generations.current(generations.ROUTES)

    def acknowledge(gateway):
        return lambda: (gateway.routes(), gateway.report())

    time = Time({0.2: acknowledge(one), 0.5: acknowledge(two)})
    found = wait(generation, time)
    assert (found.by, found.waiting, found.complete) == (("one", "two"), (), True)
    assert 0.5 <= time.now < 0.6


def test_the_answer_comes_in_time_and_names_who_is_missing():
    one, _two = gateways("one", "two")
    make_tenant()
    time = Time({0.1: lambda: (one.routes(), one.report())})
    found = wait(generations.current(generations.ROUTES), time)
    assert (found.by, found.waiting, found.total) == (("one",), ("two",), 2)
    assert time.now <= 2.0


def test_gateways_that_are_gone_are_not_waited_for():
    gateways("one", "two")
    make_tenant()
    Gateway.objects.filter(name="one").update(removed_at=clock.now())
    Gateway.objects.filter(name="two").update(lease_expires_at=clock.now())
    time = Time()
    found = wait(generations.current(generations.ROUTES), time)
    assert (found.complete, found.total, found.silent, time.now) == (True, 0, ("two",), 0.0)
    Gateway.objects.filter(name="two").update(lease_expires_at=clock.now() - datetime.timedelta(hours=25))
    assert revocation.look(generations.current(generations.ROUTES)).silent == ()


def test_what_the_transaction_took_comes_off_the_wait(monkeypatch):
    tenant = make_tenant("acme")
    owner = owner_of(tenant)
    made = client_for(owner).post("/api/v1/tenants/acme/keys", {"name": "k"}, format="json").json()
    gateways("one")
    time, unhurried = Time(), services.revoke_api_key

    def slow(**about):
        time.now += 1.5
        return unhurried(**about)

    monkeypatch.setattr(services, "revoke_api_key", slow)
    with scope.tenant(tenant.id):
        key = ApiKey.objects.get(id=made["id"])
    done, found = revocation.revoke(
        actor=actor_for(owner), tenant=tenant, key=key, monotonic=time.monotonic, sleep=time.sleep
    )
    assert (done.revoked_at is not None, found.waiting) == (True, ("one",))
    assert time.now == pytest.approx(revocation.WAIT_SECONDS)


def test_revoking_over_rest_names_the_gateways(monkeypatch):
    tenant = make_tenant("acme")
    client = client_for(owner_of(tenant))
    made = client.post("/api/v1/tenants/acme/keys", {"name": "k"}, format="json").json()
    one, _two = gateways("one", "two")
    url = f"/api/v1/tenants/acme/keys/{made['id']}/revoke"
    assert client.get(url).json()["revocation"] is None
    monkeypatch.setattr(revocation, "WAIT_SECONDS", 0.0)
    first = client.post(url).json()
    assert first["revoked_at"]
    assert (first["revocation"]["acknowledged"], first["revocation"]["waiting"]) == ([], ["one", "two"])
    one.routes()
    one.report()
    later = client.get(url).json()["revocation"]
    assert (later["acknowledged"], later["waiting"], later["complete"]) == (["one"], ["two"], False)
    assert client.post(url).json()["code"] == "key_revoked"


def test_a_replica_that_a_gateway_avoids_is_an_event_of_its_deployment():
    tenant = make_tenant("acme")
    version = catalog.checked_version(tenant)
    made = serving.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    with scope.all_tenants():
        replica = Replica.objects.get()
    (gateway,) = gateways("one")
    fact = Ejection(
        replica_id=str(replica.id),
        generation=replica.generation,
        reason="NoTokens",
        message="No token came.",
        since=1.0,
    )
    other = Ejection(replica_id="no id", generation=1, reason="X", message="Of nobody.", since=1.0)
    point = AdaptiveLimit(deployment_id=str(made.id), limit=24, in_flight=20, queued=3)
    for _ in range(2):  # said with every report, noted once
        gateway.report(ejected=[fact, other], adaptive=[point], limits_shared=False)
    gateway.report()
    gateway.report()
    told = [(event.action, event.reason, event.data["gateway"]) for event in events_of(made) if "gateway" in event.data]
    assert told == [("replica.readmitted", "", "one"), ("replica.ejected", "NoTokens", "one")]
    gateway.report(ejected=[fact], adaptive=[point], limits_shared=False)
    (row,) = client_for(make_user(admin=True)).get("/api/v1/gateways").json()["data"]
    assert (row["limits_shared"], row["ejected"][0]["reason"], row["adaptive"][0]["limit"]) == (False, "NoTokens", 24)
