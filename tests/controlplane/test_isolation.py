"""Generated: every REST route is called with a foreign tenant's name and ids, by every method it answers.

A new route is covered as soon as it is mounted; a new kind of id fails here until the world of the tests owns one.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from tenants.api.base import PlatformView, TenantView
from tests.build.controlplane import client_for, make_user, owner_of
from tests.build.world import make_world

pytestmark = pytest.mark.django_db

METHODS = ("get", "post", "put", "patch", "delete")
PREFIX = "api/v1/"
CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")

Route = tuple[str, type[PlatformView], str]


def patterns(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in (resolver or get_resolver()).url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from patterns(entry, path)
        elif path.startswith(PREFIX):
            yield path, entry


def routes() -> list[Route]:
    """(path, view, method) of everything under the REST prefix."""
    return [
        (path, entry.callback.view_class, method)  # type: ignore[attr-defined]
        for path, entry in patterns()
        for method in METHODS
        if hasattr(entry.callback.view_class, method)  # type: ignore[attr-defined]
    ]


def tenant_routes() -> list[Route]:
    return [route for route in routes() if issubclass(route[1], TenantView)]


def fill(path: str, values: dict[str, Any]) -> str:
    missing = set(CONVERTER.findall(path)) - set(values)
    assert not missing, f"{path}: the world owns no {missing}; add it to tests/build/world.py"
    return "/" + CONVERTER.sub(lambda match: str(values[match[1]]), path)


def call(client: APIClient, method: str, url: str) -> Any:
    return getattr(client, method)(url, {}, format="json")


def test_the_walk_sees_the_routes() -> None:
    assert len(tenant_routes()) > 40
    assert len([route for route in routes() if route[1].who == "platform_admin"]) > 8


def test_a_foreign_tenant_does_not_exist() -> None:
    mine, _ = make_world()
    theirs, values = make_world()
    client = client_for(owner_of(mine))
    wrong = []
    for path, _view, method in tenant_routes():
        answer = call(client, method, fill(path, {"tenant": theirs.slug, **values}))
        if (answer.status_code, answer.json().get("code")) != (404, "tenant_not_found"):
            wrong.append((method, path, answer.status_code))
    assert not wrong


def test_foreign_ids_do_not_exist_in_my_tenant() -> None:
    """Whatever is asked about a foreign id is answered as about an id that nobody has."""
    mine, _ = make_world()
    _, values = make_world()
    client = client_for(owner_of(mine))
    nobodys = {name: uuid.uuid4() if _is_uuid(value) else value for name, value in values.items()}
    wrong = []
    for path, _view, method in tenant_routes():
        if len(CONVERTER.findall(path)) < 2:
            continue
        answer, want = (call(client, method, fill(path, {"tenant": mine.slug, **ids})) for ids in (values, nobodys))
        got = (answer.status_code, answer.json()["code"])
        if got != (want.status_code, want.json()["code"]) or got[0] not in (400, 404):
            wrong.append((method, path, got, want.status_code))
    assert not wrong


def _is_uuid(value: Any) -> bool:
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(value)) is not None


def test_admin_routes_refuse_the_owner_of_a_tenant() -> None:
    mine, values = make_world()
    client = client_for(owner_of(mine))
    wrong = []
    for path, view, method in routes():
        if view.who == "platform_admin":
            answer = call(client, method, fill(path, {"tenant": mine.slug, **values}))
            if answer.status_code != 403:
                wrong.append((method, path, answer.status_code))
    assert not wrong


def test_without_credentials_only_public_routes_answer() -> None:
    mine, values = make_world()
    wrong = []
    for path, view, method in routes():
        if view.who != "public":
            answer = call(APIClient(), method, fill(path, {"tenant": mine.slug, **values}))
            if answer.status_code != 401:
                wrong.append((method, path, answer.status_code))
    assert not wrong


def test_lists_show_own_rows_only() -> None:
    mine, mine_values = make_world()
    _, their_values = make_world()
    client = client_for(owner_of(mine))
    foreign = {str(value) for name, value in their_values.items() if name not in ("number", "alias", "price_id")}
    for path, _view, method in tenant_routes():
        if method == "get":
            answer = client.get(fill(path, {"tenant": mine.slug, **mine_values}))
            assert answer.status_code == 200, (path, answer.content)
            leaked = [value for value in foreign if value in answer.content.decode()]
            assert not leaked, (path, leaked)


def test_a_stranger_with_an_account_sees_no_tenant() -> None:
    make_world()
    assert client_for(make_user()).get("/api/v1/tenants").json()["data"] == []
