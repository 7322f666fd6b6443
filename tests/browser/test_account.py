"""Signing in and out, and preferences that keep the page."""

import re
from collections.abc import Callable

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from playwright.sync_api import Page, expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor
from tests.browser.test_pages import found_by_axe

pytestmark = pytest.mark.browser


def test_signing_in_leads_to_the_tenant_and_signing_out_back(visitor_of: Callable[..., Visitor]) -> None:
    visitor = visitor_of()
    page = visitor.open("/t/harbor/keys/")
    expect(page).to_have_url(re.compile(r"/accounts/login/\?next="))
    page.get_by_label("E-mail address").fill(world.DEVELOPER)
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
    page.locator("summary[aria-label=Account]").click()
    page.get_by_role("button", name="Sign out").click()
    visitor.open("/t/harbor/keys/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_wrong_password_is_refused_without_saying_which_half_was_wrong(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of().sign_in(world.VIEWER, "not the password")
    expect(page.get_by_role("alert")).to_contain_text("not correct")
    expect(page.get_by_label("E-mail address")).to_have_value(world.VIEWER)


def test_language_and_theme_change_without_losing_the_page(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/models/?q=tiny")
    page.locator("summary[aria-label=Language]").click()
    page.get_by_role("button", name="简体中文").click()
    expect(page.get_by_role("heading", name="模型", exact=True)).to_be_visible()
    assert page.url.endswith("/t/harbor/models/?q=tiny")
    assert page.locator("html").get_attribute("lang") == "zh-hans"
    page.locator("summary[aria-label=主题]").click()
    page.get_by_role("button", name="深色").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.url.endswith("/t/harbor/models/?q=tiny")
    page.locator("summary[aria-label=语言]").click()
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()


def test_preferences_follow_the_person_to_another_browser(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.OWNER).open("/accounts/settings/")
    page.locator("main").get_by_label("Theme").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    other = visitor_of(world.OWNER).page
    expect(other.locator("html")).to_have_attribute("data-theme", "dark")


def test_nobody_signs_up_alone(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of().open("/accounts/signup/")
    expect(page.get_by_role("heading", name="Sign-up is closed")).to_be_visible()


def totp(secret: str) -> str:
    """The code of now; it is good once."""
    counters = list(yield_hotp_counters_from_time())
    return str(format_hotp_value(hotp_value(secret, counters[len(counters) // 2])))


def invite(page: Page, email: str) -> str:
    """Invite through the dialog; the link that is shown once."""
    page.get_by_role("button", name="Invite").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("E-mail address").fill(email)
    dialog.get_by_label("Role").select_option("developer")
    dialog.get_by_role("button", name="Invite").click()
    link = page.get_by_label("The link").input_value()
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_text(email)).to_be_visible()
    return link


def test_an_invitation_leads_to_an_account_with_a_second_factor(visitor_of: Callable[..., Visitor]) -> None:
    """Invite, accept as somebody new, set up an authenticator app, sign in with it, with a recovery code, remove it."""
    email = "gwen@guest.example"
    boss = visitor_of(world.OWNER)
    link = invite(boss.open("/t/harbor/members/"), email)

    guest = visitor_of()
    page = guest.page
    page.goto(link)
    expect(page).to_have_url(re.compile(r"/accounts/invitation/$"))  # the token is out of the address bar
    assert not found_by_axe(page)
    page.get_by_label("Your name").fill("Gwen Park")
    page.get_by_label("Password").fill("1234567890")
    page.get_by_role("button", name="Make the account and join").click()
    expect(page.locator(".error").first).to_be_visible()
    page.get_by_label("Password").fill("a harbour of glass")
    page.get_by_role("button", name="Make the account and join").click()
    expect(page).to_have_url(re.compile(r"/t/harbor/$"))
    late = visitor_of().page
    late.goto(link)
    expect(late.get_by_text("This link is used, revoked or expired")).to_be_visible()

    guest.open("/accounts/settings/")
    page.get_by_role("link", name="Set up an authenticator app").click()
    expect(page.get_by_role("img", name="QR code for the authenticator app")).to_be_visible()
    page.get_by_text("You cannot scan it?").click()
    assert not found_by_axe(page)
    secret = page.locator("#totp-secret").inner_text().replace(" ", "")
    page.get_by_label("Code", exact=True).fill("000000")
    page.get_by_role("button", name="Switch on").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Code", exact=True).fill(totp(secret))
    page.get_by_role("button", name="Switch on").click()
    codes = page.get_by_label("Your codes").input_value().split()
    assert len(codes) == 10
    assert not found_by_axe(page)
    page.reload()
    expect(page.get_by_label("Your codes")).to_have_count(0)  # shown once

    other = visitor_of()
    other.sign_in(email, "a harbour of glass")
    expect(other.page.get_by_role("heading", name="Second factor")).to_be_visible()
    assert not found_by_axe(other.page)
    other.page.get_by_label("Code", exact=True).fill(codes[0])
    other.page.get_by_role("button", name="Sign in").click()
    expect(other.page).to_have_url(re.compile(r"/t/harbor/$"))

    guest.open("/accounts/settings/")
    expect(page.get_by_text("9 recovery codes left")).to_be_visible()
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("link", name="Set up an authenticator app")).to_be_visible()


def test_a_session_is_ended_from_another_device(visitor_of: Callable[..., Visitor]) -> None:
    here, there = visitor_of(world.VIEWER), visitor_of(world.VIEWER, user_agent="Mozilla/5.0 (iPhone) Safari/605")
    there.open("/t/harbor/keys/")
    page = here.open("/accounts/settings/")
    expect(page.get_by_text("this device, now")).to_be_visible()
    assert not found_by_axe(page)
    page.get_by_role("button", name="Sign out on Safari, iPhone").click()
    expect(page.get_by_text("That device is signed out.")).to_be_visible()
    there.open("/t/harbor/keys/")
    expect(there.page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_secrets_ask_who_is_there_when_the_sign_in_is_old(visitor_of: Callable[..., Visitor], site: Site) -> None:
    visitor = visitor_of(world.DEVELOPER)
    page = visitor.open("/t/harbor/keys/")
    site.world("age_sessions")
    page.get_by_role("button", name="Create key").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="Confirm that it is you")).to_be_visible()
    assert not found_by_axe(page)
    dialog.get_by_label("Password").fill("wrong")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("alert")).to_contain_text("wrong")
    dialog.get_by_label("Password").fill("correct horse battery")
    dialog.get_by_role("button", name="Confirm").click()
    expect(dialog.get_by_role("heading", name="Create API key")).to_be_visible()


def test_a_service_account_gets_a_key_and_is_disabled(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.OWNER).open("/t/harbor/members/")
    page.get_by_role("button", name="Create service account").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Nightly")
    page.get_by_role("dialog").get_by_role("button", name="Create service account").click()
    page.get_by_role("button", name="Create a key of Nightly").click()
    page.get_by_role("dialog").get_by_label("Name").fill("runner")
    page.get_by_role("dialog").get_by_role("button", name="Create key").click()
    expect(page.get_by_label("The new key")).to_have_value(re.compile(r"^mp_"))
    page.get_by_role("link", name="I have stored it").click()
    page.get_by_role("button", name="Disable Nightly").click()
    expect(page.get_by_role("dialog")).to_contain_text("one live key is revoked")
    page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    expect(page.get_by_text("Nightly is disabled. 1 key is revoked.")).to_be_visible()
    expect(page.get_by_role("button", name="Enable Nightly")).to_be_visible()
    assert not found_by_axe(page)


def test_a_platform_admin_suspends_and_resumes_a_tenant(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.ADMIN).open("/platform/tenants/")
    page.get_by_role("button", name="Suspend Lantern Search").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("replicas go on running")
    dialog.get_by_label("Reason").fill("Unpaid.")
    dialog.get_by_role("button", name="Suspend").click()
    expect(page.get_by_text("The tenant Lantern Search is suspended.")).to_be_visible()
    page.get_by_role("button", name="Resume Lantern Search").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Suspend Lantern Search")).to_be_visible()


def test_a_password_link_of_an_admin_is_good_once(visitor_of: Callable[..., Visitor]) -> None:
    admin = visitor_of(world.ADMIN).open("/platform/people/?q=otto")
    assert not found_by_axe(admin)
    admin.get_by_role("button", name=re.compile("Password link for")).click()
    admin.get_by_role("dialog").get_by_role("button", name="Make the link").click()
    link = admin.get_by_label("The link").input_value()
    page = visitor_of().page
    page.goto(link)
    page.get_by_label("New password", exact=True).fill("another long phrase")
    page.get_by_label("New password again").fill("another long phrase")
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_role("heading", name="Password changed")).to_be_visible()
    page.goto(link)
    expect(page.get_by_role("heading", name="The link is not good any more")).to_be_visible()
    visitor = visitor_of()
    visitor.sign_in(world.FORGETFUL, "another long phrase")
    expect(visitor.page).to_have_url(re.compile(r"/t/lantern/$"))
