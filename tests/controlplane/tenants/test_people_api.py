"""Accounts over REST: for platform admins alone, paged, and switched off and on with a trace."""

import pytest
from django.core.cache import cache

from ledger.models import AuditEvent
from tenants.keys import mint_playground_key
from tenants.selectors import live_inference_keys
from tests.build.controlplane import PASSWORD, actor_for, client_for, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db
PEOPLE = "/api/v1/admin/people"


def test_a_platform_admin_lists_and_switches_people() -> None:
    admin, guest = client_for(make_user(admin=True)), make_user("one@guest.example")
    make_user("two@guest.example")
    first = admin.get(PEOPLE, {"q": "GUEST.example", "limit": 1}).json()
    assert [row["email"] for row in first["data"]] == ["two@guest.example"]
    second = admin.get(PEOPLE, {"q": "guest.example", "limit": 1, "after": first["last_id"]}).json()
    assert [row["email"] for row in second["data"]] == [guest.email]
    assert not second["has_more"]
    assert admin.get(f"{PEOPLE}/{guest.id}").json()["tenants"] == 0

    assert admin.post(f"{PEOPLE}/{guest.id}/switch-off").json()["is_active"] is False
    assert admin.post(f"{PEOPLE}/{guest.id}/switch-on").json()["is_active"] is True
    actions = AuditEvent.objects.filter(subject_id=guest.id).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["user.switched_off", "user.switched_on"]


def test_nobody_else_learns_who_has_an_account() -> None:
    owner = owner_of(make_tenant())
    for path in (PEOPLE, f"{PEOPLE}/{owner.id}"):
        assert client_for(owner).get(path).status_code == 403
    assert client_for(owner).post(f"{PEOPLE}/{owner.id}/switch-off").status_code == 403


def test_the_last_platform_admin_stays() -> None:
    admin = make_user(admin=True)
    answer = client_for(admin).post(f"{PEOPLE}/{admin.id}/switch-off")
    assert answer.status_code == 409
    assert answer.json()["code"] == "last_platform_admin"


PROOF = {"password": PASSWORD}


def test_a_platform_admin_makes_and_unmakes_another_with_the_own_password() -> None:
    cache.clear()
    admin, guest = make_user(admin=True), make_user()
    client, path = client_for(admin), f"{PEOPLE}/{guest.id}"
    assert client.post(f"{path}/make-admin", {}, format="json").status_code == 400
    wrong = client.post(f"{path}/make-admin", {"password": "a guess"}, format="json")
    assert (wrong.status_code, wrong.json()["code"]) == (401, "wrong_credentials")
    assert client_for(guest).get(PEOPLE).status_code == 403
    assert client.post(f"{path}/make-admin", PROOF, format="json").json()["is_staff"] is True
    assert client_for(guest).get(PEOPLE).status_code == 200
    guest.refresh_from_db()
    mint_playground_key(actor=actor_for(guest), tenant=make_tenant())  # of a tenant that it is no member of
    assert client.post(f"{path}/unmake-admin", PROOF, format="json").json()["is_staff"] is False
    assert client_for(guest).get(PEOPLE).status_code == 403
    assert not live_inference_keys().exists()
    events = AuditEvent.objects.filter(subject_id=guest.id, actor_label=admin.email).order_by("id")
    assert [event.action for event in events] == ["user.admin_made", "user.admin_unmade"]


def test_rights_of_admins_are_not_for_everybody_nor_for_who_is_switched_off() -> None:
    cache.clear()
    owner, admin, gone = owner_of(make_tenant()), make_user(admin=True), make_user()
    for verb in ("make-admin", "unmake-admin"):
        assert client_for(owner).post(f"{PEOPLE}/{owner.id}/{verb}", PROOF, format="json").status_code == 403
    client_for(admin).post(f"{PEOPLE}/{gone.id}/switch-off")
    refused = client_for(admin).post(f"{PEOPLE}/{gone.id}/make-admin", PROOF, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "account_off")
    last = client_for(admin).post(f"{PEOPLE}/{admin.id}/unmake-admin", PROOF, format="json")
    assert (last.status_code, last.json()["code"]) == (409, "last_platform_admin")
    admin.set_unusable_password()  # signs in with the company: nothing to prove who it is with in a call
    admin.save()
    asked = client_for(admin).post(f"{PEOPLE}/{owner.id}/make-admin", PROOF, format="json")
    assert (asked.status_code, asked.json()["code"]) == (403, "reauthentication_required")
