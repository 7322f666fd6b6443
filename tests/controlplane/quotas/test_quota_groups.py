"""Tenants under one roof: what they hold together, whom a change would hurt, and that two of them never pass it."""

import threading

import pytest
from django.db import connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from fleet.models import Partition
from kernel import actors, errors, ids, scope
from ledger.models import AuditEvent
from quotas import selectors, services, usage
from quotas.amount import ZERO, Amount, Kind
from quotas.models import QuotaGroup, TenantQuota
from quotas.preview import preview_group
from scheduling import commit, cycle, reading
from scheduling.plan import plan
from serving.services import deploy_version
from tenants.models import Tenant
from tests.build import catalog
from tests.build import controlplane as build
from tests.build.machines import FakeAgent

ADMIN = actors.system("tests")
GROUPS = "/api/v1/admin/quota-groups"
counts = st.integers(min_value=0, max_value=60)
limits = st.one_of(st.just(-1), counts)
members = st.lists(st.tuples(counts, limits, limits), min_size=1, max_size=4)


def roof(limit, tenants):
    """A group and its members in memory, as ``selectors.together`` reads them: (held, limit, guaranteed) each."""
    group = QuotaGroup(name="lab", **dict.fromkeys((kind.value for kind in Kind), limit))
    rows, used = [], {kind: {} for kind in Kind}
    for held, own, firm in tenants:
        tenant = Tenant(id=ids.new_id(), slug=f"t{len(rows)}")
        guaranteed = {f"guaranteed_{kind.value}": firm for kind in selectors.GUARANTEED}
        rows.append(TenantQuota(tenant=tenant, **dict.fromkeys((kind.value for kind in Kind), own), **guaranteed))
        for kind in Kind:
            used[kind][tenant.id] = Amount.of(held)
    return group, rows, used


@given(limit=limits, tenants=members, kind=st.sampled_from(list(Kind)))
def test_no_member_may_take_what_the_group_or_its_own_limit_does_not_have(limit, tenants, kind):
    found = selectors.together(*roof(limit, tenants))
    position = list(Kind).index(kind)
    held = sum(own for own, _limit, _firm in tenants)
    assert found.lines[position].used == Amount.of(held)
    for member, (used, own, _firm) in zip(found.members, tenants, strict=True):
        line = member.lines[position]
        if line.left.unlimited:
            assert limit == own == -1
            continue
        assert line.allows(line.left)
        for bound, taken in ((limit, held), (own, used)):
            assert bound == -1 or line.left == ZERO or taken + line.left.number <= bound
        assert any(
            bound != -1 and taken + line.left.number + 1 > bound for bound, taken in ((limit, held), (own, used))
        )


@given(limit=limits, lower=limits, tenants=members)
def test_another_limit_takes_nothing_away_and_no_limit_takes_part_in_nothing(limit, lower, tenants):
    group, rows, used = roof(limit, tenants)
    before = selectors.together(group, rows, used)
    after = selectors.together(services.changed(group, dict.fromkeys(Kind, Amount.limit(lower))), rows, used)
    assert [line.used for line in after.lines] == [line.used for line in before.lines]
    for was, member in zip(before.members, after.members, strict=True):
        assert [line.used for line in member.lines] == [line.used for line in was.lines]
        if lower == -1:  # as if there were no group
            assert all(line.left == line.limit.left_after(line.used) for line in member.lines)
        if lower != -1 and after.lines[0].used.number >= lower:
            assert all(line.left == ZERO for line in member.lines)


@pytest.fixture
def admin(db):
    return build.client_for(build.make_user(admin=True))


@pytest.fixture
def lab(db, monkeypatch):
    """Tenants "acme" and "other" in the group "lab", and numbers that stand for what each holds of every kind."""
    held = {}
    for kind in Kind:
        monkeypatch.setitem(
            usage._counters, kind, lambda tenant_ids, kind=kind: {one: held.get((one, kind), 0) for one in tenant_ids}
        )
    services.set_group(actor=ADMIN, name="lab", changes={Kind.REPLICAS: Amount.of(6), Kind.GPU_MILLIS: Amount.of(4000)})
    for slug, replicas in (("acme", 2), ("other", 3)):
        tenant = build.make_tenant(slug)
        held[tenant.id, Kind.REPLICAS] = replicas
        services.set_quota(
            actor=ADMIN, tenant=tenant, changes={Kind.REPLICAS: Amount.of(5)}, group="lab",
            guaranteed={Kind.GPU_MILLIS: Amount.of(1500)},
        )  # fmt: skip
    return held


