"""Device-hours: what is held, how much of it is idle, what it costs, and who may see it."""

import datetime

import pytest
from django.db import transaction

from fleet import partitions
from fleet.models import Device, Isolation, Node
from kernel import clock, errors, ids, scope
from ledger.models import AuditEvent
from metering import booking, devicehours, deviceprices, holdings, prices
from metering.models import DeviceCount, Holding
from metering.prices import TokenPrices
from serving.models import Replica
from serving.services import deploy_version
from tests.build import catalog
from tests.build import controlplane as build
from tests.controlplane.metering.usage_records import GATEWAY, NOON, record

pytestmark = pytest.mark.django_db
GIB = 1024**3
MINUTE = datetime.timedelta(minutes=1)
HOUR = datetime.timedelta(hours=1)
WINDOW = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"}


class Mill:
    """A tenant with one deployment of one replica, and a node with an H100 and a CPU."""

    def __init__(self):
        self.tenant = build.make_tenant("mill")
        self.actor = build.actor_for(build.owner_of(self.tenant))
        version = catalog.checked_version(self.tenant)
        self.deployment = deploy_version(
            actor=self.actor, tenant=self.tenant, endpoint_name="chat", model=version.model.name,
            version=version.number, config={}, replicas=1,
        )  # fmt: skip
        with scope.tenant(self.tenant.id):
            self.replica = Replica.objects.get()
        facts = {"state_changed_at": NOON, "created_at": NOON}
        self.node = Node.objects.create(name="n", machine_id=str(ids.new_id()), memory_bytes=99 * GIB, **facts)
        self.gpu = self.device("cuda", "H100", 80)

    def device(self, kind, product, gib, **facts):
        return Device.objects.create(
            node=self.node, uuid=str(ids.new_id()), kind=kind, product=product, memory_bytes=gib * GIB,
            state_changed_at=NOON, **facts,
        )  # fmt: skip

    def hold(self, start, end=None, *, device=None, gib=80, isolation=Isolation.EXCLUSIVE, rank=0):
        share = partitions.Share(memory_bytes=gib * GIB, host_bytes=0, millicpus=0, isolation=isolation)
        with clock.frozen(start), transaction.atomic():
            locked = partitions.lock_device((device or self.gpu).id)
            partitions.take(self.replica.id, [partitions.Rank(device=locked, share=share, rank=rank)])
        if end is not None:
            with clock.frozen(end), transaction.atomic():
                partitions.release(self.replica.id)

    def serve(self, start, minutes, **fields):
        values = {"replica_id": str(self.replica.id), "duration_ms": minutes * 60_000.0, **fields}
        with clock.frozen(max(start + minutes * MINUTE, fields.pop("booked", start))):
            booking.book(gateway_id=GATEWAY, records=[record(self.tenant.id, at=start, **values)])

    def ask(self, at=NOON + 6 * HOUR, **query):
        with clock.frozen(at):
            client = build.client_for(build.owner_of(self.tenant))
            answer = client.get("/api/v1/tenants/mill/usage/devices", {**WINDOW, **query})
        assert answer.status_code == 200, answer.content
        return answer


@pytest.fixture
def mill():
    return Mill()


def test_held_counts_by_time_and_idle_is_held_without_a_request_in_flight(mill):
    mill.hold(NOON, NOON + 2 * HOUR)
    mill.serve(NOON + 10 * MINUTE, 20)
    mill.serve(NOON + 20 * MINUTE, 20)  # overlaps: together 30 minutes
    mill.serve(NOON + 55 * MINUTE, 15)  # into the second hour
    totals = mill.ask().json()["totals"]
    assert (totals["gpu_hours"], totals["idle_gpu_hours"], totals["cpu_hours"]) == (2.0, 1.25, 0.0)
    by_hour = mill.ask(group_by="hour").json()["rows"]
    assert [(row["id"][11:13], row["gpu_hours"], row["idle_gpu_hours"]) for row in by_hour] == [
        ("12", 1.0, pytest.approx(25 / 60, abs=1e-6)),
        ("13", 1.0, pytest.approx(50 / 60, abs=1e-6)),
    ]


