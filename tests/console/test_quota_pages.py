"""The quota dialog: what is filled in arrives, and whom it would hurt is told before."""

import pytest
from django.test import Client

from quotas.selectors import terms_of
from quotas.services import set_group
from serving.models import Deployment
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