def looked(admin, where, **body):
    response = admin.post(f"{where}/preview", body, format="json")
    assert response.status_code == 200, response.json()
    return response.json()


def of(answer, kind):
    return next(each for each in answer["changes"] if each["quota"] == kind)


def test_a_preview_of_a_group_says_what_is_over_and_who_keeps_it(admin, lab):
    before = admin.get(f"{GROUPS}/lab").json()
    assert [(one["tenant"], one["items"][2]["used"], one["items"][2]["left"]) for one in before["held_by"]] == [
        ("acme", 2, 1), ("other", 3, 1),
    ]  # fmt: skip
    assert looked(admin, f"{GROUPS}/lab", replicas=6)["hurts"] is False
    lower = looked(admin, f"{GROUPS}/lab", replicas=3)
    change = of(lower, "replicas")
    assert (change["used"], change["limit_before"], change["limit_after"], change["over"]) == (5, 6, 3, 2)
    theirs = [
        (one["tenant"], (c["quota"], c["used"], c["left_after"])) for one in lower["members"] for c in one["changes"]
    ]
    assert theirs == [("acme", ("replicas", 2, 0)), ("other", ("replicas", 3, 0))]
    assert (lower["hurts"], lower["reclaimable"], lower["may_lose"], lower["group"]) == (True, [], [], None)
    just = looked(admin, f"{GROUPS}/lab", replicas=5)
    assert (just["hurts"], of(just, "replicas")["over"], len(just["members"])) == (True, 0, 2), "full, nothing over"
    services.set_group(actor=ADMIN, name="empty", changes={})
    assert looked(admin, f"{GROUPS}/empty", replicas=0)["hurts"] is False, "nobody is in it"
    none = looked(admin, f"{GROUPS}/lab", replicas=-1, gpu_millis=-1, hbm_bytes=-1, storage_bytes=-1)
    assert (none["hurts"], {each["left_after"] for each in none["changes"]}) == (False, {-1})
    assert admin.get(f"{GROUPS}/lab").json() == before, "nothing was written"
    after = admin.put(f"{GROUPS}/lab", {"replicas": 3}, format="json").json()
    assert (after["items"][2]["used"], after["items"][2]["limit"], after["items"][2]["left"]) == (5, 3, 0)
    with transaction.atomic(), pytest.raises(errors.QuotaExceeded, match="its group has no more"):
        services.require(Tenant.objects.get(slug="acme"), replicas=1)


def test_a_limit_that_could_not_keep_what_is_guaranteed_is_refused_and_so_is_its_preview(admin, lab):
    for response in (
        admin.put(f"{GROUPS}/lab", {"gpu_millis": 2999}, format="json"),
        admin.post(f"{GROUPS}/lab/preview", {"gpu_millis": 2999}, format="json"),
    ):
        assert (response.status_code, response.json()["data"]["field"]) == (400, "gpu_millis")
        assert response.json()["detail"].startswith("Guaranteed to tenants of the group lab: 3 GPUs. A limit of 2.999")
    assert admin.put(f"{GROUPS}/lab", {"gpu_millis": 3000}, format="json").status_code == 200


def refusals(admin, where, body):
    """How the act and its preview answer."""
    return [admin.put(where, body, format="json"), admin.post(f"{where}/preview", body, format="json")]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"guaranteed_gpu_millis": -1}, "guaranteed_gpu_millis", id="a member is to get it"),
        pytest.param(
            {"group": "ship", "guaranteed_gpu_millis": 0}, "guaranteed_hbm_bytes", id="of each kind by itself"
        ),
    ],
)
def test_all_that_the_limit_allows_is_no_guarantee_in_a_group_with_a_limit(admin, lab, body, field):
    services.set_group(actor=ADMIN, name="ship", changes={Kind.HBM_BYTES: Amount.of(2**30)})
    where = "/api/v1/admin/tenants/acme/quota"
    for response in refusals(admin, where, body):
        assert (response.status_code, response.json()["data"]["field"]) == (400, field)
        assert "Name a number as the guarantee; 0 guarantees nothing." in response.json()["detail"]
    numbers = {name: 0 for name in body if name.startswith("guaranteed")} | {field: 0}
    assert [each.status_code for each in refusals(admin, where, body | numbers)] == [200, 200]


