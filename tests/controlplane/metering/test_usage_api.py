"""Usage over REST: callers see their own, owners see who called, nobody sees more."""

import csv
import datetime
import io
import uuid

import pytest

from catalog import services as catalog_services
from kernel import clock, scope
from metering import booking, selectors
from serving.models import Endpoint
from tenants import services as tenant_services
from tests.build import catalog
from tests.build import controlplane as build
from tests.controlplane.metering.usage_records import GATEWAY, NOON, record

pytestmark = pytest.mark.django_db
WINDOW = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"}


class World:
    """Owner ``mill`` serves ``chat``; ``mill`` and ``guest`` call it."""

    def __init__(self):
        self.mill = build.make_tenant("mill")
        self.guest = build.make_tenant("guest")
        with scope.all_tenants():
            self.endpoint = Endpoint.objects.create(tenant=self.mill, name="chat", created_at=NOON)
        self.mill_key = self.make_key(self.mill, "batch job")
        self.guest_key = self.make_key(self.guest, "the guest's secret project")

    def make_key(self, tenant, name):
        actor = build.actor_for(build.owner_of(tenant))
        key, _ = tenant_services.create_api_key(actor=actor, tenant=tenant, name=name, scopes=["inference"])
        return key

    def call(self, tenant, key, **fields):
        values = {"key_id": str(key.id), "endpoint_id": str(self.endpoint.id), "owner_id": self.mill.id, **fields}
        booking.book(gateway_id=GATEWAY, records=[record(tenant.id, **values)])

    def usage(self, tenant, **query):
        client = build.client_for(build.owner_of(tenant))
        return client.get(f"/api/v1/tenants/{tenant.slug}/usage", {**WINDOW, **query})

    def rows(self, tenant, **query):
        response = self.usage(tenant, **query)
        assert response.status_code == 200, response.content
        return [(row["label"], row["requests"], row["completion_tokens"]) for row in response.json()["rows"]]


@pytest.fixture
def world():
    made = World()
    made.call(made.mill, made.mill_key, completion_tokens=5)
    made.call(made.mill, made.mill_key, completion_tokens=7, at=NOON + datetime.timedelta(hours=3))
    made.call(made.guest, made.guest_key, completion_tokens=11)
    return made


@pytest.mark.parametrize(
    ("group_by", "want"),
    [
        ("key", [("batch job", 2, 12)]),
        ("endpoint", [("chat", 2, 12)]),
        ("revision", [("chat", 2, 12)]),
        ("model", [("chat", 2, 12)]),  # its revision is gone, so the endpoint's name stands in
        ("day", [("2026-11-20T00:00:00Z", 2, 12)]),
        ("hour", [("2026-11-20T12:00:00Z", 1, 5), ("2026-11-20T15:00:00Z", 1, 7)]),
        ("caller", [("mill", 2, 12), ("guest", 1, 11)]),
    ],
)
def test_the_owner_sees_its_own_use_and_who_called(world, group_by, want):
    assert world.rows(world.mill, group_by=group_by) == want


@pytest.mark.parametrize(
    ("group_by", "want"),
    [
        ("key", [("the guest's secret project", 1, 11)]),
        ("endpoint", [("mill/chat", 1, 11)]),
        ("model", [("mill/chat", 1, 11)]),
        ("caller", []),
    ],
)
def test_the_guest_sees_only_its_own_use_under_the_name_it_calls(world, group_by, want):
    assert world.rows(world.guest, group_by=group_by) == want


def test_nothing_the_owner_is_told_names_the_guests_key(world):
    for group_by in ("key", "endpoint", "model", "day", "caller"):
        text = world.usage(world.mill, group_by=group_by).content.decode()
        assert "secret project" not in text
        assert str(world.guest_key.id) not in text


def test_totals_are_the_sum_of_the_rows(world):
    body = world.usage(world.mill, group_by="hour").json()
    assert body["totals"] == {
        "requests": 2, "errors": 0, "aborted": 0, "prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 12,
        "cost": "0.000000",
        "unbilled_prompt_tokens": 0,
        "unbilled_completion_tokens": 0,
    }  # fmt: skip


def test_a_period_is_widened_to_whole_hours(world):
    body = world.usage(
        world.mill, group_by="hour", **{"from": "2026-11-20T12:30:00Z", "to": "2026-11-20T12:31:00Z"}
    ).json()
    assert (body["from"], body["to"]) == ("2026-11-20T12:00:00Z", "2026-11-20T13:00:00Z")
    assert len(body["rows"]) == 1


