"""Accounts on the command line, by platform admins."""

import pytest
from django.core.cache import cache

from tests.build import controlplane as build


@pytest.fixture
def admin(plane, shell):
    """A platform admin, signed in."""
    made = build.make_user(admin=True)
    shell("login", "--email", made.email, "--password-stdin", stdin=build.PASSWORD + "\n")
    return made


def test_accounts_are_found_switched_off_and_on_and_made_admins(plane, admin, shell):
    guest = build.make_user("Guest.One@example.org".lower(), name="Guest One")
    (row,) = shell("people", "list", "guest", "-o", "json").json
    assert (row["email"], row["is_active"], row["is_staff"], row["tenants"]) == (guest.email, True, False, 0)
    assert "Nobody found" in shell("people", "list", "nobody-like-this").err
    shell("people", "switch-off", "Guest.One@example.org")
    shell("login", "--email", guest.email, "--password-stdin", stdin=build.PASSWORD, want=3)
    assert shell("people", "switch-on", guest.email, "-o", "json").json["is_active"] is True
    assert "no account" in shell("people", "switch-off", "nobody@example.org", want=4).err

    assert "--password-stdin" in shell("people", "make-admin", guest.email, want=2).err
    assert "wrong" in shell("people", "make-admin", guest.email, "--password-stdin", stdin="guess\n", want=3).err
    secret = build.PASSWORD + "\n"
    said = shell("people", "make-admin", guest.email, "--password-stdin", "-o", "json", stdin=secret)
    assert said.json["is_staff"] is True
    shell("people", "unmake-admin", guest.email, "--password-stdin", stdin=secret)
    refused = shell("people", "unmake-admin", admin.email, "--password-stdin", stdin=secret, want=1)
    assert "last platform admin" in refused.err


def test_people_are_for_platform_admins_alone(signed_in, shell):
    cache.clear()
    shell("people", "list", want=3)
    shell("people", "make-admin", str(build.owner_of(signed_in.tenant).id), "--password-stdin", stdin="x\n", want=3)
