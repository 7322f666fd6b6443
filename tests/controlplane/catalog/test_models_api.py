"""Models, versions and aliases over REST."""

import hashlib
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from catalog import storage
from catalog.models import Model
from kernel import scope
from ledger.models import AuditEvent
from tenants.models import Tenant
from tenants.roles import Role
from tests.build import catalog as build_catalog
from tests.build import controlplane as build

pytestmark = pytest.mark.django_db
DIGEST = hashlib.sha256(b"x").hexdigest()


@pytest.fixture
def tenant() -> Tenant:
    return build.make_tenant("acme")


@pytest.fixture
def client(tenant: Tenant) -> APIClient:
    return build.client_for(build.owner_of(tenant))


def _file(path: str = "model.safetensors", size: int = 1, sha256: str = DIGEST) -> dict[str, Any]:
    return {"path": path, "size": size, "sha256": sha256}


def _post(client: APIClient, address: str, body: Any = None, **headers: str) -> Any:
    return client.post(f"/api/v1/tenants/acme/{address}", body, format="json", **headers)


def test_a_model_is_made_once_per_name_ignoring_case(client: APIClient) -> None:
    made = _post(client, "models", {"name": "Llama", "description": "small"})
    assert made.status_code == 201, made.content
    assert made.json() | {"id": "", "created_at": ""} == {
        "id": "",
        "name": "Llama",
        "description": "small",
        "latest_version": None,
        "latest_ready_version": None,
        "aliases": [],
        "created_at": "",
    }
    again = _post(client, "models", {"name": "llama"})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    for address in ("llama", made.json()["id"]):
        assert client.get(f"/api/v1/tenants/acme/models/{address}").json()["name"] == "Llama"


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "0193e7a0-0000-7000-8000-000000000000", "x" * 64])
def test_a_bad_name_is_refused(client: APIClient, name: str) -> None:
    assert _post(client, "models", {"name": name}).status_code == 400


def test_a_repeated_post_with_its_key_makes_one_model(client: APIClient) -> None:
    first = _post(client, "models", {"name": "m"}, HTTP_IDEMPOTENCY_KEY="k")
    second = _post(client, "models", {"name": "m"}, HTTP_IDEMPOTENCY_KEY="k")
    assert first.json() == second.json()
    assert second.status_code == 201


def test_a_version_tells_what_it_waits_for(client: APIClient) -> None:
    _post(client, "models", {"name": "m"})
    made = _post(client, "models/m/versions", {"files": [_file(), _file("config.json", 2)], "description": "first"})
    assert made.status_code == 201, made.content
    version = made.json()
    assert (version["number"], version["state"], version["size_bytes"]) == (1, "uploading", 3)
    assert [(file["path"], file["state"], file["offset"], file["upload_url"]) for file in version["files"]] == [
        ("config.json", "waiting", 0, None),
        ("model.safetensors", "waiting", 0, None),
    ]
    early = _post(client, "models/m/versions/1/finalize")
    assert (early.status_code, early.json()["code"]) == (409, "files_missing")
    assert early.json()["data"] == {"missing": ["config.json", "model.safetensors"]}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param([_file("../x.json")], "UnsafePath", id="traversal"),
        pytest.param([_file("pytorch_model.bin")], "PickleRefused", id="pickle"),
        pytest.param([_file("a.zip")], "ArchiveRefused", id="archive"),
        pytest.param([_file("a.py")], "CodeRefused", id="code"),
        pytest.param([_file("a.xyz")], "UnexpectedFile", id="unknown"),
        pytest.param([_file("a.json"), _file("A.JSON")], "DuplicatePath", id="twice"),
    ],
)
def test_names_that_will_never_do_are_refused_before_a_byte_is_sent(
    client: APIClient, files: list[dict[str, Any]], reason: str
) -> None:
    _post(client, "models", {"name": "m"})
    refused = _post(client, "models/m/versions", {"files": files})
    assert (refused.status_code, refused.json()["code"]) == (400, "file_refused")
    assert refused.json()["data"]["reason"] == reason


@pytest.mark.parametrize(
    "files",
    [
        pytest.param([], id="none"),
        pytest.param([_file(size=-1)], id="a size below zero"),
        pytest.param([_file(size=10**15)], id="a size above the limit"),
        pytest.param([_file(sha256="A" * 64)], id="a digest in capitals"),
        pytest.param([_file(f"{number}.json") for number in range(1001)], id="too many"),
    ],
)
def test_impossible_declarations_are_refused(client: APIClient, files: list[dict[str, Any]]) -> None:
    _post(client, "models", {"name": "m"})
    assert _post(client, "models/m/versions", {"files": files}).status_code == 400


def test_declared_bytes_are_charged_to_the_tenant_and_come_back(
    client: APIClient, tenant: Tenant, monkeypatch: Any
) -> None:
    asked: list[tuple[str, int, int]] = []
    monkeypatch.setattr(storage, "_quota_checks", [])
    storage.register_quota(lambda who, more: asked.append((who.slug, storage.used_bytes(who), more)))
    _post(client, "models", {"name": "m"})
    _post(client, "models/m/versions", {"files": [_file(size=100)]})
    _post(client, "models/m/versions", {"files": [_file(size=50)]})
    assert asked == [("acme", 0, 100), ("acme", 100, 50)]
    assert storage.used_bytes(tenant) == 150
    assert client.delete("/api/v1/tenants/acme/models/m/versions/1").status_code == 204
    assert storage.used_bytes(tenant) == 50


