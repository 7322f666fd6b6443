"""Rollouts in a browser: watched live, paused, gone back with one click, and started with a gap that is accepted."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor

pytestmark = pytest.mark.browser


def test_a_canary_is_watched_paused_and_taken_back(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.DEVELOPER, viewport={"width": 1440, "height": 1000}).open("/t/harbor/rollouts/")
    page.get_by_role("link", name="v1 to v2").first.click()
    expect(page.get_by_role("heading", name="v1 to v2")).to_be_visible()
    expect(page.get_by_text(re.compile(r"Running, step \d of 4"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"Error rate: difference .* interval"))).to_be_visible()

    page.get_by_role("button", name="Promote to 100 %").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(re.compile("Skips the judge|without judging"))).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()

    site.world("pause", site.facts["rollout"])
    expect(page.get_by_text(re.compile(r"Paused in step \d of 4"))).to_be_visible()
    page.get_by_role("button", name="Resume").first.click()
    expect(page.get_by_text(re.compile(r"Running, step \d of 4"))).to_be_visible()

    page.get_by_role("button", name="Roll back to v1").first.click()
    expect(page.get_by_text("Rolled back; the baseline has all the traffic.").first).to_be_visible()
    expect(page.get_by_role("button", name="Roll back to v1")).to_have_count(0)


def test_charts_are_tables_as_well(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.DEVELOPER).open(f"/t/harbor/rollouts/{site.facts['rolled_back']}/")
    page.get_by_text("As a table").first.click()
    expect(page.get_by_role("columnheader", name="measured")).to_be_visible()
    expect(page.get_by_role("columnheader", name="planned")).to_be_visible()


def test_a_gap_is_ticked_before_it_may_happen(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/rollouts/new/?endpoint=search")
    page.get_by_label("In place: the baseline ends first").check()
    words = "search does not answer while the candidate loads"
    box = page.get_by_role("checkbox", name=re.compile("I accept this"))
    expect(box).to_be_visible()
    page.get_by_role("button", name="Start rollout").click()
    expect(page.get_by_role("alert").filter(has_text="gap_not_accepted")).to_be_visible()
    expect(box).not_to_be_checked()
    expect(page.get_by_label("In place: the baseline ends first")).to_be_checked()
    box.check()
    expect(page.get_by_text(f"--accept '{words}'")).to_be_visible()
    expect(box).to_be_checked()
    page.get_by_role("button", name="Start rollout").click()
    expect(page.get_by_role("heading", name="v1 to v2")).to_be_visible()
    expect(page.get_by_text("Running, step 1 of 1")).to_be_visible()


def test_an_experiment_is_read_and_ended(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/rollouts/experiments/")
    page.get_by_role("link", name="Shorter answers").click()
    expect(page.get_by_text("50 % of traffic").first).to_be_visible()
    expect(page.get_by_text("apart, unlikely by chance").first).to_be_visible()
    page.get_by_role("button", name="End experiment").click()
    page.get_by_role("dialog").get_by_role("button", name="End experiment").click()
    expect(page.get_by_role("button", name="End experiment")).to_have_count(0)
