"""Every page: accessible, narrow enough for a phone, and invisible to strangers."""

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor
from tests.build.outlines import DEEPSEEK_V3

pytestmark = pytest.mark.browser
TENANT_PAGES = (
    "", "models/", "models/upload/", "models/tiny-chat/", "models/tiny-chat/versions/1/", "evaluation/", "deployments/",
    "deployments/new/?model=tiny-chat", "deployments/{deployment}/", "deployments/{deployment}/metrics/",
    "deployments/{deployment}/logs/", "deployments/{deployment}/events/", "deployments/{deployment}/configuration/",
    "deployments/{deployment}/access/", "deployments/{deployment}/api/", "rollouts/", "rollouts/{rollout}/",
    "rollouts/{rolled_back}/", "rollouts/new/?endpoint=helpdesk", "rollouts/experiments/",
    "rollouts/experiments/{experiment}/", "playground/", "usage/",
    "usage/?by=key&days=1",
    "keys/", "members/", "audit/", "settings/",
)  # fmt: skip
PLATFORM_PAGES = (
    "",
    "devices/",
    "devices/?device=CPU-0",
    "layouts/",
    "quotas/",
    "quotas/groups/ports/",
    "faults/",
    "nodes/",
    "tenants/",
    "people/",
    "prices/",
    "audit/",
    "system/",
)
OTHER_PAGES = ("/accounts/settings/", "/api/docs")
AXE = (resources.files("axe_core_python") / "axe.min.js").read_text()


def found_by_axe(page: Page) -> list[str]:
    """What axe finds, but for what it calls minor."""
    session = page.context.new_cdp_session(page)  # not an injected script tag: the policy forbids those
    session.send("Runtime.evaluate", {"expression": AXE})
    run = "axe.run({resultTypes: ['violations']}).then((result) => JSON.stringify(result.violations))"
    answer = session.send("Runtime.evaluate", {"expression": run, "awaitPromise": True, "returnByValue": True})
    violations: list[dict[str, Any]] = json.loads(answer["result"]["value"])
    return [
        f"{page.url}: {one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in violations
        if one["impact"] != "minor"
        for node in one["nodes"][:3]
    ]


def leaving(page: Page) -> list[str]:
    """The page when it is wider than the window."""
    return [f"{page.url}: too wide"] if page.evaluate("document.documentElement.scrollWidth > innerWidth") else []


@pytest.mark.parametrize(
    ("theme", "language", "width"), [("light", "en", 1280), ("dark", "zh-hans", 390)], ids=["wide", "phone"]
)
def test_axe_finds_nothing(
    visitor_of: Callable[..., Visitor], site: Site, theme: str, language: str, width: int
) -> None:
    found: list[str] = []
    visitor = visitor_of(viewport={"width": width, "height": 900})
    visitor.page.context.add_cookies([{"name": "millpond_theme", "value": theme, "url": site.url}])
    found += found_by_axe(visitor.open("/accounts/login/"))
    visitor.sign_in(world.ADMIN)
    visitor.page.wait_for_url(lambda url: "/login" not in url)
    visitor.page.context.add_cookies([{"name": "django_language", "value": language, "url": site.url}])
    for path in TENANT_PAGES:
        page = visitor.open("/t/harbor/" + path.format(**site.facts))
        assert page.locator("h1").count() == 1, path
        found += found_by_axe(page) + leaving(page)
    for path in ["/platform/" + path for path in PLATFORM_PAGES]:
        page = visitor.open(path)
        found += found_by_axe(page) + leaving(page)
    for path in OTHER_PAGES:
        found += found_by_axe(visitor.open(path))
    page = visitor.open("/t/harbor/keys/")
    page.locator("[hx-get$='/keys/new/']").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    found += found_by_axe(page)
    assert not found, "\n".join(found)


def test_pages_fit_a_phone(visitor_of: Callable[..., Visitor], site: Site) -> None:
    """In English, whose words are longest; in Chinese where axe looks at a phone."""
    visitor = visitor_of(world.ADMIN, viewport={"width": 390, "height": 844})
    wide: list[str] = []
    for path in ["/t/harbor/" + path.format(**site.facts) for path in TENANT_PAGES] + [
        "/platform/" + path for path in PLATFORM_PAGES
    ]:
        page = visitor.open(path)
        wide += leaving(page)
    assert not wide
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("navigation").first).to_be_visible()


