"""Prices, cost and budgets follow the books."""

import datetime
import uuid
from decimal import Decimal

import pytest

from kernel import clock, scope
from ledger import generations
from ledger.models import AuditEvent
from metering import booking, budgets, prices
from metering.models import UsageHour
from metering.periods import budget_period
from metering.prices import TokenPrices
from serving.services import endpoints
from tenants import services as tenancy
from tenants.terms import Budget, Limits
from tests.build import controlplane as build
from tests.build.machines import FakeGateway
from tests.controlplane.metering.usage_records import GATEWAY, NOON, record

pytestmark = pytest.mark.django_db

HOUR = datetime.timedelta(hours=1)
ADMIN = "/api/v1/admin/prices"


@pytest.fixture
def tenant():
    return build.make_tenant("acme")


@pytest.fixture
def admin():
    return build.client_for(build.make_user(admin=True))


@pytest.fixture(autouse=True)
def at_noon():
    with clock.frozen(NOON + datetime.timedelta(minutes=30)):
        yield


def limited_key(tenant, **fields):
    budget = Budget(**{"limit": 100, "duration": "day", **fields})
    key, _ = tenancy.create_api_key(
        actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, name="k", scopes=["inference"], budget=budget
    )
    return key


def call(tenant, key=None, **fields):
    values = {"at": clock.now(), "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, **fields}
    if key is not None:
        values["key_id"] = str(key.id)
    sent = record(tenant.id, **values)
    booking.book(gateway_id=GATEWAY, records=[sent])
    return sent


def gateway():
    made = FakeGateway()
    made.join()
    return made


@pytest.mark.parametrize(
    ("duration", "at", "start", "end"),
    [
        ("hour", "2026-11-20T12:59:59", "2026-11-20T12:00", "2026-11-20T13:00"),
        ("day", "2026-11-20T00:00:00", "2026-11-20T00:00", "2026-11-21T00:00"),
        ("week", "2026-11-22T23:59:59", "2026-11-16T00:00", "2026-11-23T00:00"),
        ("week", "2026-11-23T00:00:00", "2026-11-23T00:00", "2026-11-30T00:00"),
        ("month", "2026-01-31T12:00:00", "2026-01-01T00:00", "2026-02-01T00:00"),
        ("month", "2026-12-31T23:59:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("none", "2026-12-31T23:59:59", "1970-01-01T00:00", None),
    ],
)
def test_periods_are_the_calendars(duration, at, start, end):
    def moment(text):
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)

    assert budget_period(duration, moment(at)) == (moment(start), moment(end) if end else None)


def test_cost_is_exact_and_kept_when_prices_change(tenant, admin):
    asked = {"prompt": "0.50", "cached": "0.05", "completion": "1.50"}
    assert admin.put(ADMIN, asked, format="json").status_code == 200
    call(tenant)  # 6 fresh, 4 cached, 5 completed
    admin.put(ADMIN, {"prompt": "100", "completion": "100"}, format="json")
    want = Decimal(6 * 500_000 + 4 * 50_000 + 5 * 1_500_000) / 10**6
    with scope.all_tenants():
        assert UsageHour.objects.get().cost == want
    client = build.client_for(build.owner_of(tenant))
    query = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z", "group_by": "key"}
    body = client.get("/api/v1/tenants/acme/usage", query).json()
    assert (body["currency"], body["totals"]["cost"], body["rows"][0]["cost"]) == ("USD", "0.000011", "0.000011")
    table = client.get("/api/v1/tenants/acme/usage", {**query, "format": "csv"}).content.decode()
    assert table.splitlines()[0].endswith(",cost")
    assert table.splitlines()[1].endswith(",0.000011")


def test_what_the_platform_lost_costs_nothing(tenant, admin):
    admin.put(ADMIN, {"prompt": "1", "completion": "1"}, format="json")
    call(tenant, billable=False)
    with scope.all_tenants():
        assert UsageHour.objects.get().cost == 0


def test_an_endpoint_has_a_price_of_its_own(tenant, admin):
    endpoint = endpoints.create_endpoint(actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, name="chat")
    one = f"/api/v1/admin/tenants/acme/prices/{endpoint.name}"
    admin.put(ADMIN, {"prompt": "1", "cached": "0.1", "completion": "2"}, format="json")
    body = admin.put(one, {"prompt": "3", "completion": "4"}, format="json").json()
    assert body["default"] == {"prompt": "1.000000", "cached": "0.100000", "completion": "2.000000"}
    (row,) = body["endpoints"]
    assert (row["tenant"], row["endpoint"], row["prompt"], row["cached"]) == ("acme", "chat", "3.000000", "3.000000")
    (entry,) = gateway().routes().endpoints
    assert (entry.price.prompt, entry.price.cached, entry.price.completion) == (3_000_000, 3_000_000, 4_000_000)
    call(tenant, endpoint_id=str(endpoint.id))
    with scope.all_tenants():
        assert UsageHour.objects.get().cost == Decimal(10 * 3 + 5 * 4)
    member = build.client_for(build.owner_of(tenant))
    (seen,) = member.get("/api/v1/tenants/acme/prices").json()["endpoints"]
    assert (seen["endpoint"], seen["own"], seen["completion"]) == ("chat", True, "4.000000")
    assert admin.delete(one).status_code == 204
    assert admin.delete(one).status_code == 404
    assert gateway().routes().endpoints[0].price.prompt == 1_000_000


@pytest.mark.parametrize("body", [{}, {"prompt": -1, "completion": 1}, {"prompt": 10**7, "completion": 1}])
def test_prices_that_cannot_be_are_refused(admin, body):
    assert admin.put(ADMIN, body, format="json").status_code == 400


def test_members_set_no_prices(tenant):
    member = build.client_for(build.owner_of(tenant))
    assert member.put(ADMIN, {"prompt": 1, "completion": 1}, format="json").status_code == 403


def test_the_table_says_what_the_books_hold_of_the_period(tenant, admin):
    key = limited_key(tenant)
    forever = limited_key(tenant, duration="none", limit=10**6, blocks=False)
    call(tenant, key)
    call(tenant, key, at=NOON - datetime.timedelta(days=1))  # late: of yesterday
    call(tenant, forever, at=NOON - datetime.timedelta(days=300))
    call(tenant, forever)
    entries = {entry.id: entry.budget for entry in gateway().routes().keys}
    mine = entries[str(key.id)]
    assert (mine.limit, mine.unit, mine.period, mine.used, mine.blocks) == (100, "tokens", "day", 15, True)
    assert mine.period_start == datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp()
    lasting = entries[str(forever.id)]
    assert (lasting.period, lasting.period_start, lasting.used, lasting.blocks) == ("", 0.0, 30, False)


def test_a_tenants_budget_counts_all_its_keys_in_money(tenant, admin):
    admin.put(ADMIN, {"prompt": "1", "completion": "1"}, format="json")
    root = build.actor_for(build.make_user(admin=True))
    tenancy.set_tenant_limits(
        actor=root,
        tenant=tenant,
        limits=Limits(budget=Budget(limit=5_000_000, unit="cost", duration="month")),
        weight=3,
    )
    call(tenant, limited_key(tenant))
    call(tenant, limited_key(tenant))
    call(build.make_tenant("other"))
    (mine,) = [entry for entry in gateway().routes().tenants if entry.slug == "acme"]
    assert (mine.weight, mine.budget.unit, mine.budget.used) == (3.0, "cost", 30)


def test_the_table_moves_when_use_has_changed_and_only_then(tenant):
    key = limited_key(tenant)
    assert budgets.refresh()  # known for the first time
    assert not budgets.refresh()
    before = generations.current(generations.ROUTES)
    sent = call(tenant, key)
    call(tenant)  # another key's
    assert generations.current(generations.ROUTES) == before  # not with every record
    assert budgets.refresh()
    assert generations.current(generations.ROUTES) == before + 1
    booking.book(gateway_id=GATEWAY, records=[sent])  # delivered twice
    assert not budgets.refresh()
    call(tenant, key, at=NOON - datetime.timedelta(days=2))  # late, of a period that is over
    assert not budgets.refresh()
    with clock.frozen(NOON + datetime.timedelta(days=1)):
        assert gateway().routes().keys[0].budget.used == 0  # before anybody has counted: the old sum is not taken
        assert budgets.refresh()  # a new period
        assert gateway().routes().keys[0].budget.used == 0


def test_a_budget_that_is_reached_is_noted_once_per_period(tenant):
    key = limited_key(tenant, limit=30, blocks=False)
    for _ in range(4):
        call(tenant, key)
        budgets.refresh()
    events = AuditEvent.objects.filter(action="budget.reached")
    assert [(event.subject_id, event.data["used"], event.data["blocks"]) for event in events] == [
        (str(key.id), 30, False)
    ]
    with clock.frozen(NOON + datetime.timedelta(days=1)):
        for _ in range(3):
            call(tenant, key, at=NOON + datetime.timedelta(days=1))
        budgets.refresh()
    assert events.all().count() == 2


def test_many_budgets_are_counted_in_one_query(tenant, django_assert_num_queries):
    keys = [limited_key(tenant, duration=duration) for duration in ("hour", "day", "week", "month", "none")]
    for key in keys:
        call(tenant, key)
    subjects = budgets.subjects_of(keys, clock.now())
    with django_assert_num_queries(1):
        assert set(budgets.count(subjects).values()) == {15}


def test_a_key_that_is_gone_is_forgotten(tenant):
    key = limited_key(tenant)
    budgets.refresh()
    tenancy.revoke_api_key(actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, key=key)
    budgets.refresh()
    assert budgets.BudgetUse.objects.count() == 0


def test_members_see_limits_with_their_use_beside_them(tenant):
    key = limited_key(tenant)
    call(tenant, key, at=NOON)
    call(tenant, key, at=NOON + datetime.timedelta(minutes=29, seconds=30))
    body = build.client_for(build.owner_of(tenant)).get("/api/v1/tenants/acme/limits").json()
    assert (body["rpm_limit"], body["max_budget"], body["use"]["budget_used"]) == (None, None, None)
    assert (body["use"]["requests_last_minute"], body["use"]["tokens_last_minute"]) == (1, 15)
    (mine,) = body["keys"]
    assert (mine["name"], mine["max_budget"], mine["use"]["budget_used"]) == ("k", 100, 30)
    assert (mine["use"]["requests_last_minute"], mine["use"]["budget_period_end"]) == (1, "2026-11-21T00:00:00Z")


def test_prices_are_read_with_the_default_for_the_rest():
    endpoint = uuid.uuid4()
    listed = prices.PriceList(TokenPrices(prompt=1), {endpoint: TokenPrices(prompt=2)})
    assert (listed.of(endpoint).prompt, listed.of(uuid.uuid4()).prompt) == (2, 1)
