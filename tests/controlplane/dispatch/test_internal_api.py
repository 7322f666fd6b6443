"""Files for nodes, tables for gateways: who gets what, from where on, and when nothing has changed."""

import datetime
import warnings

import pytest

from catalog.selectors import files_of
from dispatch import artifacts
from kernel import actors, clock, scope
from ledger import generations
from runtime.wire.reports import Phase
from runtime.wire.routes import RateLimits
from scheduling import cycle as scheduling
from serving import services
from serving.models import Replica
from tenants import services as tenancy
from tenants.models import Tenant
from tests.build import catalog
from tests.build.controlplane import actor_for, make_tenant, owner_of
from tests.build.machines import FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def agent():
    made = FakeAgent()
    made.join()
    made.report()
    return made


def gateway():
    made = FakeGateway()
    made.join()
    return made


def deploy(tenant, version, replicas=1):
    made = services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=replicas,
    )  # fmt: skip
    scheduling.run()
    return made


def download(node, sha256, **headers):
    return node.http.get(f"{node.base}/artifacts/{sha256}", headers={**node.headers(), **headers})


def content_of(answer):
    """The server streams; the test client reads it all at once (and warns that it does)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return b"".join(answer)


def test_a_node_gets_the_files_of_its_replicas_and_no_others(tenant, version):
    node = agent()
    file = next(file for file in files_of(version) if file.path == "config.json")
    assert download(node, file.sha256).status_code == 404
    deploy(tenant, version)
    whole = download(node, file.sha256)
    body = content_of(whole)
    assert (whole.status_code, len(body), whole["Content-Length"]) == (200, file.size, str(file.size))
    part = download(node, file.sha256, range="bytes=10-")
    assert (part.status_code, content_of(part)) == (206, body[10:])
    assert part["Content-Range"] == f"bytes 10-{file.size - 1}/{file.size}"
    beyond = download(node, file.sha256, range=f"bytes={file.size}-")
    assert (beyond.status_code, beyond["Content-Range"]) == (416, f"bytes */{file.size}")
    other = agent()
    assert download(other, file.sha256).json()["code"] == "not_found"
    assert download(node, "..etc..passwd").status_code == 404
    assert download(node, "0" * 64).json()["code"] == "not_found"
    other.credential = "mpn_abcdefghjkmn_wrong"
    assert download(other, file.sha256).status_code == 401


@pytest.mark.parametrize(
    ("header", "want"),
    [
        ("", (0, 9, False)),
        ("bytes=0-", (0, 9, True)),
        ("bytes=3-5", (3, 5, True)),
        ("bytes=3-99", (3, 9, True)),
        ("bytes=9-", (9, 9, True)),
        ("bytes=-3", (0, 9, False)),
        ("bytes=5-3", (0, 9, False)),
        ("bytes=0-1,3-4", (0, 9, False)),
        ("lines=1-2", (0, 9, False)),
    ],
)
def test_ranges(header, want):
    span = artifacts.span_of(header, 10)
    assert (span.first, span.last, span.partial) == want


def test_a_range_behind_the_end_cannot_be_had():
    with pytest.raises(artifacts.Unsatisfiable):
        artifacts.span_of("bytes=10-", 10)
    assert artifacts.span_of("", 0).length == 0


def test_the_table_holds_tenants_keys_and_limits(tenant):
    actor = actors.system("tests")
    expires = clock.now() + datetime.timedelta(hours=1)
    key, text = tenancy.create_api_key(
        actor=actor, tenant=tenant, name="k", scopes=["inference"], expires_at=expires, allowed_endpoints=["chat"],
        requests_per_minute=7,
    )  # fmt: skip
    tenancy.create_api_key(actor=actor, tenant=tenant, name="m", scopes=["manage"])
    other = make_tenant("other")
    Tenant.objects.filter(id=other.id).update(suspended_at=clock.now(), tokens_per_minute=9)
    table = gateway().routes()
    assert table.generation == generations.current(generations.ROUTES)
    (entry,) = table.keys
    assert (entry.id, entry.digest, entry.kind) == (str(key.id), tenancy.digest_of(text), "key")
    assert (entry.allowed_endpoints, entry.limits) == (["chat"], RateLimits(requests_per_minute=7))
    assert entry.expires_at == pytest.approx(expires.timestamp())
    assert text not in str(table)
    by_slug = {row.slug: row for row in table.tenants}
    assert (by_slug["acme"].active, by_slug["other"].active) == (True, False)
    assert by_slug["other"].limits.tokens_per_minute == 9
    assert by_slug["acme"].prefix_salt == tenant.prefix_salt
    tenancy.revoke_api_key(actor=actor, tenant=tenant, key=key)
    after = gateway().routes()
    assert (after.keys, after.generation > table.generation) == ([], True)


def test_a_keys_endpoints_are_named_as_its_tenant_calls_them(tenant):
    actor = actors.system("tests")
    other = make_tenant("other")
    own = services.create_endpoint(actor=actor, tenant=tenant, name="chat")
    theirs = services.create_endpoint(actor=actor, tenant=other, name="chat")
    services.grant(actor=actor, tenant=other, endpoint=theirs, to=tenant.slug)
    tenancy.create_api_key(
        actor=actor, tenant=tenant, name="k", scopes=["inference"],
        allowed_endpoints=["chat", "other/chat", "not-made-yet"],
    )  # fmt: skip
    (entry,) = gateway().routes().keys
    assert entry.allowed_endpoints == [str(own.id), str(theirs.id), "not-made-yet"]


def test_degraded_replicas_serve_only_when_no_ready_one_does(tenant, version):
    node, gate = agent(), gateway()
    deploy(tenant, version, replicas=2)
    node.cycle()
    with scope.all_tenants():
        first, second = Replica.objects.order_by("id")
    node.change(str(first.id), Phase.DEGRADED, reason="EngineSilent")
    node.report()
    assert gate.urls_of("chat") == [second.address]
    node.change(str(second.id), Phase.DEGRADED, reason="EngineSilent")
    node.report()
    assert len(gate.urls_of("chat")) == 2


def test_a_sleeping_replica_keeps_its_traffic_and_is_named_as_one(tenant, version):
    node, gate = agent(), gateway()
    deploy(tenant, version, replicas=2)
    node.cycle()
    with scope.all_tenants():
        first, second = Replica.objects.order_by("id")
    before = gate.routes().generation
    node.change(str(first.id), Phase.ASLEEP)
    node.report()
    table = gate.routes()
    assert table.generation > before
    (entry,) = table.endpoints
    (variant,) = entry.variants
    asleep = {route.replica_id: route.asleep for route in variant.replicas}
    assert asleep == {str(first.id): True, str(second.id): False}
    node.change(str(first.id), Phase.READY)
    node.report()
    assert not any(route.asleep for route in gate.routes().endpoints[0].variants[0].replicas)


def test_an_endpoint_that_does_not_serve_says_what_a_caller_may_know(tenant, version):
    gate = gateway()
    deployment = deploy(tenant, version)
    (entry,) = gate.routes().endpoints
    assert entry.state == "The model waits for a place on a device. Its owner can see why."
    services.stop(actor=actor_for(owner_of(tenant)), tenant=tenant, deployment=deployment)
    (entry,) = gate.routes().endpoints
    assert (entry.variants, entry.max_model_len) == ([], 0)
    assert entry.state == "The model is switched off: no replica is wanted."


def knowing(machine, generation):
    return {**machine.headers(), "if-none-match": f'"{generation}"'}


def test_tables_that_have_not_changed_are_not_sent_again(tenant, version):
    node, gate = agent(), gateway()
    deploy(tenant, version)
    for machine, path, generation in (
        (gate, "/routes", gate.routes().generation),
        (node, "/assignments", node.assignments().generation),
    ):
        same = machine.http.get(machine.base + path, headers=knowing(machine, generation))
        assert (same.status_code, same.content, same["ETag"]) == (304, b"", f'"{generation}"')
        older = machine.http.get(
            machine.base + path, headers={**machine.headers(), "if-none-match": f'"{generation - 1}"'}
        )
        assert older.status_code == 200


def test_tables_cost_the_same_for_one_and_for_many(tenant, version, django_assert_num_queries):
    node, gate = agent(), gateway()
    deploy(tenant, version, replicas=3)
    node.cycle()
    gate.routes()
    # credential, generation (twice: before and in the snapshot), tenants, keys, endpoints, deployments, replicas,
    # grants, prices, and two savepoint statements
    with django_assert_num_queries(12):
        gate.routes()
    with django_assert_num_queries(8):  # credential, savepoint (two), generation, layouts, replicas, partitions, files
        node.assignments()


def test_what_changes_for_a_node_raises_its_counter_and_no_other(tenant, version):
    one, two = agent(), agent()
    before = one.assignments().generation, two.assignments().generation
    deploy(tenant, version)
    after = one.assignments().generation, two.assignments().generation
    assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 1]


def test_a_report_with_a_nul_in_its_words_arrives(tenant, version):
    node = agent()
    deploy(tenant, version)
    node.cycle()
    with scope.all_tenants():
        replica = Replica.objects.get()
    node.change(str(replica.id), Phase.DEGRADED, reason="EngineSilent", message="layer \x00 is odd")
    node.report()
    with scope.all_tenants():
        assert Replica.objects.get().message == "layer � is odd"


def test_replicas_on_their_way_are_counted_and_refused_ones_are_not(tenant, version):
    gate = gateway()

    def coming():
        (entry,) = gate.routes().endpoints
        return [(variant.coming, len(variant.replicas)) for variant in entry.variants]

    deploy(tenant, version, replicas=2)  # no node yet: both are refused a place
    refused = gate.routes().generation
    assert coming() == [(0, 0)]
    node = agent()
    scheduling.run()
    assert gate.routes().generation > refused
    assert coming() == [(2, 0)]
    node.cycle(Phase.LOADING)
    assert coming() == [(2, 0)]
    for replica_id in node.replicas:
        node.change(replica_id, Phase.READY, address="http://127.0.0.1:1")
    node.report()
    assert coming() == [(0, 2)]
    assert {route.node_id for route in gate.routes().endpoints[0].variants[0].replicas} == {node.id}
