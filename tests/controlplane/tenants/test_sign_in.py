"""Signing in: the pace of failures, second factors, who is kept out, and what an admin does for the locked out."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.core.cache import cache
from rest_framework.test import APIClient

from kernel import clock, errors
from tenants import people, second_factor
from tenants.errors import LastAdmin
from tenants.models import User
from tests.build.controlplane import PASSWORD, actor_for, client_for, make_user

pytestmark = pytest.mark.django_db
SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
START = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def fresh_counters() -> None:
    cache.clear()


def totp_now() -> str:
    counters = list(yield_hotp_counters_from_time())
    return str(format_hotp_value(hotp_value(SECRET, counters[len(counters) // 2])))


def enrol(user: User) -> None:
    TOTP.activate(user, SECRET)


def sign_in(email: str, password: str = PASSWORD, code: str = "", address: str = "127.0.0.1") -> Any:
    body = {"email": email, "password": password, "code": code}
    # The throttle of the route has a pace of its own; these tests are about what lies behind it.
    cache.delete_many([f"throttle_login_{address}"])
    return APIClient().post("/api/v1/login", body, format="json", REMOTE_ADDR=address)


def test_failures_of_an_account_from_an_address_are_paced_and_the_answer_says_until_when() -> None:
    user = make_user()
    with clock.frozen(START + datetime.timedelta(seconds=60)):
        for _ in range(5):
            assert sign_in(user.email, "wrong").status_code == 401
        answer = sign_in(user.email.upper())
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_attempts")
        assert int(answer["Retry-After"]) == 240
        assert sign_in(user.email, address="192.0.2.7").status_code == 201  # from elsewhere the owner still gets in
    with clock.frozen(START + datetime.timedelta(seconds=300)):
        assert sign_in(user.email).status_code == 201


def test_one_address_cannot_go_through_many_accounts() -> None:
    with clock.frozen(START):
        for number in range(30):
            assert sign_in(f"n{number}@example.org", "x", address=f"2001:db8::{number}").status_code == 401
        assert sign_in("n31@example.org", "x", address="2001:db8::31").status_code == 429
        assert sign_in("n31@example.org", "x", address="2001:db8:0:1::1").status_code == 401  # another customer's /64


def test_one_account_is_guarded_against_many_addresses() -> None:
    user = make_user()
    with clock.frozen(START):
        for number in range(50):
            assert sign_in(user.email, "wrong", address=f"198.51.100.{number}").status_code == 401
        assert sign_in(user.email, address="198.51.100.99").status_code == 429


def test_right_passwords_are_no_failures() -> None:
    user = make_user()
    with clock.frozen(START):
        for _ in range(8):
            assert sign_in(user.email).status_code == 201


def test_a_second_factor_is_asked_for_by_rest_as_well() -> None:
    user = make_user()
    enrol(user)
    assert sign_in(user.email).json()["code"] == "second_factor_needed"
    assert sign_in(user.email, "wrong").json()["code"] == "wrong_credentials"
    assert sign_in(user.email, code="000000").json()["code"] == "second_factor_wrong"
    code = totp_now()
    assert sign_in(user.email, code=code).status_code == 201
    assert sign_in(user.email, code=code).json()["code"] == "second_factor_wrong"  # a code is good once


def test_a_recovery_code_is_good_once() -> None:
    user = make_user()
    enrol(user)
    code = RecoveryCodes.activate(user).get_unused_codes()[0]
    assert sign_in(user.email, code=code).status_code == 201
    assert sign_in(user.email, code=code).json()["code"] == "second_factor_wrong"
    assert second_factor.codes_left(user) == 9


def test_codes_cannot_be_guessed() -> None:
    user = make_user()
    enrol(user)
    with clock.frozen(START):
        for number in range(10):
            address = f"203.0.113.{number}"
            assert sign_in(user.email, code="000000", address=address).json()["code"] == "second_factor_wrong"
        assert sign_in(user.email, code=totp_now(), address="203.0.113.99").status_code == 429


def test_secrets_of_second_factors_are_not_readable_in_the_database() -> None:
    user = make_user()
    enrol(user)
    kept = Authenticator.objects.get(user=user).data["secret"]
    assert SECRET not in kept
    assert get_adapter().decrypt(kept) == SECRET


@pytest.mark.parametrize(("rule", "admin", "out"), [
    ("none", True, False), ("admins", True, True), ("admins", False, False), ("everyone", False, True),
])  # fmt: skip
def test_who_must_have_a_factor_and_has_none_is_kept_out(settings: Any, rule: str, admin: bool, out: bool) -> None:
    user = make_user(admin=admin)
    client = client_for(user)
    settings.REQUIRE_SECOND_FACTOR = rule
    assert client.get("/api/v1/me").status_code == (403 if out else 200)
    assert sign_in(user.email).status_code == (403 if out else 201)
    if out:
        assert client.get("/api/v1/me").json()["code"] == "second_factor_missing"
        enrol(user)
        assert client.get("/api/v1/me").status_code == 200


def test_switching_off_ends_what_acts_for_the_person() -> None:
    admin, user = make_user(admin=True), make_user()
    client = client_for(user)
    people.switch_off(actor=actor_for(admin), user=user)
    assert client.get("/api/v1/me").status_code == 401
    assert sign_in(user.email).json()["code"] == "wrong_credentials"
    people.switch_on(actor=actor_for(admin), user=user)
    assert client.get("/api/v1/me").status_code == 401  # the token stays ended
    assert sign_in(user.email).status_code == 201


def test_the_last_platform_admin_stays() -> None:
    admin = make_user(admin=True)
    with pytest.raises(LastAdmin):
        people.switch_off(actor=actor_for(admin), user=admin)


@pytest.mark.parametrize(
    "act",
    [people.switch_off, people.switch_on, people.password_link, people.remove_second_factor],
    ids=lambda act: act.__name__,
)
def test_people_are_managed_by_platform_admins_alone(act: Callable[..., Any]) -> None:
    with pytest.raises(errors.Forbidden):
        act(actor=actor_for(make_user()), user=make_user())
