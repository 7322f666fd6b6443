"""Signing in with a company's OpenID Connect provider: the whole way, over HTTP to one that runs in the test."""

import dataclasses
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.cache import cache
from django.test import Client

from kernel import clock, scope
from ledger.models import AuditEvent
from tenants.models import ExternalIdentity, User
from tenants.openid import providers
from tenants.openid.providers import Provider
from tests.build import openid
from tests.build.controlplane import client_for, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def provider() -> Iterator[openid.Idp]:
    with openid.running() as idp:
        yield idp


@pytest.fixture
def idp(provider: openid.Idp, settings: Any) -> openid.Idp:
    cache.clear()
    provider.lie, provider.claims = "", {"sub": "s-1", "email": "Maya@Acme.example", "email_verified": True}
    settings.OPENID_PROVIDERS = (
        Provider(
            id="acme", name="Acme", issuer=provider.issuer, client_id=openid.CLIENT, client_secret=openid.CLIENT_SECRET
        ),
    )
    return provider


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


def over_there(to: str) -> str:
    """What the provider sends the browser back to."""
    try:
        urllib.request.build_opener(_Stay()).open(to, timeout=10)
    except urllib.error.HTTPError as exc:
        return str(exc.headers["Location"])
    raise AssertionError("the provider redirects")


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def sign_in(client: Client, to: str = "/") -> Any:
    begun = client.get("/accounts/openid/acme/", {"next": to})
    assert begun.status_code == 302, begun.content
    return client.get(path_of(over_there(begun["Location"])))


def code_in(answer: Any) -> str:
    return str(answer.context["code"])


def test_an_account_is_matched_by_its_verified_address_and_then_by_its_subject(idp: openid.Idp) -> None:
    user = make_user("maya@acme.example")
    tenant = make_tenant(owner=user)
    client = Client()
    answer = sign_in(client, f"/t/{tenant.slug}/keys/")
    assert (answer.status_code, answer["Location"]) == (302, f"/t/{tenant.slug}/keys/")
    assert client.session["_auth_user_id"] == str(user.pk)
    idp.claims["email"] = "married@acme.example"
    again = Client()
    sign_in(again)
    assert again.session["_auth_user_id"] == str(user.pk)
    assert ExternalIdentity.objects.count() == 1
    linked = AuditEvent.objects.get(action="user.identity_linked")
    assert (linked.actor_label, linked.address, linked.way) == (user.email, "127.0.0.1", "console")


def test_linking_ends_credentials_of_an_account_whose_address_nobody_had_verified(idp: openid.Idp) -> None:
    """Somebody else may have made the account and know its password."""
    squatted = make_user("maya@acme.example")
    theirs = client_for(squatted)
    sign_in(Client())
    squatted.refresh_from_db()
    assert not squatted.has_usable_password()
    assert squatted.email_verified_at is not None
    assert theirs.get("/api/v1/me").status_code == 401


def test_a_verified_account_keeps_its_password(idp: openid.Idp) -> None:
    user = make_user("maya@acme.example")
    User.objects.filter(pk=user.pk).update(email_verified_at=clock.now())
    sign_in(Client())
    user.refresh_from_db()
    assert user.has_usable_password()


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({}, "openid_unknown_user"),
        ({"email_verified": False}, "openid_email_not_verified"),
        ({"email_verified": None}, "openid_email_not_verified"),
        ({"email": ""}, "openid_no_email"),
        ({"email": "maya\x00@acme.example"}, "openid_no_email"),
        ({"email": "maya\ud800@acme.example"}, "openid_no_email"),
    ],
)
def test_strangers_are_refused(idp: openid.Idp, claims: dict, code: str) -> None:
    if claims:
        make_user("maya@acme.example")
    idp.claims |= claims
    client = Client()
    answer = sign_in(client)
    assert (answer.status_code, code_in(answer)) == (403, code)
    assert "_auth_user_id" not in client.session
    assert not ExternalIdentity.objects.exists()


def test_strangers_get_an_account_where_the_setting_says_so(idp: openid.Idp, settings: Any) -> None:
    settings.OPENID_PROVIDERS = (
        dataclasses.replace(settings.OPENID_PROVIDERS[0], creates_users=True, domains=("acme.example",)),
    )
    client = Client()
    idp.claims["name"] = "Maya\x00"  # no text that a database keeps
    sign_in(client)
    user = User.objects.get(email="maya@acme.example")
    assert user.name == ""
    assert client.session["_auth_user_id"] == str(user.pk)
    with scope.all_tenants():
        assert (user.is_staff, user.has_usable_password(), user.memberships.count()) == (False, False, 0)
    idp.claims = {"sub": "s-2", "email": "x@elsewhere.example", "email_verified": True}
    assert code_in(sign_in(Client())) == "openid_domain"


