"""Who may hold how much, on real rows."""

import threading

import pytest
from django.db import connection, transaction

from kernel import actors, errors, scope
from ledger.models import AuditEvent
from quotas import selectors, services, usage
from quotas.amount import UNLIMITED, Amount, Kind
from quotas.models import TenantQuota
from tests.build import controlplane as build

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return build.make_tenant()


@pytest.fixture
def held(monkeypatch):
    """Numbers that stand for what the tenant holds of each kind."""
    numbers = dict.fromkeys(Kind, 0)
    for kind in Kind:
        monkeypatch.setitem(usage._counters, kind, lambda ids, kind=kind: dict.fromkeys(ids, numbers[kind]))
    return numbers


def set_quota(tenant, **limits):
    changes = {Kind(name): Amount.limit(number) for name, number in limits.items()}
    return services.set_quota(actor=actors.system("tests"), tenant=tenant, changes=changes)


def test_a_tenant_without_a_row_has_the_defaults_of_the_settings(tenant, settings):
    settings.QUOTA_DEFAULT_REPLICAS = 5
    lines = {line.kind: line for line in selectors.lines_of(tenant)}
    assert lines[Kind.REPLICAS].limit == Amount.of(5)
    assert {line.used for line in lines.values()} == {Amount.of(0)}


@pytest.mark.parametrize("kind", list(Kind))
def test_taking_up_to_the_limit_is_allowed_and_one_more_is_refused_with_numbers(tenant, held, kind):
    set_quota(tenant, **{kind.value: 10})
    held[kind] = 7
    with transaction.atomic():
        services.require(tenant, **{kind.value: 3})
    with transaction.atomic(), pytest.raises(errors.QuotaExceeded) as refusal:
        services.require(tenant, **{kind.value: 4})
    assert refusal.value.data == {"quota": kind.value, "limit": 10, "used": 7, "asked": 4}
    assert refusal.value.code == "quota_exceeded"


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        (Kind.REPLICAS, 64, "This needs 64 replicas; the"),
        (Kind.REPLICAS, 1, "This needs 1 replica; the"),
        (Kind.GPU_MILLIS, 1500, "This needs 1.5 GPUs; the"),
        (Kind.HBM_BYTES, 3 * 1024**3, "This needs 3 GiB of device memory; the"),
    ],
)
def test_a_refusal_reads_well(tenant, held, kind, asked, words):
    set_quota(tenant, **{kind.value: 0})
    with transaction.atomic(), pytest.raises(errors.QuotaExceeded, match=words):
        services.require(tenant, **{kind.value: asked})


def test_unlimited_is_unlimited(tenant, held):
    set_quota(tenant, replicas=-1)
    held[Kind.REPLICAS] = 10**9
    with transaction.atomic():
        services.require(tenant, replicas=10**9)


def test_asking_outside_a_transaction_is_a_bug(tenant):
    with pytest.raises(RuntimeError, match="transaction"):
        _outside_any_transaction(lambda: services.require(tenant, replicas=1))


def _outside_any_transaction(work):
    """Run in a thread, whose connection is in no transaction of the test's."""
    raised = []

    def run():
        try:
            work()
        except RuntimeError as exc:
            raised.append(exc)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_only_platform_admins_set_quotas(tenant):
    owner = build.actor_for(build.owner_of(tenant))
    with pytest.raises(errors.Forbidden):
        services.set_quota(actor=owner, tenant=tenant, changes={Kind.REPLICAS: UNLIMITED})
    with scope.all_tenants():
        assert not TenantQuota.objects.exists()


def test_setting_a_quota_keeps_the_other_limits_and_is_audited(tenant):
    set_quota(tenant, replicas=3, hbm_bytes=1000)
    set_quota(tenant, replicas=4)
    lines = {line.kind: line.limit.as_number() for line in selectors.lines_of(tenant)}
    assert (lines[Kind.REPLICAS], lines[Kind.HBM_BYTES]) == (4, 1000)
    event = AuditEvent.objects.filter(action="quota.set").order_by("-id").first()
    assert event.data == {"before": {"replicas": 3}, "after": {"replicas": 4}}
    assert event.tenant_id == tenant.id


def test_a_limit_below_the_use_gives_nothing_more(tenant, held):
    held[Kind.REPLICAS] = 5
    set_quota(tenant, replicas=2)
    with transaction.atomic(), pytest.raises(errors.QuotaExceeded):
        services.require(tenant, replicas=1)


@pytest.mark.django_db(transaction=True)
def test_two_takers_do_not_both_get_the_last_one(held):
    tenant = build.make_tenant()
    set_quota(tenant, replicas=1)
    first_asked, second_done = threading.Event(), []

    def second():
        try:
            first_asked.wait(10)
            with transaction.atomic():
                services.require(tenant, replicas=1)
            second_done.append("allowed")
        except errors.QuotaExceeded:
            second_done.append("refused")
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        services.require(tenant, replicas=1)
        thread.start()
        first_asked.set()
        thread.join(0.3)
        assert thread.is_alive(), "the second taker has to wait for the first"
        held[Kind.REPLICAS] = 1
    thread.join(10)
    assert second_done == ["refused"]


def test_lines_of_many_tenants_are_those_of_each_for_as_many_queries(monkeypatch, django_assert_num_queries):
    admin, tenants = actors.system("tests"), [build.make_tenant() for _ in range(4)]
    numbers = {tenant.id: 3 + place for place, tenant in enumerate(tenants)}
    for kind in Kind:
        monkeypatch.setitem(usage._counters, kind, lambda ids: {one: numbers[one] for one in ids if one in numbers})
    services.set_group(actor=admin, name="lab", changes={kind: Amount.of(20) for kind in Kind})
    for tenant in tenants[:2]:
        services.set_quota(
            actor=admin, tenant=tenant, changes={Kind.GPU_MILLIS: Amount.of(15)},
            guaranteed={Kind.GPU_MILLIS: Amount.of(4), Kind.HBM_BYTES: Amount.of(4)}, weight=50, group="lab",
        )  # fmt: skip
    set_quota(tenants[2], replicas=9)
    each = {tenant.id: selectors.lines_of(tenant) for tenant in tenants}
    assert each[tenants[0].id][0].left_above is not None, "the group leaves something"
    assert selectors.lines_by_tenant(tenants) == each
    with django_assert_num_queries(2):  # quotas, members of their groups; the counters are stand-ins here
        selectors.lines_by_tenant(tenants)
    assert selectors.lines_by_tenant([tenants[1]]) == {tenants[1].id: each[tenants[1].id]}
    assert selectors.lines_by_tenant([]) == {}
