"""Toasts of changes that can be taken back: the button posts to the opposite act with the values from before."""

import re

import pytest
from django.test import Client

from catalog.models import Alias
from kernel import scope
from ledger.models import AuditEvent
from serving import services
from serving.models import Deployment
from tests.build import catalog
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.rollouts import a_node

pytestmark = pytest.mark.django_db
_FORM = re.compile(r'<form method="post" action="([^"]+)" data-undo>(.*?)</form>', re.S)
_FIELD = re.compile(r'name="(\w+)" value="([^"]*)"')


def undo_in(page: str) -> tuple[str, dict[str, str]] | None:
    """Where the newest toast's button posts to, and what it sends."""
    found = _FORM.findall(page)
    return (found[-1][0], dict(_FIELD.findall(found[-1][1]))) if found else None


def act(client: Client, path: str, fields: dict[str, str] | None = None) -> tuple[str, dict[str, str]] | None:
    return undo_in(client.post(path, fields or {}, follow=True).content.decode())


def signed_in(user: object) -> Client:
    client = Client()
    client.force_login(user)  # type: ignore[arg-type]
    return client


def test_stop_and_scale_are_taken_back_and_audited():
    tenant = make_tenant("harbor")
    version = catalog.checked_version(tenant)
    made = services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    client, path = signed_in(owner_of(tenant)), f"/t/harbor/deployments/{made.id}"

    def now() -> tuple[str, int, int]:
        row = Deployment._base_manager.get(id=made.id)
        return row.state, row.desired_replicas, row.weight

    assert now() == ("running", 1, 100)
    undo = act(client, f"{path}/stop/")
    assert now()[0] == "stopped"
    assert undo is not None
    assert undo[0] == f"{path}/start/"
    assert undo[1].pop("csrfmiddlewaretoken")
    assert act(client, *undo) is None  # starting again is no change to be taken back in a hurry
    assert now()[0] == "running"
    assert act(client, f"{path}/scale/", {"replicas": "1", "weight": "100"}) is None  # nothing changed
    undo = act(client, f"{path}/scale/", {"replicas": "3", "weight": "40"})
    assert now() == ("running", 3, 40)
    assert undo is not None
    client.post(*undo)
    assert now() == ("running", 1, 100)
    actions = list(AuditEvent.objects.filter(subject_label="chat", way="console").values_list("action", flat=True))
    assert len(actions) == 4
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(owner_of(tenant))
    assert strict.post(f"{path}/start/").status_code == 403


def test_an_alias_that_was_moved_made_or_removed_is_as_before():
    tenant = make_tenant("harbor")
    first = catalog.checked_version(tenant)
    second = catalog.checked_version(tenant, model=first.model)
    client, path = signed_in(owner_of(tenant)), f"/t/harbor/models/{first.model.name}/aliases/"

    def meant() -> list[int]:
        return [alias.version.number for alias in Alias._base_manager.filter(name="prod")]

    with scope.tenant(tenant.id):
        made = act(client, path, {"alias": "prod", "version": str(first.number)})
        assert made is not None
        client.post(*made)
        assert meant() == []
        client.post(path, {"alias": "prod", "version": str(first.number)})
        moved = act(client, path, {"alias": "prod", "version": str(second.number)})
        assert moved is not None
        assert meant() == [second.number]
        client.post(*moved)
        assert meant() == [first.number]
        gone = act(client, f"{path}prod/delete/")
        assert gone is not None
        assert meant() == []
        client.post(*gone)
        assert meant() == [first.number]
    assert client.post(path, {"alias": "no/such name", "version": "1"}).status_code == 302  # refused, in a toast


def test_a_cordon_is_taken_back_and_the_button_speaks_chinese():
    node = a_node()
    client = signed_in(make_user(admin=True))
    client.cookies["django_language"] = "zh-hans"
    page = client.post(f"/platform/nodes/{node.id}/cordon/", follow=True).content.decode()
    assert "撤销" in page
    undo = undo_in(page)
    node.refresh_from_db()
    assert undo is not None
    assert node.state == "cordoned"
    client.post(*undo)
    node.refresh_from_db()
    assert node.state == "ready"
