"""The deploy form: a live fit check with reasons, the act as code, and the deployment page it leads to."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor

pytestmark = pytest.mark.browser


def test_the_fit_check_answers_while_the_form_is_filled(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/deployments/new/?model=tiny-chat")
    fit = page.locator("#fit")
    expect(fit).to_contain_text("1 replica would find a place now.")
    expect(fit).to_contain_text("Memory 0")
    expect(fit.locator("tr.reason").filter(has_text="Memory 1")).to_contain_text("InsufficientDeviceMemory")
    page.get_by_role("textbox", name="KV cache").fill("900")
    expect(fit).to_contain_text("It would fit if:")
    expect(fit.locator("tr.has-reason").filter(has_text="Memory 0")).to_contain_text("Does not fit")
    expect(fit.locator("pre").first).to_contain_text("--set kv_cache_gib=900")
    page.get_by_label("Sequences at once").fill("0")
    expect(fit).to_contain_text("At least 1.")


def test_deploying_leads_to_the_page_where_replicas_appear(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/deployments/new/?model=tiny-chat")
    page.get_by_label("Endpoint").fill("second-chat")
    page.get_by_label("Replicas").fill("1")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page).to_have_url(re.compile(r"/deployments/[0-9a-f-]{36}/$"))
    expect(page.get_by_role("heading", name="second-chat")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("1 wanted, 0 serving")
    expect(page.locator("#live")).to_contain_text("Pending")


def test_scaling_shows_on_another_open_page_without_a_reload(visitor_of: Callable[..., Visitor], site: Site) -> None:
    path = f"/t/harbor/deployments/{site.facts['deployment']}/"
    watcher = visitor_of(world.VIEWER).open(path)
    expect(watcher.locator("[data-live-state]")).to_have_attribute("data-state", "live")
    expect(watcher.get_by_role("button", name="Scale")).to_have_count(0)
    page = visitor_of(world.DEVELOPER).open(path)
    page.get_by_role("button", name="Scale").first.click()
    page.get_by_role("dialog").get_by_label("Replicas").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    expect(page.locator("#live")).to_contain_text("3 wanted")
    expect(watcher.locator("#live")).to_contain_text("3 wanted")


def test_a_stop_is_undone_from_its_toast_by_keyboard(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/deployments/new/?model=tiny-chat")
    page.get_by_label("Endpoint").fill("stopped-by-mistake")
    page.get_by_label("Replicas").fill("1")
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.get_by_role("heading", name="stopped-by-mistake")).to_be_visible()
    page.get_by_label("More", exact=True).click()
    page.get_by_role("button", name="Stop", exact=False).first.click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    toast = page.locator("[data-toast]").filter(has_text="finishes its requests and stops.")
    undo = toast.get_by_role("button", name="Undo")
    undo.focus()
    undo.press("Enter")
    expect(page.locator("[data-toast]").filter(has_text="starts.")).to_be_visible()
    page.get_by_label("More", exact=True).click()
    expect(page.get_by_role("button", name="Stop", exact=False).first).to_be_visible()


def test_the_level_and_its_watermarks_are_said_in_words(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.VIEWER).open(f"/t/harbor/deployments/{site.facts['deployment']}/")
    bar = page.get_by_role("img", name=re.compile(r"level 50.%; .*weights 3.* of 12 GiB"))
    expect(bar.first).to_be_visible()


def test_deleting_asks_for_the_name(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/deployments/new/?model=tiny-chat")
    page.get_by_label("Endpoint").fill("short-lived")
    page.get_by_role("button", name="Deploy", exact=True).click()
    page.locator("summary[aria-label=More]").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Delete deployment")).to_be_disabled()
    dialog.get_by_label("Type short-lived to confirm").fill("short-lived")
    dialog.get_by_role("button", name="Delete deployment").click()
    expect(page).to_have_url(re.compile(r"/t/harbor/deployments/$"))
