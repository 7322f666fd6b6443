"""Generated: every page is asked with a foreign tenant's name and ids, and sent junk: none tells, none breaks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django import forms as django_forms
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from console import forms
from tests.build.controlplane import make_tenant, make_user, owner_of
from tests.build.world import make_world

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")
JUNK = ["a\x00b", "-1", "9" * 400, "\u202e\U0001f4a7" * 2000, "0001-01-01"]


def _patterns(resolver: Any = None, prefix: str = "") -> Iterator[str]:
    for entry in (resolver or get_resolver()).url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _patterns(entry, path)
        elif isinstance(entry, URLPattern) and path.startswith(("t/", "platform/", "accounts/")):
            yield path


PAGES = sorted(set(_patterns()))
TENANT_PAGES = [path for path in PAGES if path.startswith("t/")]


def _names() -> list[str]:
    """Every field that a page reads: of its forms, and by name."""
    found = set()
    for kind in vars(forms).values():
        if isinstance(kind, type) and issubclass(kind, django_forms.BaseForm):
            found |= set(kind.base_fields)  # type: ignore[attr-defined]
    for source in (ROOT / "console").rglob("*.py"):
        found |= set(re.findall(r"(?:GET|POST)\.get(?:list)?\(\"(\w+)\"", source.read_text()))
    return sorted(found)


NAMES = _names()


def _fill(path: str, values: dict[str, Any]) -> str:
    return "/" + CONVERTER.sub(lambda match: quote(str(values[match[1]]), safe=""), path)


def _values(tenant: Any, ids: dict[str, Any], **more: Any) -> dict[str, Any]:
    extra = {"tab": "events", "verb": "cordon", "token_id": ids["key_id"], "slug": tenant.slug}
    extra |= {"user_id": ids["key_id"], "uidb36": "0" * 32, "key": "x-y", "provider_id": "acme", "session_id": 1}
    return {**ids, **extra, "text": "mpi_x", **more}


def _client(user: Any) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def _both(client: Client, url: str) -> list[tuple[str, Any]]:
    return [("GET", client.get(url)), ("POST", client.post(url, {}))]


def test_the_walk_sees_pages_and_fields() -> None:
    assert len(TENANT_PAGES) > 30
    assert len(NAMES) > 20


def test_a_foreign_tenants_pages_do_not_exist() -> None:
    mine = make_tenant()
    theirs, ids = make_world()
    client = _client(owner_of(mine))
    wrong = [
        (method, path, answer.status_code)
        for path in TENANT_PAGES
        for method, answer in _both(client, _fill(path, _values(theirs, ids)))
        if answer.status_code != 404 and not (answer.status_code == 400 and b"method_not_allowed" in answer.content)
    ]
    assert not wrong


def test_foreign_ids_do_not_exist_on_my_pages() -> None:
    mine, own = make_world()
    _theirs, ids = make_world()
    client = _client(owner_of(mine))
    wrong = []
    for path in TENANT_PAGES:
        if len(CONVERTER.findall(path)) < 2:
            continue
        values = _values(mine, {**ids, "number": own["number"], "alias": own["alias"]})
        for method, answer in _both(client, _fill(path, values)):
            if answer.status_code not in (400, 404) and not _refused(client, answer):
                wrong.append((method, path, answer.status_code, answer.headers.get("Location", "")))
    assert not wrong


def _refused(client: Client, answer: Any) -> bool:
    """A redirect whose page shows a refusal by its code, or 404."""
    if answer.status_code != 302:
        return False
    page = client.get(answer.headers["Location"])
    return page.status_code == 404 or b"not_found" in page.content


def test_pages_of_the_platform_are_for_its_admins() -> None:
    mine, ids = make_world()
    client = _client(owner_of(mine))
    wrong = [
        (method, path, answer.status_code)
        for path in PAGES
        if path.startswith("platform/")
        for method, answer in _both(client, _fill(path, _values(mine, ids)))
        if answer.status_code not in (400, 403, 404, 405)
    ]
    assert not wrong


@pytest.mark.parametrize("who", ["owner", "admin"])
def test_no_page_breaks_on_junk(who: str) -> None:
    tenant, ids = make_world()
    user = owner_of(tenant) if who == "owner" else make_user(admin=True)
    wrong = []
    pages = TENANT_PAGES if who == "owner" else [path for path in PAGES if path not in TENANT_PAGES]
    for number, path in enumerate(pages):
        client = _client(user)  # a page may sign out, or choose another language
        url = _fill(path, _values(tenant, ids))
        texts = [name for name in CONVERTER.findall(path) if f"<str:{name}>" in path]
        for junk in JUNK[number % 2 :: 2]:  # half of it at each page, the other half at the next
            sent = dict.fromkeys(NAMES, junk)
            urls = [url, *(_fill(path, _values(tenant, ids, **{name: junk})) for name in texts)]
            for one in urls:
                for send in (client.get, client.post):
                    with transaction.atomic():
                        answer = send(one, sent)
                        transaction.set_rollback(True)
                    if answer.status_code >= 500:
                        wrong.append((send.__name__, one[:80], junk[:20], answer.status_code))
    assert not wrong