def test_versions_are_numbered_and_no_number_comes_twice(client: APIClient) -> None:
    _post(client, "models", {"name": "m"})
    for want in (1, 2):
        assert _post(client, "models/m/versions", {"files": [_file()]}).json()["number"] == want
    client.delete("/api/v1/tenants/acme/models/m/versions/2")
    assert _post(client, "models/m/versions", {"files": [_file()]}).json()["number"] == 3
    listed = client.get("/api/v1/tenants/acme/models/m/versions").json()
    assert [version["number"] for version in listed["data"]] == [3, 1]


def test_aliases_move_between_ready_versions(client: APIClient, tenant: Tenant) -> None:
    model = build_catalog.make_model(tenant, "m")
    for _ in range(2):
        build_catalog.checked_version(tenant, model=model)
    address = "/api/v1/tenants/acme/models/m/aliases"
    assert client.put(f"{address}/champion", {"version": 1}, format="json").json()["version"] == 1
    assert client.put(f"{address}/champion", {"version": 2}, format="json").json()["version"] == 2
    assert [(row["alias"], row["version"]) for row in client.get(address).json()["data"]] == [("champion", 2)]
    assert client.get("/api/v1/tenants/acme/models/m/versions/2").json()["aliases"] == ["champion"]
    assert client.put(f"{address}/12", {"version": 1}, format="json").json()["code"] == "invalid_alias"
    assert client.put(f"{address}/champion", {"version": 9}, format="json").status_code == 404
    _post(client, "models/m/versions", {"files": [_file()]})
    assert client.put(f"{address}/champion", {"version": 3}, format="json").json()["code"] == "version_not_ready"
    assert client.delete(f"{address}/champion").status_code == 204
    assert client.delete(f"{address}/champion").status_code == 404
    moves = AuditEvent.objects.filter(action="alias.moved").order_by("id").values_list("data", flat=True)
    assert [(move["from"], move["to"]) for move in moves] == [(None, 1), (1, 2)]


def test_a_ready_version_is_archived_before_it_is_deleted(client: APIClient, tenant: Tenant) -> None:
    model = build_catalog.make_model(tenant, "m")
    build_catalog.checked_version(tenant, model=model)
    address = "/api/v1/tenants/acme/models/m/versions/1"
    assert client.delete(address).json()["code"] == "version_is_ready"
    assert client.post(f"{address}/archive").json()["state"] == "archived"
    assert client.post(f"{address}/archive").json()["code"] == "stale_transition"
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404


def test_a_rejected_version_says_why(client: APIClient, tenant: Tenant) -> None:
    model = build_catalog.make_model(tenant, "m")
    build_catalog.checked_version(tenant, build_catalog.huggingface(tokenizer__json=None), model=model)
    version = client.get("/api/v1/tenants/acme/models/m/versions/1").json()
    assert (version["state"], version["reason"]) == ("rejected", "MissingTokenizer")
    assert "Save the tokenizer" in version["message"]
    assert {file["state"] for file in version["files"]} == {"waiting"}
    assert storage.used_bytes(tenant) == 0
    assert _post(client, "models/m/versions/1/finalize").json()["code"] == "stale_transition"


def test_strangers_and_viewers(client: APIClient, tenant: Tenant) -> None:
    _post(client, "models", {"name": "m"})
    stranger = build.client_for(build.owner_of(build.make_tenant("other")))
    assert stranger.get("/api/v1/tenants/acme/models/m").json()["code"] == "tenant_not_found"
    assert stranger.get("/api/v1/tenants/other/models/m").json()["code"] == "model_not_found"
    with scope.all_tenants():
        model_id = Model.objects.get().id
    assert stranger.get(f"/api/v1/tenants/other/models/{model_id}").status_code == 404
    viewer = build.client_for(build.make_member(tenant, Role.VIEWER))
    assert viewer.get("/api/v1/tenants/acme/models").json()["data"][0]["name"] == "m"
    assert _post(viewer, "models", {"name": "n"}).status_code == 403
    assert viewer.delete("/api/v1/tenants/acme/models/m").status_code == 403


def test_an_api_key_of_scope_manage_publishes(tenant: Tenant) -> None:
    assert _post(build.key_client(tenant), "models", {"name": "m"}).status_code == 201
    assert _post(build.key_client(tenant, ["inference"]), "models", {"name": "n"}).status_code == 403


@pytest.mark.parametrize("count", [1, 6])
def test_lists_cost_the_same_queries_whatever_they_hold(
    client: APIClient, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    model = build_catalog.make_model(tenant, "m")
    for number in range(count):
        build_catalog.checked_version(tenant, model=model)
        build_catalog.make_model(tenant, f"m{number}")
    client.put("/api/v1/tenants/acme/models/m/aliases/best", {"version": 1}, format="json")
    client.get("/api/v1/tenants/acme/models")
    with django_assert_num_queries(QUERIES["models"]):
        client.get("/api/v1/tenants/acme/models")
    with django_assert_num_queries(QUERIES["versions"]):
        client.get("/api/v1/tenants/acme/models/m/versions")
    with django_assert_num_queries(QUERIES["version"]):
        client.get("/api/v1/tenants/acme/models/m/versions/1")
    with django_assert_num_queries(QUERIES["aliases"]):
        client.get("/api/v1/tenants/acme/models/m/aliases")


# Five of each are sign-in and tenant.
QUERIES = {"models": 7, "versions": 10, "version": 11, "aliases": 7}
