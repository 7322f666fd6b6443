"""A key is shown once, copied, and revoked."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import world
from tests.browser.conftest import Visitor

pytestmark = pytest.mark.browser


def test_a_key_is_shown_once_and_can_be_revoked(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/keys/")
    page.get_by_role("button", name="Create key").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ci-regression")
    dialog.get_by_role("button", name="Create key").click()
    shown = dialog.get_by_label("The new key").input_value()
    assert re.fullmatch(r"mp_[a-z0-9]{12}_[A-Za-z0-9_-]{43}", shown)
    dialog.get_by_role("button", name="Copy", exact=True).first.click()
    assert page.evaluate("navigator.clipboard.readText()") == shown
    dialog.get_by_role("button", name="I have stored it").click()
    expect(page.get_by_role("row").filter(has_text="ci-regression")).to_be_visible()
    assert shown not in page.content() or page.locator("dialog[open]").count() == 0
    page.reload()
    assert shown not in page.content()
    page.get_by_role("button", name="Revoke ci-regression").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke key").click()
    row = page.get_by_role("row").filter(has_text="ci-regression")
    expect(row).to_contain_text("Revoked")


def test_a_nameless_key_is_refused_in_the_dialog(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/keys/")
    page.get_by_role("button", name="Create key").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no scope")
    dialog.get_by_role("checkbox").first.uncheck()
    dialog.get_by_role("button", name="Create key").click()
    expect(page.get_by_role("dialog")).to_contain_text("Choose at least one")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_a_viewer_sees_keys_and_cannot_make_one(visitor_of: Callable[..., Visitor]) -> None:
    visitor = visitor_of(world.VIEWER)
    page = visitor.open("/t/harbor/keys/")
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
    expect(page.get_by_role("button", name="Create key")).to_have_count(0)
    visitor.open("/t/harbor/keys/new/")
    expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
    expect(page.locator("main")).to_contain_text("developer")
