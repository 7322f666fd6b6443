"""The page of people: by address and paged, and who else is a platform admin."""

import datetime
import re

import pytest
from django.core.cache import cache
from django.test import Client

from console.pages import people as pages
from kernel import clock
from tenants.models import User
from tests.build.controlplane import PASSWORD, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db
PEOPLE = "/platform/people/"


def browser(user: User) -> Client:
    cache.clear()
    client = Client()
    client.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    return client


def names(page: str) -> list[str]:
    return re.findall(r'<div class="strong anywhere">(p\d)@paged', page)


def test_people_are_paged_by_address_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PER_PAGE", 2)
    client = browser(make_user(admin=True))
    for number in (3, 1, 5, 2, 4):
        make_user(f"p{number}@paged.example")
    seen, address = [], f"{PEOPLE}?q=paged"
    while True:
        page = client.get(address).content.decode()
        seen.append(names(page))
        following = re.search(r'href="(\?[^"]*after=[^"]*)"', page)
        if following is None:
            break
        address = PEOPLE + following[1].replace("&amp;", "&")
    assert seen == [["p1", "p2"], ["p3", "p4"], ["p5"]]
    back = re.search(r'href="(\?[^"]*before=[^"]*)"', page)
    assert back is not None
    assert names(client.get(PEOPLE + back[1].replace("&amp;", "&")).content.decode()) == ["p3", "p4"]


def test_an_admin_makes_another_and_gives_up_the_own_rights() -> None:
    admin, guest = make_user(admin=True), owner_of(make_tenant("acme"))
    client = browser(admin)
    alone = client.post(f"{PEOPLE}{admin.id}/unmake-admin/", follow=True).content.decode()
    assert "last_platform_admin" in alone
    assert f"Make {guest.label} a platform admin" in client.get(PEOPLE).content.decode()
    assert "above all tenants" in client.get(f"{PEOPLE}{guest.id}/make-admin/").content.decode()
    client.post(f"{PEOPLE}{guest.id}/make-admin/")
    assert browser(guest).get(PEOPLE).status_code == 200
    left = client.post(f"{PEOPLE}{admin.id}/unmake-admin/")
    assert left.headers["Location"] == "/"
    assert client.get(PEOPLE).status_code == 403


def test_rights_are_given_only_by_who_has_just_proved_who_they_are() -> None:
    admin, guest = make_user(admin=True), make_user()
    client = browser(admin)
    with clock.frozen(clock.now() + datetime.timedelta(hours=1)):
        asked = client.post(f"{PEOPLE}{guest.id}/make-admin/")
    assert asked.headers["Location"].startswith("/accounts/confirm/")
    guest.refresh_from_db()
    assert not guest.is_staff
