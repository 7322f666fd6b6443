"""The quota dialog: what is filled in arrives, and whom it would hurt is told before."""

import re

import pytest
from django.test import Client

from quotas.amount import Amount, Kind
from quotas.models import QuotaGroup
from quotas.selectors import terms_of
from quotas.services import set_group
from serving.models import Deployment
from serving.services import deploy_version
from tests.build import catalog
from tests.build.controlplane import actor_for, make_member, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db
FORM = {
    "gpus": "2.5", "guaranteed_gpus": "1", "hbm": "80", "guaranteed_hbm": "", "replicas": "4", "storage": "",
    "weight": "200", "group": "research",
}  # fmt: skip


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def test_an_admin_sets_a_quota_and_sees_whom_it_would_hurt():
    tenant, user = make_tenant("harbor"), make_user(admin=True)
    set_group(actor=actor_for(user), name="research", changes={})
    client = signed_in(user)
    where = "/platform/tenants/harbor/quota/"
    assert "Nobody would be worse off" in client.post(f"{where}preview/", FORM).content.decode()
    refused = client.post(f"{where}preview/", FORM | {"guaranteed_gpus": "3"}).content.decode()
    assert "cannot be guaranteed" in refused
    assert client.post(where, FORM | {"guaranteed_gpus": "3"}).status_code == 422
    assert client.post(where, FORM).status_code in (200, 204, 302)
    terms = terms_of(tenant)
    assert (terms.gpu_millis, terms.guaranteed_gpu_millis, terms.guaranteed_hbm_bytes) == (2500, 1000, -1)
    assert (terms.storage_bytes, terms.over_quota_weight, terms.group.name) == (-1, 200, "research")
    page = client.get(where).content.decode()
    assert 'value="2.5"' in page
    assert "2.5" in client.get("/platform/tenants/").content.decode()
    assert signed_in(owner_of(tenant)).post(f"{where}preview/", FORM).status_code in (302, 403, 404)


def test_the_deploy_form_has_a_priority():
    tenant = make_tenant("harbor")
    version = catalog.checked_version(tenant)
    form = {
        "version": f"{version.model.name}:{version.number}", "endpoint": "chat", "replicas": "0", "weight": "100",
        "dtype": "float32", "max_num_seqs": "8", "max_num_batched_tokens": "256", "priority": "low",
    }  # fmt: skip
    client = signed_in(make_member(tenant))
    assert 'name="priority"' in client.get("/t/harbor/deployments/new/").content.decode()
    assert "high" in client.post("/t/harbor/deployments/new/", form | {"priority": "high"}).content.decode()
    assert not Deployment._base_manager.exists()
    client.post("/t/harbor/deployments/new/", form)
    assert Deployment._base_manager.get().priority == "low"


LIMITS = {"gpus": "4", "hbm": "", "replicas": "1", "storage": ""}
GROUPS = "/platform/quotas/groups"


def said(answer):
    return " ".join(answer.content.decode().split())


