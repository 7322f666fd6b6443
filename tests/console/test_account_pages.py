"""Accounts through the console's pages: where sign-in leads, what asks who is there, passwords, sessions."""

import datetime
import re
from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client

from console import sessions
from kernel import clock
from ledger.models import AuditEvent
from tenants import people
from tenants.models import ApiKey, Tenant
from tests.build.controlplane import PASSWORD, actor_for, client_for, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db
NEW = "a harbour of glass"


@pytest.fixture(autouse=True)
def fresh_counters() -> None:
    cache.clear()


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def client(tenant: Tenant) -> Client:
    client = Client()
    client.force_login(owner_of(tenant))
    return client


def sign_in(email: str, password: str = PASSWORD, **more: Any) -> Any:
    return Client().post("/accounts/login/", {"login": email, "password": password, **more})


@pytest.mark.parametrize(
    ("to", "where"),
    [
        ("/t/acme/keys/", "/t/acme/keys/"),
        ("https://evil.example/", "/"),
        ("//evil.example", "/"),
        ("javascript:1", "/"),
    ],
)
def test_sign_in_leads_nowhere_else(tenant: Tenant, to: str, where: str) -> None:
    assert sign_in(owner_of(tenant).email, next=to)["Location"] == where


def test_too_many_failures_say_when_to_come_back(tenant: Tenant) -> None:
    email = owner_of(tenant).email
    with clock.frozen(datetime.datetime(2026, 11, 30, 12, 1, tzinfo=datetime.UTC)):
        for _ in range(5):
            assert sign_in(email, "wrong").status_code == 200
        answer = sign_in(email)
        assert (answer.status_code, answer["Retry-After"]) == (429, "240")
        assert b"Try again in 4 minutes" in answer.content


def test_sign_ins_and_their_ways_are_in_the_audit_log(tenant: Tenant) -> None:
    sign_in(owner_of(tenant).email)
    event = AuditEvent.objects.get(action="user.signed_in")
    assert (event.actor_label, event.way, event.address) == (owner_of(tenant).email, "console", "127.0.0.1")
    assert (event.data, bool(event.request_id)) == ({"methods": ["password"]}, True)


@pytest.mark.parametrize(
    "path", ["/t/acme/keys/new/", "/accounts/tokens/new/", "/accounts/second-factor/set-up/"], ids=str
)
def test_what_shows_secrets_asks_who_is_there_when_the_proof_is_old(client: Client, path: str) -> None:
    assert client.get(path).status_code == 200
    with clock.frozen(clock.now() + datetime.timedelta(minutes=6)):
        asked = client.get(path)
        assert asked.status_code == 302
        assert asked["Location"].startswith("/accounts/confirm/?next=")
        wrong = client.post(asked["Location"], {"password": "wrong", "next": path})
        assert wrong.status_code == 422
    assert client.post("/accounts/confirm/", {"password": PASSWORD, "next": path})["Location"] == path
    outside = client.post("/accounts/confirm/", {"password": PASSWORD, "next": "https://evil.example/"})
    assert outside["Location"] == "/"


def test_a_form_that_was_opened_in_time_may_be_sent_a_while_later(client: Client) -> None:
    body = {"name": "app", "scopes": ["inference"]}
    with clock.frozen(clock.now() + datetime.timedelta(minutes=14)):
        assert client.post("/t/acme/keys/new/", body).status_code == 200
    with clock.frozen(clock.now() + datetime.timedelta(minutes=16)):
        assert client.post("/t/acme/keys/new/", body).status_code == 302
    assert ApiKey._base_manager.count() == 1


def test_rest_with_the_consoles_session_is_no_way_around(client: Client) -> None:
    with clock.frozen(clock.now() + datetime.timedelta(minutes=16)):
        answer = client.post("/api/v1/tenants/acme/keys", {"name": "x"}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "reauthentication_required")


def test_without_the_factor_that_is_wanted_a_page_leads_to_setting_one_up(client: Client, settings: Any) -> None:
    settings.REQUIRE_SECOND_FACTOR = "everyone"
    assert client.get("/t/acme/keys/")["Location"] == "/accounts/second-factor/needed/"
    assert client.get("/accounts/second-factor/needed/").status_code == 200
    assert client.get("/accounts/second-factor/set-up/").status_code == 200
    answer = client.post("/api/v1/tenants/acme/keys", {"name": "x"}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "second_factor_missing")


def test_the_qr_code_needs_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/accounts/second-factor/set-up/").content.decode()
    assert re.search(r'<path d="M\d+ \d+h\d+v1h-\d+z', page)
    assert not re.search(r"data:image|style=|<img", page)


