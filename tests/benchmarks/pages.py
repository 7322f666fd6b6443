"""What a page weighs and costs: assets as Chromium receives them, first paint on loopback, server time, queries.

Starts the web process with the world of the browser tests and opens every page twice in Chromium: with an empty cache
for the weight of its scripts, styles and pictures (as sent, compressed), and again for the first paint, as people who
go from page to page see it. Prints a table and, as its last line, one JSON object with the load of the machine; ends
with 1 when a page does not answer 200, never paints, or breaks a limit.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import django
from playwright.sync_api import Page, sync_playwright

from tests import services

if TYPE_CHECKING:
    from tests.browser.conftest import Site

MOST_ASSETS: Final = 150 * 1024
MOST_PAINT_MS: Final = 300
PAINT_WAIT_MS: Final = 10_000
#: The entry may come after ``load``: an observer is told of it whenever it comes. -1: nothing was painted in time.
PAINT: Final = """(wait) => new Promise((found) => {
  const seen = (list) => {
    const entry = list.find((one) => one.name === "first-contentful-paint");
    if (entry) found(entry.startTime);
  };
  new PerformanceObserver((list) => seen(list.getEntries())).observe({type: "paint", buffered: true});
  setTimeout(() => found(-1), wait);
})"""


class Row(NamedTuple):
    """A page: bytes of assets, milliseconds to the first paint, milliseconds and queries of the server."""

    path: str
    assets: int
    page: int
    paint_ms: float
    server_ms: float
    queries: int


def paths_of(facts: dict[str, Any]) -> list[str]:
    """Every page of the tests."""
    from tests.browser.test_pages import PLATFORM_PAGES, TENANT_PAGES

    return [
        *("/t/harbor/" + path.format(**facts) for path in TENANT_PAGES),
        *("/platform/" + path for path in PLATFORM_PAGES),
        "/accounts/settings/",
    ]


def weight(page: Page, url: str) -> tuple[int, int]:
    """Bytes of assets and of the page itself, as received with an empty cache; SystemExit unless it answers 200."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    kinds: dict[str, str] = {}
    sizes: dict[str, int] = {}
    session.on("Network.responseReceived", lambda event: kinds.update({event["requestId"]: event["type"]}))
    session.on(
        "Network.loadingFinished", lambda event: sizes.update({event["requestId"]: int(event["encodedDataLength"])})
    )
    answer = page.goto(url, wait_until="networkidle")
    session.detach()
    if answer is None or answer.status != 200:
        raise SystemExit(f"{url} answers {answer.status if answer else 'nothing'} in Chromium, not 200")
    assets = sum(size for ident, size in sizes.items() if kinds.get(ident) in ("Script", "Stylesheet", "Image", "Font"))
    whole = sum(size for ident, size in sizes.items() if kinds.get(ident) == "Document")
    return assets, whole


def paint(page: Page, url: str, rounds: int) -> float:
    """Median milliseconds from the start of the navigation to the first paint; SystemExit when nothing is painted."""
    found = []
    for _ in range(rounds):
        page.goto(url, wait_until="load")
        found.append(float(page.evaluate(PAINT, PAINT_WAIT_MS)))
        if found[-1] < 0:
            raise SystemExit(f"{url} painted nothing within {PAINT_WAIT_MS / 1000:.0f} s of its load")
    return round(statistics.median(found))


def measure(site: "Site", rounds: int) -> list[Row]:
    """Every page of the tests' world."""
    from tests.browser import world
    from tests.browser.conftest import CHROMIUM, FLAGS, Visitor

    paths = paths_of(site.facts)
    costs = json.loads(site.world("costs", world.ADMIN, *paths))
    unread = [
        f"{path} answers {cost['status']} with {cost['queries']} queries"
        for path, cost in zip(paths, costs, strict=True)
        if cost["status"] != 200 or not cost["queries"]
    ]
    if unread:
        raise SystemExit("not measured, these are no pages: " + "; ".join(unread))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US").new_page()
        Visitor(page, site.url, []).sign_in(world.ADMIN)
        page.wait_for_url(lambda url: "/login" not in url)
        rows = []
        for path, cost in zip(paths, costs, strict=True):
            assets, whole = weight(page, site.url + path)
            drawn = paint(page, site.url + path, rounds)
            rows.append(Row(path, assets, whole, drawn, cost["ms"], cost["queries"]))
        browser.close()
    return rows


def broken(rows: Sequence[Row]) -> list[str]:
    """A sentence for each limit that a page breaks, with its figure."""
    found = [
        f"{row.path}: {row.assets / 1024:.1f} KiB of assets, allowed are {MOST_ASSETS // 1024}"
        for row in rows
        if row.assets > MOST_ASSETS
    ]
    return found + [
        f"{row.path}: first paint after {row.paint_ms:.0f} ms, allowed are {MOST_PAINT_MS}"
        for row in rows
        if row.paint_ms > MOST_PAINT_MS
    ]


def main() -> int:
    """Print the table and, as the last line, one JSON object; 1 when a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    services.ensure()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.browser.conftest import running

    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as site:
        rows = measure(site, options.rounds)
        hidden = {
            value: f"<{name}>" for name, value in site.facts.items() if isinstance(value, str) and len(value) > 30
        }
    print(f"{'page':58} {'assets':>9} {'page':>9} {'paint':>7} {'server':>8} {'queries':>7}")
    for row in rows:
        path = row.path
        for value, name in hidden.items():
            path = path.replace(value, name)
        print(
            f"{path[:58]:58} {row.assets / 1024:5.1f} KiB {row.page / 1024:5.1f} KiB {row.paint_ms:4.0f} ms "
            f"{row.server_ms:5.0f} ms {row.queries:7}"
        )
    figures = {
        "pages": len(rows),
        "most_assets_kib": round(max(row.assets for row in rows) / 1024, 1),
        "most_assets_allowed_kib": MOST_ASSETS // 1024,
        "median_paint_ms": statistics.median(row.paint_ms for row in rows),
        "most_paint_ms": max(row.paint_ms for row in rows),
        "most_paint_allowed_ms": MOST_PAINT_MS,
        "most_queries": max(row.queries for row in rows),
        "median_server_ms": statistics.median(row.server_ms for row in rows),
        "most_server_ms": max(row.server_ms for row in rows),
        "rounds": options.rounds,
        "load_before": load,
        "load_after": round(os.getloadavg()[0], 1),
        "cpus": os.cpu_count(),
    }
    wrong = broken(rows)
    for sentence in wrong:
        print(f"BROKEN {sentence}")
    print(json.dumps({**figures, "broken": len(wrong)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
