"""Signing in and out, and preferences that keep the page."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import world
from tests.browser.conftest import Visitor

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
