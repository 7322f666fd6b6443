"""Every page in Chinese, walked for English sentences that nobody translated or marked as English."""

import datetime
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client

from kernel import clock, scope
from tenants.models import Tenant
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.rollouts import Story
from tests.build.world import make_world
from tests.console.test_every_page import PAGES

pytestmark = pytest.mark.django_db

#: What stays as it is: code, logs, names of people and things, and what says that it is English.
_SKIPPED = {"script", "style", "code", "pre", "textarea", "svg"}
_VOID = {"input", "br", "hr", "meta", "link", "img", "wbr", "path", "line", "rect", "circle"}
_SENTENCE = re.compile(r"[A-Za-z]{3,} [A-Za-z]{2,} [A-Za-z]{2,}")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_NAMES = ("Millpond", "OpenAI", "Test CPU")


class Texts(HTMLParser):
    """The texts that people read, attributes for screen readers and hints included."""

    def __init__(self, *, also_marked: bool) -> None:
        super().__init__()
        self.also_marked = also_marked
        self.found: list[str] = []
        self._open: list[tuple[str, bool]] = []

    @property
    def _is_skipped(self) -> bool:
        return any(skipped for _tag, skipped in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        is_marked = values.get("lang") == "en" and not self.also_marked
        own = tag in _SKIPPED or is_marked or "mono" in values.get("class", "").split()
        if not own and not self._is_skipped:
            self.found += [values[name] for name in ("aria-label", "placeholder", "title") if name in values]
        if tag not in _VOID:
            self._open.append((tag, own))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._is_skipped and data.strip():
            self.found.append(data.strip())


def english(page: str, *, also_marked: bool = False) -> list[str]:
    """Sentences without a Chinese character; ``also_marked``: even those that are said to be English."""
    texts = Texts(also_marked=also_marked)
    texts.feed(page)
    return [
        text
        for text in texts.found
        if _SENTENCE.search(text) and not _HAN.search(text) and not any(name in text for name in _NAMES)
    ]


def test_the_walk_finds_english_and_leaves_what_is_marked() -> None:
    assert english('<p>Nothing is here yet</p><p lang="en">It went very well</p><pre>a b c d e</pre>') == [
        "Nothing is here yet"
    ]
    assert english('<p lang="en">It went very well</p>', also_marked=True) == ["It went very well"]
    assert english('<p title="It went very well">好</p>') == ["It went very well"]


def test_what_rooms_say_of_a_rollout_that_went_back_is_chinese() -> None:
    tenant = make_tenant("harbor")
    start = clock.now() - datetime.timedelta(minutes=20)
    story = Story(tenant, actor_for(owner_of(tenant)), endpoint="support", model="helpdesk", start=start)
    story.live(1)
    made = story.roll_out(shares=(50, 100))
    story.live(3, failing=0.6)
    client = Client(headers={"Accept-Language": "zh-Hans"})
    client.force_login(owner_of(tenant))
    pages = [
        "",
        "rollouts/",
        f"rollouts/{made.id}/?log=all",
        "deployments/",
        f"deployments/{story.baseline.id}/",
        "audit/",
    ]
    texts = {path: client.get(f"/t/harbor/{path}").content.decode() for path in pages}
    assert "已回滚，全部流量回到基线。未通过：错误率" in texts[pages[2]]
    assert 'lang="en"' not in texts[pages[2]].partition("<main")[2]
    wrong = [(path, text) for path, page in texts.items() for text in english(page, also_marked=True)]
    assert not wrong


@pytest.mark.parametrize("who", ["tenant", "platform"])
def test_no_page_speaks_english_to_a_chinese_reader(who: str) -> None:
    tenant, ids = make_world()
    with scope.all_tenants():
        Tenant.objects.filter(id=tenant.id).update(name="港口")
    client = Client(headers={"Accept-Language": "zh-Hans"})
    client.force_login(make_user(admin=True, name="管理员"))
    extra: dict[str, Any] = {"verb": "cordon", "token_id": ids["key_id"], "slug": tenant.slug}
    wrong = []
    for path in [one for one in PAGES if one.startswith("t/") == (who == "tenant") and "logout" not in one]:
        for tab in ("metrics", "logs", "events", "configuration", "access", "api") if "<slug:tab>" in path else ("",):
            values = {**ids, **extra, "tab": tab}
            url = "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match, known=values: str(known.get(match[1], "x")), path)
            answer = client.get(url)
            if answer.status_code == 200 and answer.headers.get("Content-Type", "").startswith("text/html"):
                wrong += [(path, text[:100]) for text in english(answer.content.decode())]
    assert not wrong, "\n".join(f"{path}: {text}" for path, text in sorted(set(wrong)))