def test_shares_and_instances_count_by_what_nobody_else_can_use(mill):
    instance = mill.device("cuda", "H100 MIG 1g.10gb", 10, parent=mill.gpu, slice_start=0, slice_count=1,
                           facts={"compute_slices": 1, "of_slices": 7})  # fmt: skip
    mill.hold(NOON, NOON + HOUR, device=instance, gib=10, isolation=Isolation.MIG)
    mill.hold(NOON + HOUR, NOON + 2 * HOUR, device=mill.device("cuda", "L4", 24), gib=6, isolation=Isolation.MPS)
    mill.hold(NOON + 2 * HOUR, NOON + 4 * HOUR, device=mill.device("cpu", "Xeon", 8), gib=2,
              isolation=Isolation.COOPERATIVE)  # fmt: skip
    rows = {row["label"]: row for row in mill.ask(group_by="device").json()["rows"]}
    assert rows["H100"]["gpu_hours"] == pytest.approx(0.143, abs=1e-6)  # one of seven slices, rounded up
    assert rows["L4"]["gpu_hours"] == pytest.approx(0.25, abs=1e-6)
    assert (rows["Xeon"]["gpu_hours"], rows["Xeon"]["cpu_hours"]) == (0.0, 0.5)


def test_what_is_counted_stays_and_what_runs_is_measured(mill):
    mill.hold(NOON)
    mill.serve(NOON, 30)
    with clock.frozen(NOON + 90 * MINUTE):
        while devicehours.count_next() is not None:
            pass
        assert DeviceCount.objects.filter(hour=NOON).exists()
    before = mill.ask(at=NOON + 90 * MINUTE).json()["totals"]
    assert (before["gpu_hours"], before["idle_gpu_hours"]) == (1.5, 1.0)
    with clock.frozen(NOON + 90 * MINUTE):
        devicehours.count(NOON)  # again: the same
    assert mill.ask(at=NOON + 90 * MINUTE).json()["totals"] == before


def test_a_record_that_comes_late_makes_its_hour_busier(mill):
    mill.hold(NOON, NOON + HOUR)
    with clock.frozen(NOON + 5 * HOUR):
        devicehours.count(NOON)
        booking.book(gateway_id=GATEWAY, records=[
            record(mill.tenant.id, at=NOON, replica_id=str(mill.replica.id), duration_ms=600_000.0)
        ])  # fmt: skip
        assert not DeviceCount.objects.filter(hour=NOON).exists()
        while devicehours.count_next() is not None:
            pass
    assert mill.ask().json()["totals"]["idle_gpu_hours"] == pytest.approx(50 / 60, abs=1e-6)


@pytest.mark.parametrize("group_by", ["deployment", "endpoint", "model", "revision", "day", "month"])
def test_groups_add_up_to_the_same(mill, group_by):
    mill.hold(NOON, NOON + HOUR)
    with clock.frozen(NOON + 3 * HOUR):
        devicehours.count(NOON)
    body = mill.ask(group_by=group_by).json()
    (row,) = body["rows"]
    assert (row["gpu_hours"], body["totals"]["gpu_hours"]) == (1.0, 1.0)
    assert "deleted" not in row["label"]


def test_another_tenant_sees_nothing_and_the_platform_sees_who(mill):
    mill.hold(NOON, NOON + HOUR)
    other = build.make_tenant("other")
    with clock.frozen(NOON + 6 * HOUR):
        theirs = build.client_for(build.owner_of(other)).get("/api/v1/tenants/other/usage/devices", WINDOW).json()
        admin = build.client_for(build.make_user(admin=True)).get("/api/v1/admin/usage/devices", WINDOW).json()
        denied = build.client_for(build.owner_of(other)).get("/api/v1/admin/usage/devices", WINDOW)
    assert theirs["rows"] == []
    assert [(row["label"], row["gpu_hours"]) for row in admin["rows"]] == [("mill", 1.0)]
    assert denied.status_code == 403


def test_the_table_for_a_spreadsheet(mill):
    mill.hold(NOON, NOON + HOUR)
    lines = mill.ask(format="csv", group_by="device").content.decode().splitlines()
    assert lines == [
        "id,label,gpu_hours,idle_gpu_hours,cpu_hours,idle_cpu_hours,cost",
        "H100,H100,1.0,1.0,0.0,0.0,0.000000",
    ]


