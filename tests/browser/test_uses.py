"""What people come for, each once: chat, a canary that passes and one that fails, a quota that refuses, a drain."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor, running
from tests.build import gateway_peers as peers
from tests.build import plane
from tests.build.gateway_engine import FakeEngine

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def gateway(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real gateway at the address that the console names, before a trivial engine."""
    folder = tmp_path_factory.mktemp("uses") / "gateway"
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with peers.serving(peers.plain(FakeEngine(tokens=3))) as engine:
            token = await asyncio.to_thread(site.world, "serve", engine)
            port = int(site.env["MILLPOND_GATEWAY_URL"].rsplit(":", 1)[1])
            async with plane.gateway(site.env, folder, site.url, token, port):
                ready.set()
                await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(90)
    yield
    loop.call_soon_threadsafe(over.set)
    thread.join(20)


def test_a_chat_streams_and_endpoints_and_revisions_are_compared(
    visitor_of: Callable[..., Visitor], gateway: None, site: Site
) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/playground/?model=talk")
    page.get_by_label("Message").fill("Hello there")
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".turn-answer")
    expect(answer).to_contain_text("tok0 tok1 tok2")
    expect(answer).to_contain_text("TTFT")
    expect(answer).to_contain_text("7 in, 3 out")
    page.get_by_label("Compare with").select_option("talk-two")
    page.get_by_label("Message").fill("And both of you?")
    page.get_by_role("button", name="Send").click()
    pair = page.locator(".turn-pair .turn-answer")
    expect(pair).to_have_count(2)
    expect(pair.nth(1)).to_contain_text("talk-two")
    expect(pair.nth(1)).to_contain_text("tok0 tok1 tok2")
    page.get_by_role("button", name="View code").click()
    expect(page.get_by_role("dialog")).to_contain_text("/v1/chat/completions")
    page.keyboard.press("Escape")
    page.get_by_label("Model to call").select_option("talk@r1")
    page.get_by_label("Compare with").select_option("talk@r2")  # it has no share of the traffic
    page.get_by_label("Message").fill("Which of you?")
    page.get_by_role("button", name="Send").click()
    expect(pair.nth(0)).to_contain_text("talk r1")
    expect(pair.nth(1)).to_contain_text("talk r2")
    for number in (0, 1):
        expect(pair.nth(number)).to_contain_text(re.compile(r"tok0 tok1 tok2\s*TTFT"))
    expect(page.get_by_role("row", name="TTFT, mean")).to_contain_text(re.compile(r"\d+\sms\s*\d+\sms"))
    page.get_by_role("button", name="View code").click()
    expect(page.get_by_role("dialog")).to_contain_text('-H "x-millpond-revision: r2"')
    expect(page.get_by_role("dialog")).to_contain_text('extra_headers={"x-millpond-revision": "r2"}')


@pytest.mark.parametrize(
    ("ending", "word", "said"),
    [("passes", "Promoted", "the candidate is the new baseline"), ("fails", "Rolled back", "error rate")],
)
def test_a_canary_ends_on_an_open_page(
    visitor_of: Callable[..., Visitor], site: Site, ending: str, word: str, said: str
) -> None:
    with site.told("canary", ending) as story:
        page = visitor_of(world.VIEWER).open(f"/t/harbor/rollouts/{story.hear()}/")
        expect(page.get_by_text("Running, step 1 of 2")).to_be_visible()
        story.go_on()
        expect(page.locator("#live .head")).to_contain_text(word, timeout=40_000)
        expect(page.locator("#live")).to_contain_text(said, ignore_case=True)


def test_a_lower_quota_refuses_a_deployment_with_the_reason(visitor_of: Callable[..., Visitor]) -> None:
    admin = visitor_of(world.ADMIN).open("/platform/tenants/")
    row = admin.get_by_role("row").filter(has_text="Lantern Search")
    row.get_by_role("button", name="quota").first.click()
    dialog = admin.get_by_role("dialog")
    dialog.get_by_label("Replicas").fill("2")
    dialog.get_by_role("button", name="Save quota").click()
    expect(admin.locator("dialog[open]")).to_have_count(0)
    page = visitor_of(world.STRANGER).open("/t/lantern/deployments/new/?model=tiny-chat")
    page.get_by_label("Endpoint").fill("one-too-many")
    page.get_by_label("Replicas").fill("1")
    page.get_by_role("button", name="Deploy", exact=True).click()
    refusal = page.get_by_role("alert").filter(has_text="quota")
    expect(refusal.first).to_be_visible()
    expect(page.locator("main")).to_contain_text("2")
    expect(page).to_have_url(re.compile("/deployments/new/"))


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console of its own: other tests' replicas must not move with these."""
    home: Path = tmp_path_factory.mktemp("two-machines")
    with running(home, "fleet") as found, found.told("beat"):
        yield found


def test_draining_a_node_moves_its_replicas_before_they_stop(
    visitor_of: Callable[..., Visitor], two_machines: Site
) -> None:
    visitor = visitor_of()
    visitor.url = two_machines.url
    visitor.sign_in(world.ADMIN)
    visitor.page.wait_for_url(lambda url: "/login" not in url)
    page = visitor.open(f"/t/harbor/deployments/{two_machines.facts['deployment']}/")
    live = page.locator("#live")
    expect(live).to_contain_text("Ready", timeout=30_000)
    held = "mill-a" if live.get_by_text("mill-a").count() else "mill-b"
    other = "mill-b" if held == "mill-a" else "mill-a"
    drain = visitor.open(f"/platform/nodes/{two_machines.facts['nodes'][held]}/")
    drain.get_by_role("button", name="Drain").first.click()
    dialog = drain.get_by_role("dialog")
    dialog.get_by_label(f"Type {held} to confirm").fill(held)
    dialog.get_by_role("button", name="Drain node").click()
    expect(drain.locator("dialog[open]")).to_have_count(0)
    expect(drain.locator("#live")).to_contain_text("Drain")
    page = visitor.open(f"/t/harbor/deployments/{two_machines.facts['deployment']}/")
    expect(page.locator("#live")).to_contain_text(other, timeout=30_000)
    gone = visitor.open(f"/platform/nodes/{two_machines.facts['nodes'][held]}/")
    expect(gone.locator("#live")).to_contain_text("Drained", timeout=30_000)