def test_a_forgotten_password_without_mail_says_whom_to_ask() -> None:
    assert b"Ask a platform admin" in Client().get("/accounts/password/reset/").content


def test_a_reset_link_comes_by_mail_from_our_own_address_and_ends_what_acts_for_the_person(settings: Any) -> None:
    settings.MAIL_ENABLED = True
    user = make_user("maya@acme.example")
    using = client_for(user)
    for email in ("maya@acme.example", "nobody@acme.example"):
        answer = Client(HTTP_HOST="127.0.0.1").post("/accounts/password/reset/", {"email": email})
        assert answer["Location"] == "/accounts/password/reset/done/"
    link = re.search(r"https?://\S+", next(one.body for one in mail.outbox if one.to == [user.email]))
    assert link is not None
    assert link[0].startswith(f"{settings.PUBLIC_URL}/accounts/password/reset/key/")
    path = link[0].removeprefix(settings.PUBLIC_URL)
    client = Client()
    form = client.get(path)["Location"]
    assert client.post(form, {"password1": "1234567890", "password2": "1234567890"}).status_code == 200
    assert client.post(form, {"password1": NEW, "password2": NEW}).status_code == 302
    assert using.get("/api/v1/me").status_code == 401
    assert sign_in(user.email, NEW).status_code == 302
    assert b"not good any more" in Client().get(path, follow=True).content


def test_a_link_of_an_admin_is_dead_after_a_day_and_after_use() -> None:
    admin, user = make_user(admin=True), make_user()
    path = re.sub(r"^https?://[^/]+", "", people.password_link(actor=actor_for(admin), user=user))
    assert b"New password" in Client().get(path, follow=True).content
    assert AuditEvent.objects.filter(action="user.password_link_made", actor_label=admin.email).exists()
    user.set_password(NEW)
    user.save()
    assert b"not good any more" in Client().get(path, follow=True).content


def test_changing_the_password_signs_out_the_other_devices(tenant: Tenant) -> None:
    user = owner_of(tenant)
    here, there = Client(), Client()
    for one in (here, there):
        one.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    body = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert here.post("/accounts/password/change/", body).status_code == 302
    assert here.get("/t/acme/keys/").status_code == 200
    assert there.get("/t/acme/keys/")["Location"].startswith("/accounts/login/")
    assert AuditEvent.objects.filter(action="user.password_changed").exists()


def test_who_was_switched_off_by_any_way_is_signed_out_for_good(tenant: Tenant) -> None:
    user, browser = owner_of(tenant), Client()
    browser.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert browser.get("/t/acme/keys/").status_code == 200
    for verb in ("switch-off", "switch-on"):
        answer = client_for(make_user(admin=True)).post(f"/api/v1/admin/people/{user.id}/{verb}")
        assert answer.status_code == 200
    assert browser.get("/t/acme/keys/")["Location"].startswith("/accounts/login/")
    assert AuditEvent.objects.filter(action="user.sessions_ended").count() == 1


def test_sessions_are_listed_and_ended(tenant: Tenant) -> None:
    user = owner_of(tenant)
    here, there = Client(), Client(HTTP_USER_AGENT="Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0 <script>")
    for one in (here, there):
        one.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    page = here.get("/accounts/settings/").content.decode()
    assert "Firefox, Linux" in page
    assert "<script>" not in page.split("Signed in on")[1].split("Personal tokens")[0]
    stranger = Client()
    stranger.force_login(make_user())
    found = re.search(r"/accounts/sessions/(\d+)/end/", page)
    assert found is not None
    assert stranger.post(found[0]).status_code == 404
    assert here.post(found[0]).status_code == 302
    assert there.get("/t/acme/keys/")["Location"].startswith("/accounts/login/")
    there.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert here.post("/accounts/sessions/end-others/").status_code == 302
    assert there.get("/t/acme/keys/").status_code == 302
    assert here.get("/t/acme/keys/").status_code == 200
    assert AuditEvent.objects.filter(action="user.sessions_ended").count() == 2


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit Chrome/140 Safari/537 Edg/140", "Edge, Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19 like Mac OS X) Version/19 Safari/604", "Safari, iPhone"),
        ("", "Unknown device"),
    ],
)
def test_devices_have_names_of_ours(agent: str, name: str) -> None:
    assert str(sessions.device_of(agent)) == name


def test_the_old_password_does_not_matter_to_a_person_who_never_had_one(tenant: Tenant) -> None:
    user = owner_of(tenant)
    user.set_unusable_password()
    user.save()
    client = Client()
    client.force_login(user)
    assert b"Change password" not in client.get("/accounts/settings/").content