def test_who_comes_into_a_group_with_a_limit_names_a_number(admin, lab):
    build.make_tenant("third")
    where = "/api/v1/admin/tenants/third/quota"
    for response in refusals(admin, where, {"group": "lab"}):
        assert response.status_code == 400
        assert response.json()["detail"] == (
            "The group lab may hold 4 GPUs, so no tenant in it can be guaranteed all that its own limit allows. "
            "Name a number as the guarantee; 0 guarantees nothing."
        )
    body = {"group": "lab", "guaranteed_gpu_millis": 500}
    assert [each.status_code for each in refusals(admin, where, body)] == [200, 200]
    full = {"guaranteed_gpu_millis": 1001}
    assert [each.status_code for each in refusals(admin, where, full)] == [400, 400], "it is kept beside the others"


def test_a_group_gets_no_limit_while_a_tenant_in_it_is_guaranteed_all(admin, lab):
    for response in refusals(admin, f"{GROUPS}/lab", {"hbm_bytes": 2**30}):
        assert (response.status_code, response.json()["data"]["field"]) == (400, "hbm_bytes")
        assert response.json()["data"]["members"] == ["acme", "other"]
        assert response.json()["detail"] == (
            "Tenants of the group lab are guaranteed all that their own limit allows: acme, other. "
            "Name a number as the guarantee of each before the group gets a limit of device memory."
        )
    for slug in ("acme", "other"):
        admin.put(f"/api/v1/admin/tenants/{slug}/quota", {"guaranteed_hbm_bytes": 0}, format="json")
    assert [each.status_code for each in refusals(admin, f"{GROUPS}/lab", {"hbm_bytes": 2**30})] == [200, 200]


def test_a_row_from_before_that_is_guaranteed_all_in_a_limited_group_stays_readable(admin, lab):
    acme = Tenant.objects.get(slug="acme")
    with scope.tenant(acme.id):
        TenantQuota.objects.update(guaranteed_gpu_millis=-1)
    lines = admin.get("/api/v1/tenants/acme/quota").json()["items"]
    assert (lines[0]["guaranteed"], lines[0]["borrowed"]) == (-1, 0)
    assert admin.get(f"{GROUPS}/lab").json()["members"] == ["acme", "other"]
    assert admin.put("/api/v1/admin/tenants/acme/quota", {"replicas": 3}, format="json").status_code == 400
    out = admin.put("/api/v1/admin/tenants/acme/quota", {"group": ""}, format="json")
    assert out.status_code == 200


def test_who_comes_into_a_group_is_told_with_those_that_are_in_it(admin, lab):
    where = "/api/v1/admin/tenants/third/quota"
    third = build.make_tenant("third")
    lab[third.id, Kind.REPLICAS] = 2
    services.set_quota(actor=ADMIN, tenant=third, changes={}, guaranteed={Kind.GPU_MILLIS: Amount.of(0)})
    found = looked(admin, where, group="lab", replicas=9)
    assert found["group"]["name"] == "lab"
    assert (of(found["group"], "replicas")["used"], of(found["group"], "replicas")["over"]) == (7, 1)
    assert (of(found, "replicas")["over"], of(found, "replicas")["left_after"], found["hurts"]) == (0, 0, True)
    assert [one["tenant"] for one in found["members"]] == ["acme", "other"]
    lab[third.id, Kind.REPLICAS] = 0
    fits = looked(admin, where, group="lab", replicas=9)
    assert (fits["hurts"], fits["members"], of(fits, "replicas")["left_after"]) == (False, [], 1)
    assert (fits["may_lose"], looked(admin, where, replicas=9)["group"]) == ([], None)
    lab[Tenant.objects.get(slug="acme").id, Kind.GPU_MILLIS] = 2000
    claims = looked(admin, where, group="lab", guaranteed_gpu_millis=1000, gpu_millis=1000)
    assert [one["tenant"] for one in claims["may_lose"]] == ["acme"], "above what is guaranteed to it there"
    assert looked(admin, where, group="lab")["may_lose"] == []
    out = looked(admin, "/api/v1/admin/tenants/acme/quota", group="")
    assert (out["hurts"], out["group"], of(out, "replicas")["left_after"]) == (False, None, 3)


