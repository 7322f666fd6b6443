"""Generated: every operation of the OpenAPI document is sent junk, as a tenant's owner and as a platform admin.

Whatever a caller sends, the answer is never a 5xx, and every refusal is a problem document with a code. A new operation
is covered as soon as it is mounted.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.core.cache import cache
from django.db import transaction
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from tests.build.controlplane import client_for, make_user, owner_of
from tests.build.world import make_world

pytestmark = pytest.mark.django_db

DEEP = b'{"a":' * 20_000
RAW: list[tuple[bytes, str]] = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"null", "application/json"),
    (b"17", "application/json"),
    (b"\xff\xfe\x00", "application/json"),
    (b"9" * 5000, "application/json"),
    (DEEP, "application/json"),
    (b"{}", "application/json; charset=nonsense"),
    (b"{}", "text/plain"),
    (b"{}", ""),
    (b"a=b", "application/x-www-form-urlencoded"),
    (b"--x\r\n", "multipart/form-data; boundary=x"),
]
VALUES: list[Any] = [
    None,
    -1,
    10**400,
    float("nan"),
    "a\x00b",
    "\ud800",
    "\u202e\U0001f4a7" * 4,
    "x" * 10_000,
    ["\x00", None, {}],
    {"\x00": "\ud800"},
    "9999-12-31T23:59:59.999999-23:59",
]
TEXTS = ["\x00", "\ud800", "-1", "9" * 400, "%", "..", "\u202e\U0001f4a7", "0001-01-01T00:00:00+23:59", "x" * 300]

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
    schema: dict[str, Any] = generator.get_schema(request=None, public=True)
    return schema


def operations(document: dict[str, Any]) -> list[Operation]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def body_schema(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    return resolve(document, content["application/json"]["schema"]) if "application/json" in content else {}


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(4):
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif schema.get("allOf") or schema.get("oneOf"):
            schema = (schema.get("allOf") or schema["oneOf"])[0]
    return schema


def sane(document: dict[str, Any], schema: dict[str, Any], name: str, known: dict[str, Any]) -> Any:
    """A value that gets past the shape of ``schema``, so that one junk field is met alone."""
    schema = resolve(document, schema)
    if name in known:
        return known[name]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {key: sane(document, one, key, known) for key, one in schema.get("properties", {}).items()}
    if kind == "array":
        return [sane(document, schema["items"], name, known)]
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 1), 1)
    if kind == "boolean":
        return True
    texts = {"email": "someone@example.org", "date-time": "2031-01-01T00:00:00Z"}
    return texts.get(schema.get("format", ""), "0" * 64 if name == "sha256" else "junk-1")


def variants(body: Any, junk: Any) -> Iterator[Any]:
    """``body`` with one value at a time, at any depth, replaced by ``junk``; and with a name that nobody knows."""
    if isinstance(body, dict):
        for name, value in body.items():
            yield {**body, name: junk}
            yield from ({**body, name: inner} for inner in variants(value, junk))
        yield {**body, "unknown": junk}
    elif isinstance(body, list):
        yield [junk]
        yield from ([inner] for inner in variants(body[0], junk))


class Walker:
    """Sends requests, each rolled back, and keeps what was answered wrongly."""

    def __init__(self, client: Any, *, sample: int) -> None:
        self.client = client
        self.sample = sample
        self.client.raise_request_exception = False
        self.wrong: list[Any] = []
        self.sent = 0

    def send(
        self, method: str, url: str, body: bytes | None = None, kind: str = "application/json", **more: Any
    ) -> None:
        cache.clear()  # sign-in is throttled by address
        with transaction.atomic():
            answer: Any = self.client.generic(method.upper(), url, body or b"", content_type=kind, **more)
            transaction.set_rollback(True)
        self.sent += 1
        if not fine(answer):
            self.wrong.append((method, url[:120], (body or b"")[:120], kind, answer.status_code, answer.content[:120]))


def fine(answer: Any) -> bool:
    if answer.status_code < 400:
        return True
    if answer.status_code >= 500 or not answer.headers["Content-Type"].startswith("application/problem+json"):
        return False
    if answer.request["REQUEST_METHOD"] == "HEAD":
        return True
    problem = json.loads(answer.content)
    return bool(problem["code"] and problem["detail"] and problem["status"] == answer.status_code)


@pytest.fixture(params=["owner", "admin"])
def walk(request: pytest.FixtureRequest) -> tuple[Walker, dict[str, Any]]:
    tenant, values = make_world()
    user = owner_of(tenant) if request.param == "owner" else make_user(admin=True)
    # An admin is let in everywhere and meets half of the junk at each door, the other half at the next; an owner,
    # refused at half the doors, a quarter of it.
    return Walker(client_for(user), sample=4 if request.param == "owner" else 2), {"tenant": tenant.slug, **values}


def url_of(path: str, values: dict[str, Any]) -> str:
    return path.format(**{name: quote(str(value), safe="", errors="surrogatepass") for name, value in values.items()})


def test_bodies_that_are_no_json(document: dict[str, Any], walk: tuple[Walker, dict[str, Any]]) -> None:
    walker, values = walk
    for number, (method, path, _operation) in enumerate(operations(document)):
        for body, kind in RAW[number % walker.sample :: walker.sample]:
            walker.send(method, url_of(path, values), body, kind)
    assert walker.sent > 300
    assert not walker.wrong


def test_fields_with_any_value(document: dict[str, Any], walk: tuple[Walker, dict[str, Any]]) -> None:
    walker, values = walk
    file = {"path": "config.json", "size": 1, "sha256": "0" * 64}
    known = {"model": values["model"], "version": 1, "config": {}, "slo": {}, "tenant": "nobody", "files": [file]}
    for number, (method, path, operation) in enumerate(operations(document)):
        schema = body_schema(document, operation)
        if not schema:
            continue
        body = sane(document, schema, "", known)
        for junk in VALUES[number % walker.sample :: walker.sample]:
            for variant in variants(body, junk):
                walker.send(method, url_of(path, values), json.dumps(variant).encode())
    assert walker.sent > 600
    assert not walker.wrong


def test_names_and_queries_with_any_text(document: dict[str, Any], walk: tuple[Walker, dict[str, Any]]) -> None:
    walker, values = walk
    for number, (method, path, operation) in enumerate(operations(document)):
        for where in operation.get("parameters", []):
            for text in TEXTS[number % 2 :: 2]:
                junk = quote(text, safe="", errors="surrogatepass")
                if where["in"] == "query":
                    walker.send(method, f"{url_of(path, values)}?{where['name']}={junk}")
                elif where["in"] == "path":
                    walker.send(method, url_of(path, {**values, where["name"]: text}))
    assert walker.sent > 300
    assert not walker.wrong


def test_methods_and_routes_that_do_not_exist(document: dict[str, Any], walk: tuple[Walker, dict[str, Any]]) -> None:
    walker, values = walk
    for path, methods in document["paths"].items():
        for method in ("HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "POST", "BREW"):
            if method.lower() not in methods:
                walker.send(method, url_of(path, values), b"{}")
    for path in ("/api/v1/", "/api/v1/nothing", "/api/v1/tenants/x/nothing", "/api/v1/me/", "/api/v2/me", "/api/"):
        walker.send("GET", path)
    assert not walker.wrong


def test_headers_with_any_text(document: dict[str, Any], walk: tuple[Walker, dict[str, Any]]) -> None:
    walker, values = walk
    names = ("IDEMPOTENCY_KEY", "X_REQUEST_ID", "ACCEPT_LANGUAGE", "USER_AGENT", "X_FORWARDED_FOR")
    for method, path, operation in operations(document):
        body = json.dumps(sane(document, body_schema(document, operation), "", {})).encode()
        for text in ("\x00", "\xff\xfe", "x" * 300):
            walker.send(method, url_of(path, values), body, **{f"HTTP_{name}": text for name in names})
            walker.send(method, url_of(path, values), body, HTTP_ACCEPT=text)
    assert not walker.wrong


@pytest.mark.parametrize("secret", ["mp_\x00", "mpu_aaaaaaaaaaaa_\xff", "mp_" + "a" * 5000])
def test_credentials_of_any_text(document: dict[str, Any], secret: str) -> None:
    _tenant, values = make_world()
    walker = Walker(APIClient(), sample=1)
    for method, path, _operation in operations(document):
        walker.send(method, url_of(path, {"tenant": "x", **values}), b"{}", HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert not walker.wrong
