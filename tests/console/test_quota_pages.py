"""The quota dialog: what is filled in arrives, and whom it would hurt is told before."""

import pytest
from django.test import Client

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
    into = client.post("/platform/tenants/harbor/quota/preview/", FORM | {"guaranteed_gpus": "", "group": "lab"})
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