def test_a_device_price_counts_from_its_hour_on_and_never_before(mill):
    admin = build.actor_for(build.make_user(admin=True))
    with clock.frozen(NOON - 10 * MINUTE):
        deviceprices.set_price(actor=admin, product="", per_hour=1_000_000)
        deviceprices.set_price(actor=admin, product="H100", per_hour=3_000_000, valid_from=NOON + HOUR)
        deviceprices.set_price(actor=admin, product="H100", per_hour=None, valid_from=NOON + 2 * HOUR)
    mill.hold(NOON - HOUR, NOON + 3 * HOUR)
    rows = mill.ask(group_by="hour").json()["rows"]
    assert [row["cost"] for row in rows] == ["0.000000", "1.000000", "3.000000", "1.000000"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"product": "Nothing", "per_hour": "1"}, "product"),
        ({"per_hour": "1", "valid_from": "2026-11-20T11:00:00Z"}, "valid_from"),
        ({"per_hour": "1", "valid_from": "2026-11-20T15:30:00Z"}, "valid_from"),
        ({"per_hour": "-1"}, "per_hour"),
    ],
)
def test_device_prices_that_cannot_be_are_refused(mill, body, field):
    client = build.client_for(build.make_user(admin=True))
    with clock.frozen(NOON + MINUTE):
        answer = client.put("/api/v1/admin/prices/devices", body, format="json")
    assert answer.status_code == 400
    assert field in answer.content.decode()


def test_admins_see_set_and_withdraw_device_prices(mill):
    client = build.client_for(build.make_user(admin=True))
    url = "/api/v1/admin/prices/devices"
    with clock.frozen(NOON + MINUTE):
        body = client.put(url, {"product": "H100", "per_hour": "2.5"}, format="json").json()
        assert body["devices"] == [{"product": "H100", "own": False, "per_hour": "0.000000"}]
        assert body["to_come"] == [{"product": "H100", "per_hour": "2.500000", "valid_from": "2026-11-20T13:00:00Z"}]
        member = build.client_for(build.owner_of(mill.tenant))
        assert member.put(url, {"per_hour": "1"}, format="json").status_code == 403
    with clock.frozen(NOON + HOUR):
        assert client.get(url).json()["devices"][0]["per_hour"] == "2.500000"
        gone = {"product": "H100", "valid_from": "2026-11-20T13:00:00Z"}
        assert client.delete(f"{url}?product=H100&valid_from=2026-11-20T13:00:00Z", gone).status_code == 404
    with clock.frozen(NOON + MINUTE):
        assert client.delete(f"{url}?product=H100&valid_from=2026-11-20T13:00:00Z").status_code == 204
    actions = AuditEvent.objects.filter(subject_kind="device_price").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["device_price.set", "device_price.withdrawn"]


def test_partitions_from_before_the_books_are_found_and_lost_ones_closed(mill):
    mill.hold(NOON)
    with scope.all_tenants():
        Holding.objects.all().delete()
        assert holdings.reconcile() == 1
        assert Holding.objects.get().began_at == NOON
        assert holdings.reconcile() == 0


def test_a_token_price_can_be_set_for_later_and_holds_for_what_began_after(mill):
    admin = build.actor_for(build.make_user(admin=True))
    with clock.frozen(NOON):
        prices.set_price(actor=admin, endpoint=None, price=TokenPrices(completion=1_000_000))
        later = prices.set_price(
            actor=admin, endpoint=None, price=TokenPrices(completion=2_000_000), valid_from=NOON + HOUR
        )
        assert prices.current().default.completion == 1_000_000
        with pytest.raises(errors.InvalidInput):
            prices.set_price(actor=admin, endpoint=None, price=TokenPrices(), valid_from=NOON - HOUR)
    with clock.frozen(NOON + 2 * HOUR):
        costs = [prices.book().at(NOON + minutes * MINUTE).default.completion for minutes in (-1, 0, 59, 60)]
        assert costs == [0, 1_000_000, 1_000_000, 2_000_000]
        assert prices.announce() == 1  # gateways are told when its time has come
        assert prices.announce() == 0
        with pytest.raises(errors.NotFound):
            prices.withdraw(actor=admin, price_id=later.id)