def test_a_config_is_judged_before_an_upload(visitor_of: Callable[..., Visitor], site: Site, tmp_path: Path) -> None:
    page = visitor_of(world.VIEWER).open("/t/harbor/models/")
    page.get_by_role("link", name="Will it fit?").click()
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    page.locator("#evaluation-file").set_input_files(tmp_path / "config.json")
    expect(page.locator("#evaluation")).to_contain_text("An upload would be rejected.")
    page.get_by_label("Context length").fill("8192")
    expect(page.locator("#evaluation")).to_contain_text("--set max_model_len=8192")
    assert not found_by_axe(page) + leaving(page)


def test_a_file_chosen_while_a_page_loads_counts(
    visitor_of: Callable[..., Visitor], site: Site, tmp_path: Path
) -> None:
    """On a slow line the form stands before its program does, and people do not wait for that."""
    page = visitor_of(world.VIEWER).page
    held: list[Route] = []
    page.route("**/js/evaluation*.js", lambda route: held.append(route))
    page.goto(f"{site.url}/t/harbor/evaluation/", wait_until="commit")
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    page.locator("#evaluation-file").set_input_files(tmp_path / "config.json")
    while not held:
        page.wait_for_timeout(50)
    held[0].continue_()
    expect(page.locator("#evaluation")).to_contain_text("An upload would be rejected.")


def test_a_foreign_tenant_does_not_exist(visitor_of: Callable[..., Visitor], site: Site) -> None:
    visitor = visitor_of(world.STRANGER)
    answers = []
    for path in TENANT_PAGES:
        response = visitor.page.goto(f"{site.url}/t/harbor/{path.format(**site.facts)}")
        answers.append((path, response.status if response else 0))
        assert "Harbor Support" not in visitor.page.content()
    assert {status for _path, status in answers} == {404}, answers
    mine = f"{site.url}/t/lantern/deployments/{site.facts['deployment']}/"
    response = visitor.page.goto(mine)
    assert response
    assert response.status == 404
    assert visitor.page.goto(f"{site.url}/platform/").status == 403  # type: ignore[union-attr]


def test_the_palette_goes_anywhere_by_keyboard(visitor_of: Callable[..., Visitor]) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("tiny")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="tiny-chat")).to_be_visible()


def test_a_lost_connection_is_said_and_healed(visitor_of: Callable[..., Visitor]) -> None:
    visitor = visitor_of(world.DEVELOPER)
    sockets: list[WebSocketRoute] = []
    is_cut = False

    def pass_on(socket: WebSocketRoute) -> None:
        if is_cut:
            socket.close(code=1011)
            return
        socket.connect_to_server()
        sockets.append(socket)

    visitor.page.route_web_socket("**/ws/t/harbor/", pass_on)
    page = visitor.open("/t/harbor/")
    badge = page.locator("[data-live-state]")
    expect(badge).to_have_attribute("data-state", "live")
    is_cut = True
    sockets[-1].close(code=1011)
    expect(badge).to_have_attribute("data-state", "lost")
    expect(page.locator("[data-lost]")).to_be_visible()
    is_cut = False
    page.get_by_role("button", name="Retry now").click()
    expect(badge).to_have_attribute("data-state", "live")
    expect(page.locator("[data-lost]")).to_be_hidden()


def test_a_removed_member_loses_the_open_page(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.LEAVER).open("/t/harbor/")
    expect(page.locator("[data-live-state]")).to_have_attribute("data-state", "live")
    site.world("remove", world.LEAVER)
    expect(page.get_by_role("heading", name="Not found")).to_be_visible(timeout=30_000)


def test_the_playground_says_when_the_gateway_cannot_be_reached(visitor_of: Callable[..., Visitor], site: Site) -> None:
    page = visitor_of(world.STRANGER).open("/t/lantern/playground/")
    expect(page.get_by_role("heading", name="No endpoint serves now")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
