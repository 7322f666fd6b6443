"""The REST reference: every call of the schema, under the policy of every page, for anybody."""

import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

pytestmark = pytest.mark.django_db


def test_every_call_of_the_schema_is_on_the_page() -> None:
    answer = Client().get("/api/docs")
    page = answer.content.decode()
    schema = SchemaGenerator().get_schema(request=None, public=True)
    calls = [path for path in schema["paths"] if path.startswith("/api/v1/")]
    assert len(calls) > 60
    assert [path for path in calls if f">{path}<" not in page] == []
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert "<script src" not in page.replace('<script type="module" src', "")
    assert "https://" not in page.partition("<main")[0]


def test_a_call_tells_its_fields_and_how_to_make_it() -> None:
    page = Client().get("/api/docs", {"q": "admin/prices/devices"}).content.decode()
    assert "per_hour" in page
    assert "-X PUT" in page
    assert "/rollouts" not in page.partition("<main")[2]
    assert "Nothing matches" in Client().get("/api/docs", {"q": "no such call"}).content.decode()