def test_an_address_that_was_given_to_another_person_is_refused(idp: openid.Idp) -> None:
    make_user("maya@acme.example")
    sign_in(Client())
    idp.claims["sub"] = "s-2"
    assert code_in(sign_in(Client())) == "openid_other_subject"


def test_a_switched_off_account_stays_out(idp: openid.Idp) -> None:
    user = make_user("maya@acme.example")
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert code_in(sign_in(Client())) == "account_off"


@pytest.mark.parametrize(
    "lie",
    [
        "signature", "unsigned", "shared secret", "audience", "two audiences", "nonce", "expired", "future",
        "no subject",
    ],
)  # fmt: skip
def test_a_token_that_is_not_for_this_sign_in_is_refused(idp: openid.Idp, lie: str) -> None:
    make_user("maya@acme.example")
    idp.lie = lie
    client = Client()
    answer = sign_in(client)
    assert (answer.status_code, code_in(answer)) == (403, "openid_refused")
    assert "_auth_user_id" not in client.session


@pytest.mark.parametrize("lie", ["issuer", "plain http"])
def test_a_provider_that_is_not_what_it_says_is_not_used(idp: openid.Idp, lie: str) -> None:
    idp.lie = lie
    answer = Client().get("/accounts/openid/acme/")
    assert (answer.status_code, code_in(answer)) == (503, "openid_provider_failed")


def test_an_answer_is_good_once_and_for_the_browser_that_asked(idp: openid.Idp) -> None:
    make_user("maya@acme.example")
    client = Client()
    back = path_of(over_there(client.get("/accounts/openid/acme/")["Location"]))
    assert code_in(Client().get(back)) == "openid_state"
    assert client.get(back).status_code == 302
    assert code_in(client.get(back)) == "openid_state"
    late = path_of(over_there(client.get("/accounts/openid/acme/")["Location"]))
    mixed = client.get(f"{late}&iss=https%3A%2F%2Fevil.example")
    assert code_in(mixed) == "openid_state"
    cancelled = path_of(client.get("/accounts/openid/acme/")["Location"])
    state = parse_qs(urlsplit(cancelled).query)["state"][0]
    refused = client.get("/accounts/openid/acme/callback/", {"error": "access_denied", "state": state})
    assert code_in(refused) == "openid_cancelled"


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_nobody_is_led_elsewhere_afterwards(idp: openid.Idp, to: str) -> None:
    make_user("maya@acme.example")
    assert sign_in(Client(), to)["Location"] == "/"


def test_who_is_there_can_be_confirmed_with_the_company(idp: openid.Idp) -> None:
    tenant = make_tenant(owner=make_user("maya@acme.example"))
    client = Client()
    sign_in(client)
    page = f"/t/{tenant.slug}/keys/new/"
    with clock.frozen(clock.now().replace(microsecond=0)):
        assert client.get(page).status_code == 200
    session = client.session
    session["account_authentication_methods"] = [{"method": "openid", "at": 1.0}]
    session.save()
    asked = client.get(page)
    assert asked["Location"].startswith("/accounts/confirm/")
    assert b"/accounts/openid/acme/" in client.get(asked["Location"]).content
    idp.claims["sub"] = "s-other"
    assert code_in(sign_in(client, page)) == "openid_other_subject"
    idp.claims["sub"] = "s-1"
    idp.claims["auth_time"] = 1_700_000_000
    assert code_in(sign_in(client, page)) == "openid_not_fresh"
    del idp.claims["auth_time"]
    assert sign_in(client, page)["Location"] == page
    assert client.get(page).status_code == 200
    assert owner_of(tenant).email == "maya@acme.example"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ('[{"id": "A b", "name": "x", "issuer": "https://a.example", "client_id": "c"}]', "id"),
        ('[{"id": "a", "name": "x", "issuer": "http://a.example", "client_id": "c"}]', "https"),
        ('[{"id": "a", "name": "x", "issuer": "https://a.example", "client_id": "c", "secret": "s"}]', "secret"),
        ('[{"id": "a", "name": "x", "issuer": "https://a.example"}]', "client_id"),
    ],
)
def test_a_file_of_providers_that_cannot_be_used_says_why(text: str, why: str) -> None:
    with pytest.raises(providers.BadProvider, match=why):
        providers.parse(text)
