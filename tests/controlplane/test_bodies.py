"""Bodies with names that nobody knows, and the titles of what a caller got wrong about a route."""

import inspect
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator
from rest_framework import exceptions

from kernel.api import problems
from kernel.api.bodies import MAX_NAMED
from rollouts.api.serializers import WishIn
from tests.build.controlplane import client_for, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db


def closed(schemas: dict[str, Any], schema: dict[str, Any]) -> bool:
    """True when ``schema`` takes only what it names; objects of any names say what their values are."""
    if "$ref" in schema:
        return closed(schemas, schemas[schema["$ref"].rpartition("/")[2]])
    if "allOf" in schema:
        return all(closed(schemas, each) for each in schema["allOf"])
    if schema.get("type") == "array":
        return closed(schemas, schema["items"])
    if "properties" not in schema:
        return True
    inner = all(closed(schemas, each) for each in schema["properties"].values())
    return schema.get("additionalProperties") is False and inner


def test_every_body_of_the_document_takes_only_what_it_names() -> None:
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]
    document: dict[str, Any] = generator.get_schema(request=None, public=True)
    bodies = {
        f"{method} {path}": operation["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert len(bodies) > 30
    assert [name for name, schema in bodies.items() if not closed(document["components"]["schemas"], schema)] == []


def test_a_misspelt_field_is_refused_with_the_nearest() -> None:
    admin = client_for(make_user(admin=True))
    admin.put("/api/v1/admin/quota-groups/lab", {"gpu_millis": 4000}, format="json")
    answer = admin.put("/api/v1/admin/quota-groups/lab", {"gpu_milis": 2000, "replicas": 3}, format="json")
    assert answer.status_code == 400
    problem = answer.json()
    assert (problem["code"], problem["title"]) == ("invalid_input", "Invalid input")
    assert problem["data"]["errors"] == [
        {"field": "gpu_milis", "message": 'There is no such field. Did you mean "gpu_millis"?'}
    ]
    items = {item["quota"]: item["limit"] for item in admin.get("/api/v1/admin/quota-groups/lab").json()["items"]}
    assert (items["gpu_millis"], items["replicas"]) == (4000, -1)


def test_one_that_is_near_to_none_is_refused_with_all_and_beside_what_else_is_wrong() -> None:
    admin = client_for(make_user(admin=True))
    answer = admin.post("/api/v1/tenants", {"colour": "blue"}, format="json")
    assert answer.status_code == 400
    assert {row["field"]: row["message"] for row in answer.json()["data"]["errors"]} == {
        "slug": "This field is required.",
        "colour": "There is no such field. Known: slug, name, owner_email.",
    }


def test_inner_objects_are_read_as_strictly() -> None:
    tenant = make_tenant()
    answer = client_for(owner_of(tenant)).post(
        f"/api/v1/tenants/{tenant.slug}/models/pond/versions",
        {"files": [{"path": "config.json", "size": 1, "sha256": "0" * 64, "sha": ""}]},
        format="json",
    )
    assert "files.0.sha: There is no such field" in answer.json()["detail"]
    body = WishIn(data={"model": "pond", "version": "1", "tolerance": {"slowr": 0.5}})
    assert not body.is_valid()
    assert body.errors["tolerance"] == {"slowr": ['There is no such field. Did you mean "slower"?']}


def test_very_many_and_very_long_names_make_a_short_answer() -> None:
    admin = client_for(make_user(admin=True))
    body = {f"{number}{'x' * 5000}": 1 for number in range(200)}
    answer = admin.put("/api/v1/admin/quota-groups/lab", body, format="json")
    assert answer.status_code == 400
    assert len(answer.json()["data"]["errors"]) == MAX_NAMED
    assert len(answer.content) < 4000


@pytest.mark.parametrize(
    ("method", "kind", "status", "title"),
    [
        ("BREW", "application/json", 405, "Method not allowed"),
        ("POST", "text/csv", 415, "Unsupported media type"),
    ],
)
def test_titles_are_the_same_for_every_case(method: str, kind: str, status: int, title: str) -> None:
    admin = client_for(make_user(admin=True))
    problem = admin.generic(method, "/api/v1/tenants", b"a,b", content_type=kind).json()  # type: ignore[attr-defined]
    assert (problem["status"], problem["title"]) == (status, title)
    assert "{" not in problem["detail"]
    assert (method if status == 405 else kind) in problem["detail"]


def test_no_error_of_the_framework_has_a_template_for_a_title() -> None:
    kinds = [kind for _name, kind in inspect.getmembers(exceptions, inspect.isclass)]
    raised = [kind for kind in kinds if issubclass(kind, exceptions.APIException)]
    assert len(raised) > 8
    for kind in raised:
        made = kind("X") if kind in (exceptions.MethodNotAllowed, exceptions.UnsupportedMediaType) else kind()
        answer = problems.handle(made, {})
        assert answer is not None
        assert "{" not in answer.data["title"], kind
        assert answer.data["title"]