def test_an_admin_makes_a_group_sees_whom_a_lower_limit_hurts_and_deletes_it_when_it_is_empty():
    tenant, user = make_tenant("harbor"), make_user(admin=True)
    version = catalog.checked_version(tenant)
    deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=2,
    )  # fmt: skip
    client = signed_in(user)
    assert "No groups yet" in said(client.get("/platform/quotas/"))
    for name, why in (("Big Lab", "begin with a letter or digit"), ("", "This is needed")):
        refused = client.post("/platform/quotas/new-group/", LIMITS | {"name": name})
        assert (refused.status_code, why in said(refused)) == (422, True)
    made = client.post("/platform/quotas/new-group/", LIMITS | {"name": "lab", "replicas": "4"})
    assert made.headers["Location"] == f"{GROUPS}/lab/"
    again = client.post("/platform/quotas/new-group/", LIMITS | {"name": "lab"})
    assert (again.status_code, "A group with this name exists already" in said(again)) == (422, True)
    assert "No tenant is in this group" in said(client.get(f"{GROUPS}/lab/"))
    where = "/platform/tenants/harbor/quota/"
    endless = [client.post(to, FORM | {"guaranteed_gpus": "", "group": "lab"}) for to in (where, f"{where}preview/")]
    for answer in endless:
        assert "Name a number as the guarantee; 0 guarantees nothing." in said(answer)
    assert 'class="field has-error"><label for="id_guaranteed_gpus"' in said(endless[0])
    into = client.post(f"{where}preview/", FORM | {"guaranteed_gpus": "0", "group": "lab"})
    assert "The group lab would hold, of its limits: " in said(into)
    assert "Replicas 2 / 4" in said(into)
    client.post("/platform/tenants/harbor/quota/", FORM | {"guaranteed_gpus": "1", "group": "lab"})
    page = said(client.get(f"{GROUPS}/lab/"))
    assert [word in page for word in ("All together", "1 tenant", "harbor", "own limit 4")] == [True] * 4
    lower = said(client.post(f"{GROUPS}/lab/preview/", LIMITS))
    assert "Held above the new limit, and kept; nothing more is given:" in lower
    assert [word in lower for word in ("1 replica<", "harbor", "(2 replicas)")] == [True] * 3
    firm = client.post(f"{GROUPS}/lab/edit/", LIMITS | {"gpus": "0.5"})
    assert (firm.status_code, "1 GPU. A limit of 0.5 could not keep that." in said(firm)) == (422, True)
    assert client.post(f"{GROUPS}/lab/edit/", LIMITS).headers["Location"] == "/platform/quotas/"
    dialog = said(client.get(f"{GROUPS}/lab/delete/"))
    assert "1 tenant is in it. Take it out of the group in its quota first:" in dialog
    assert "Delete group" not in dialog
    client.post(f"{GROUPS}/lab/delete/")
    assert "Tenants are in the group lab: harbor." in said(client.get("/platform/quotas/"))
    client.post("/platform/tenants/harbor/quota/", FORM | {"group": ""})
    assert "Nobody would be worse off" in said(client.get(f"{GROUPS}/lab/delete/"))
    client.post(f"{GROUPS}/lab/delete/")
    assert client.get(f"{GROUPS}/lab/").status_code == 404
    audit = said(client.get("/platform/audit/"))
    for sentence in ("made the quota group lab", "and put it into the group lab", "changed the quota of the group lab",
                     "and took it out of the group lab", "deleted the quota group lab"):  # fmt: skip
        assert sentence in audit


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("-1", "At least 0."),
        (" -1 ", "At least 0."),
        ("abc", "A number in plain digits, like 12 or 2.5."),
        ("\uff11\uff12", "A number in plain digits, like 12 or 2.5."),
        ("\u0663", "A number in plain digits, like 12 or 2.5."),
        ("1e3", "A number in plain digits, like 12 or 2.5."),
        ("1_000", "A number in plain digits, like 12 or 2.5."),
        ("2,5", "A number in plain digits, like 12 or 2.5."),
        ("nan", "A number in plain digits, like 12 or 2.5."),
        ("9" * 30, "At most 1000000."),
        ("9" * 400, "A number in plain digits, like 12 or 2.5."),
    ],
)
def test_odd_input_is_refused_at_its_field_and_stays_in_the_form(typed, why):
    client, user = signed_in(make_user(admin=True)), make_user(admin=True)
    set_group(actor=actor_for(user), name="lab", changes={})
    for where, more in (("new-group", {"name": "other"}), ("groups/lab/edit", {})):
        body = LIMITS | more | {"gpus": typed, "hbm": "1.5", "storage": "0.25"}
        refused = client.post(f"/platform/quotas/{where}/", body)
        assert refused.status_code == 422
        field = said(refused).partition('for="id_gpus"')[2].partition("</div></div>")[0]
        assert f">{why}<" in field
        shown = re.findall(r'name="(name|gpus|hbm|replicas|storage)"[^>]*? value="([^"]*)"', refused.content.decode())
        assert dict(shown) == {name: value for name, value in body.items() if value}
        assert 'type="number"' not in refused.content.decode(), "a browser would drop what it cannot read"
    assert "effects" not in said(client.post("/platform/quotas/groups/lab/preview/", LIMITS | {"gpus": typed}))
    assert not QuotaGroup.objects.filter(name="other").exists()


def test_what_a_dialog_shows_is_what_it_saves():
    """To the byte, and without powers of ten."""
    user = make_user(admin=True)
    limits = {
        Kind.HBM_BYTES: Amount.of(123_456_789_012),
        Kind.GPU_MILLIS: Amount.of(10**9),
        Kind.STORAGE_BYTES: Amount.of(1),
    }
    set_group(actor=actor_for(user), name="lab", changes=limits)
    page = signed_in(user).get(f"{GROUPS}/lab/edit/").content.decode()
    form = dict(re.findall(r'name="(gpus|hbm|replicas|storage)" value="([^"]*)"', page))
    assert form["gpus"] == "1000000"
    signed_in(user).post(f"{GROUPS}/lab/edit/", {"replicas": "", **form})
    group = QuotaGroup.objects.get()
    assert (group.hbm_bytes, group.gpu_millis, group.storage_bytes) == (123_456_789_012, 10**9, 1)
