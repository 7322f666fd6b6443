"""Upload in the browser: digests, progress, pause, resumption over a reload, refusals in place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession, Page, expect

from tests.browser import world
from tests.browser.conftest import Site, Visitor
from tests.build import catalog

pytestmark = pytest.mark.browser
Throttle = Callable[[Page, float], None]
SLOW = 400 * 1024
FAST = -1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A right Hugging Face folder whose weights take a while on a slow line."""
    config = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1024, "head_dim": 256}
    values = {**catalog.CONFIG, **config}
    files = catalog.huggingface(config, model__safetensors=catalog.weights(catalog.layer_shapes(values)))
    chosen = tmp_path / "export"
    chosen.mkdir()
    for path, data in files.items():
        (chosen / path).write_bytes(data)
    return chosen


@pytest.fixture
def throttle() -> Callable[[Page, float], None]:
    """Make the visitor's line slow (or fast again). One session per page: the first would go on braking."""
    sessions: dict[Page, CDPSession] = {}

    def set_speed(page: Page, bytes_per_second: float) -> None:
        if page not in sessions:
            sessions[page] = page.context.new_cdp_session(page)
        sessions[page].send(
            "Network.emulateNetworkConditions",
            {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytes_per_second},
        )

    return set_speed


def sent(page: Page) -> float:
    """How far the bar of sent bytes is, 0 to 100."""
    return float((page.locator("[data-bar-sent]").get_attribute("width") or "0").rstrip("%"))


def wait_until_sent(page: Page, percent: float) -> None:
    """Wait until the bar is past ``percent``. (The page's policy forbids Playwright's own waiting for expressions.)"""
    for _ in range(600):
        if sent(page) > percent:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"only {sent(page)} % were sent")


def begin(page: Page, folder: Path, model: str) -> None:
    page.get_by_label("Model", exact=True).fill(model)
    page.locator("input[data-folder]").set_input_files(folder)
    page.get_by_role("button", name="Upload version").click()


def test_an_upload_pauses_goes_on_and_is_checked(
    visitor_of: Callable[..., Visitor], site: Site, folder: Path, throttle: Throttle
) -> None:
    page = visitor_of(world.DEVELOPER).open("/t/harbor/models/upload/")
    throttle(page, SLOW)
    begin(page, folder, "paused-model")
    wait_until_sent(page, 8)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("[data-list]")).to_contain_text("Paused")
    before = sent(page)
    throttle(page, FAST)
    assert 0 < before < 100
    page.get_by_role("button", name="Resume").click()
    page.wait_for_url("**/models/paused-model/versions/1/")
    expect(page.locator("#live")).to_contain_text("Validating", timeout=30_000)
    site.world("validate")
    expect(page.locator("#live")).to_contain_text("Ready", timeout=30_000)
    expect(page.get_by_role("link", name="Deploy").last).to_be_visible()


def test_an_interrupted_upload_goes_on_after_a_reload(
    visitor_of: Callable[..., Visitor], site: Site, folder: Path, throttle: Throttle
) -> None:
    visitor = visitor_of(world.DEVELOPER)
    page = visitor.open("/t/harbor/models/upload/")
    throttle(page, SLOW)
    begin(page, folder, "reloaded-model")
    wait_until_sent(page, 15)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{visitor.url}/t/harbor/models/")
    expect(page.get_by_role("heading", name="Uploads")).to_be_visible()
    page.get_by_role("link", name="Continue").first.click()
    page.wait_for_url("**/models/reloaded-model/versions/1/")
    data = json.loads(page.locator("#upload-data").text_content() or "{}")
    assert any(0 < file["offset"] < file["size"] or file["verified"] for file in data["files"])
    throttle(page, FAST)
    again: list[int] = []
    page.on(
        "request",
        lambda request: (
            again.append(int(request.headers.get("upload-offset", -1))) if request.method == "PATCH" else None
        ),
    )
    page.locator("input[data-folder]").set_input_files(folder)
    expect(page.locator("#live")).to_contain_text("Validating", timeout=30_000)
    assert again
    assert max(again) > 0  # it went on at an offset, not at the beginning


def test_a_name_that_is_never_accepted_is_refused_in_its_row(
    visitor_of: Callable[..., Visitor], folder: Path, throttle: Throttle
) -> None:
    (folder / "training_args.bin").write_bytes(b"pickle")
    page = visitor_of(world.DEVELOPER).open("/t/harbor/models/upload/")
    throttle(page, SLOW)
    begin(page, folder, "with-pickle")
    row = page.get_by_role("row").filter(has_text="training_args.bin")
    expect(row).to_contain_text("Refused")
    throttle(page, FAST)
    page.wait_for_url("**/models/with-pickle/versions/1/")


def test_the_quota_refuses_before_bytes_are_sent(visitor_of: Callable[..., Visitor], folder: Path) -> None:
    page = visitor_of(world.STRANGER).open("/t/lantern/models/upload/")
    patches: list[str] = []
    page.on("request", lambda request: patches.append(request.url) if request.method == "PATCH" else None)
    begin(page, folder, "too-large")
    expect(page.get_by_role("alert").filter(has_text="quota_exceeded")).to_be_visible()
    expect(page.get_by_role("button", name="Upload version")).to_be_enabled()
    assert not patches