def test_a_group_goes_when_nobody_is_in_it_and_says_who_is(admin, lab):
    for response in (
        admin.delete(f"{GROUPS}/lab"), admin.post(f"{GROUPS}/lab/preview", {"delete": True}, format="json")
    ):  # fmt: skip
        assert (response.status_code, response.json()["data"]["members"]) == (409, ["acme", "other"])
        assert response.json()["detail"] == "Tenants are in the group lab: acme, other. Take them out of it first."
    for slug in ("acme", "other"):
        admin.put(f"/api/v1/admin/tenants/{slug}/quota", {"group": ""}, format="json")
    assert looked(admin, f"{GROUPS}/lab", delete=True)["hurts"] is False
    assert admin.delete(f"{GROUPS}/lab").status_code == 204
    actions = (
        AuditEvent.objects.filter(action__startswith="quota_group.").order_by("id").values_list("action", flat=True)
    )
    assert list(actions) == ["quota_group.created", "quota_group.deleted"]
    assert admin.post(f"{GROUPS}/lab/preview", {"delete": True}, format="json").status_code == 404
    assert admin.get(f"{GROUPS}/lab").status_code == 404
    both = admin.post(f"{GROUPS}/lab/preview", {"delete": True, "replicas": 1}, format="json")
    assert both.status_code == 400


def test_a_group_that_is_new_is_not_one_that_is_there(db, lab):
    with pytest.raises(errors.Conflict, match="is a group lab already"):
        services.set_group(actor=ADMIN, name="lab", changes={}, new=True)
    owner = build.actor_for(build.owner_of(Tenant.objects.get(slug="acme")))
    with pytest.raises(errors.Forbidden):
        preview_group(actor=owner, name="lab", changes={})


@pytest.mark.django_db(transaction=True)
def test_two_members_that_are_placed_at_once_never_pass_the_groups_limit():
    """Six plans that each fit, by two tenants, three rounds of two commits at once: the group has room for three."""
    node = FakeAgent("mill")
    node.join()
    node.report()
    for slug in ("acme", "other"):
        tenant = build.make_tenant(slug)
        version = catalog.checked_version(tenant)
        deploy_version(
            actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, endpoint_name="chat",
            model=version.model.name, version=version.number, config={}, replicas=3,
        )  # fmt: skip
    answers = {}
    for ask in cycle.waiting():
        (answer,) = plan(reading.take(), [ask])
        answers.setdefault(ask.tenant_id, []).append(answer)
    size = next(iter(answers.values()))[0].need.total_bytes
    services.set_group(actor=ADMIN, name="lab", changes={Kind.HBM_BYTES: Amount.of(3 * size)})
    for tenant in Tenant.objects.all():
        services.set_quota(
            actor=ADMIN, tenant=tenant, changes={}, guaranteed={Kind.HBM_BYTES: Amount.of(0)}, group="lab"
        )
    ends = []
    for pair in zip(*answers.values(), strict=True):
        ends += _at_once([lambda answer=answer: commit.commit(answer) for answer in pair])
    assert sorted(ends) == ["done"] * 3 + ["quota_exceeded"] * 3
    assert sum(part.memory_bytes for part in Partition.objects.all()) == 3 * size
    assert services.group_named("lab").hbm_bytes == 3 * size


@pytest.mark.django_db(transaction=True)
def test_what_is_promised_and_a_lower_limit_of_the_group_do_not_pass_each_other():
    tenant = build.make_tenant()
    services.set_group(actor=ADMIN, name="lab", changes={})
    services.set_quota(actor=ADMIN, tenant=tenant, changes={}, guaranteed={Kind.GPU_MILLIS: Amount.of(0)}, group="lab")
    ends = _at_once(
        [
            lambda: services.set_group(actor=ADMIN, name="lab", changes={Kind.GPU_MILLIS: Amount.of(1000)}),
            lambda: services.set_quota(
                actor=ADMIN, tenant=tenant, changes={}, guaranteed={Kind.GPU_MILLIS: Amount.of(2000)}
            ),
        ]
    )
    assert sorted(ends) == ["done", "invalid_input"]


def _at_once(acts):
    """How each of ``acts`` ends: each in a thread and transaction of its own, let go together."""
    start, ends = threading.Barrier(len(acts)), []

    def run(act):
        try:
            start.wait(10)
            act()
            ends.append("done")
        except errors.PlatformError as exc:
            ends.append(exc.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ends) == len(acts)
    return ends
