"""The REST reference, drawn by us from the schema: no scripts of others, the same policy as every page."""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator

_METHODS = ("get", "post", "put", "patch", "delete")
_DEPTH = 4
_MOST_FIELDS = 60


class Field(NamedTuple):
    """A parameter, or a field of a body. ``where`` is path, query, header or body."""

    name: str
    where: str
    kind: str
    is_required: bool
    text: str


class Operation(NamedTuple):
    """One call."""

    ident: str
    method: str
    path: str
    summary: str
    text: str
    fields: list[Field]
    answers: list[tuple[str, str]]
    sample: str


class Group(NamedTuple):
    """Calls about one thing, by the first word of their path below the tenant."""

    name: str
    operations: list[Operation]


def index(request: HttpRequest) -> HttpResponse:
    """Every call, by what it is about; for anybody, as the schema is."""
    wanted = request.GET.get("q", "").strip().lower()
    groups = _groups()
    if wanted:
        groups = [
            Group(group.name, found)
            for group in groups
            if (
                found := [one for one in group.operations if wanted in f"{one.method} {one.path} {one.summary}".lower()]
            )
        ]
    context = {"groups": groups, "wanted": wanted, "count": sum(len(group.operations) for group in groups)}
    return render(request, "console/pages/reference.html", context)


@functools.cache
def _groups() -> list[Group]:
    schema: Mapping[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    found: dict[str, list[Operation]] = {}
    for path, item in schema["paths"].items():
        if path.startswith("/api/v1/"):
            for method in _METHODS:
                if method in item:
                    one = _operation(schema, path, method, item[method])
                    found.setdefault(_about(path), []).append(one)
    return [Group(name, found[name]) for name in sorted(found)]


def _about(path: str) -> str:
    words = [word for word in path.removeprefix("/api/v1/").split("/") if word]
    if words[0] == "tenants" and len(words) > 2:
        words = words[2:]
    elif words[0] == "admin" and len(words) > 1:
        return f"admin: {words[1]}"
    return words[0]


def _operation(schema: Mapping[str, Any], path: str, method: str, given: Mapping[str, Any]) -> Operation:
    parameters = [
        Field(
            one["name"], one["in"], _kind(schema, one.get("schema", {})), bool(one.get("required")),
            one.get("description", ""),
        )
        for one in given.get("parameters", [])
    ]  # fmt: skip
    content = given.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {}).get("schema")
    fields = list(_fields(schema, body)) if body else []
    answers = [(code, answer.get("description", "")) for code, answer in given.get("responses", {}).items()]
    first, _, rest = given.get("description", "").partition("\n")
    summary = given.get("summary") or first or given.get("operationId", "")
    return Operation(
        given.get("operationId", ""), method.upper(), path, summary,
        rest.strip() if summary == first else given.get("description", ""), parameters + fields, answers,
        _sample(path, method, fields),
    )  # fmt: skip


def _resolved(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_DEPTH):
        if "$ref" in shape:
            shape = schema["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
        elif len(shape.get("allOf", [])) == 1:
            shape = shape["allOf"][0]
        else:
            break
    return shape


def _fields(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> Iterator[Field]:
    whole = _resolved(schema, shape)
    required = whole.get("required", [])
    for name, one in list(whole.get("properties", {}).items())[:_MOST_FIELDS]:
        if not one.get("readOnly"):
            yield Field(name, "body", _kind(schema, one), name in required, one.get("description", ""))


def _kind(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    whole = _resolved(schema, shape)
    if "enum" in whole:
        return " | ".join(str(value) for value in whole["enum"][:12])
    if whole.get("type") == "array":
        return f"[{_kind(schema, whole.get('items', {}))}]"
    return str(whole.get("format") or whole.get("type") or "value")


def _sample(path: str, method: str, fields: list[Field]) -> str:
    lines = [f"curl {settings.PUBLIC_URL}{path}", '  -H "Authorization: Bearer $MILLPOND_TOKEN"']
    if method != "get":
        lines.insert(1, f"  -X {method.upper()}")
    wanted = {field.name: f"<{field.kind}>" for field in fields if field.is_required}
    if wanted:
        lines += ['  -H "Content-Type: application/json"', f"  -d '{json.dumps(wanted)}'"]
    return " \\\n".join(lines)