def test_without_a_period_it_is_the_last_seven_days(world):
    with clock.frozen(NOON + datetime.timedelta(days=6)):
        client = build.client_for(build.owner_of(world.mill))
        assert client.get("/api/v1/tenants/mill/usage").json()["totals"]["requests"] == 2
    with clock.frozen(NOON + datetime.timedelta(days=8)):
        client = build.client_for(build.owner_of(world.mill))
        assert client.get("/api/v1/tenants/mill/usage").json()["totals"]["requests"] == 0


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"group_by": "colour"}, id="no such group"),
        pytest.param({"from": "yesterday"}, id="no time"),
        pytest.param({"from": "2026-11-21T00:00:00Z", "to": "2026-11-20T00:00:00Z"}, id="ends before it begins"),
        pytest.param({"from": "2020-01-01T00:00:00Z"}, id="too long"),
        pytest.param({"from": "2026-01-01T00:00:00Z", "group_by": "hour"}, id="too long by hour"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(world, query):
    response = world.usage(world.mill, **query)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_input"


@pytest.mark.parametrize("way", [{"format": "csv"}, {"HTTP_ACCEPT": "text/csv"}])
def test_usage_as_csv(world, way):
    world.make_key(world.mill, "unused")
    bad = world.make_key(world.mill, "=HYPERLINK(1)")
    world.call(world.mill, bad)
    client = build.client_for(build.owner_of(world.mill))
    headers = {name: value for name, value in way.items() if name.startswith("HTTP_")}
    query = {
        **WINDOW,
        "group_by": "key",
        **{name: value for name, value in way.items() if not name.startswith("HTTP_")},
    }
    response = client.get("/api/v1/tenants/mill/usage", query, **headers)
    assert response["Content-Type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [(line["label"], line["requests"]) for line in lines] == [("batch job", "2"), ("'=HYPERLINK(1)", "1")]


def test_an_error_is_a_problem_also_when_csv_was_asked_for(world):
    client = build.client_for(build.owner_of(world.mill))
    response = client.get("/api/v1/tenants/mill/usage", {"group_by": "colour"}, HTTP_ACCEPT="text/csv")
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"


def test_a_strangers_usage_does_not_exist(world):
    client = build.client_for(build.owner_of(world.guest))
    assert client.get("/api/v1/tenants/mill/usage").status_code == 404


def test_playground_keys_are_one_row_and_deleted_things_keep_a_name(world):
    actor = build.actor_for(build.owner_of(world.mill))
    for _ in range(2):
        key, _text = tenant_services.mint_playground_key(actor=actor, tenant=world.mill)
        world.call(world.mill, key, completion_tokens=1)
    world.call(world.mill, world.mill_key, key_id=str(uuid.UUID(int=5)), endpoint_id=str(uuid.UUID(int=6)))
    assert set(world.rows(world.mill, group_by="key")) == {
        ("batch job", 2, 12),
        ("playground", 2, 2),
        ("deleted key", 1, 5),
    }
    assert ("deleted endpoint", 1, 5) in world.rows(world.mill, group_by="endpoint")


def test_selectors_for_the_console(world):
    with clock.frozen(NOON + datetime.timedelta(hours=1)):
        assert selectors.today_by_key(world.mill)[world.mill_key.id].completion_tokens == 12
        assert world.guest_key.id not in selectors.today_by_key(world.mill)
    total = selectors.total_used(world.guest, NOON, NOON + datetime.timedelta(hours=1))
    assert (total.requests, total.total_tokens) == (1, 21)


def test_revisions_of_one_model_are_told_apart(world):
    version = catalog.checked_version(world.mill)
    actor = build.actor_for(build.owner_of(world.mill))
    for dtype, tokens in (("float32", 100), ("bfloat16", 200)):
        revision = catalog_services.make_revision(
            actor=actor, tenant=world.mill, version=version, config={"dtype": dtype}
        )
        world.call(world.mill, world.mill_key, revision_id=str(revision.id), completion_tokens=tokens)
    rows = world.rows(world.mill, group_by="revision")
    names = [label for label, _requests, _tokens in rows[:2]]
    assert [tokens for _label, _requests, tokens in rows] == [200, 100, 12]
    assert all(name.startswith(f"{version.model.name} v{version.number} · ") for name in names)
    assert len(set(names)) == 2
    (model, _gone) = world.rows(world.mill, group_by="model")
    assert model == (version.model.name, 2, 300)
