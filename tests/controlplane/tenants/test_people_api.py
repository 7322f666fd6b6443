"""Accounts over REST: for platform admins alone, paged, and switched off and on with a trace."""

import pytest

from ledger.models import AuditEvent
from tests.build.controlplane import client_for, make_tenant, make_user, owner_of

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
