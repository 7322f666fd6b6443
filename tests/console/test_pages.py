"""Pages by Django's client: who may see and do what, what is refused, and how errors look."""

import json
import re
from typing import Any

import pytest
from django.test import Client

from kernel import clock, scope
from serving.services import deploy_version
from tenants import services
from tenants.models import ApiKey, Member, Tenant, User
from tenants.roles import Role
from tests.build import catalog, onnx
from tests.build.controlplane import PASSWORD, actor_for, make_member, make_tenant, make_user, owner_of
from tests.build.rollouts import Story

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("harbor", name="Harbor Support")


def signed_in(user: User, **headers: str) -> Client:
    client = Client(headers=headers)
    client.force_login(user, backend="allauth.account.auth_backends.AuthenticationBackend")
    return client


def test_signing_in_needs_the_right_password(tenant: Tenant) -> None:
    user = owner_of(tenant)
    client = Client()
    wrong = client.post("/accounts/login/", {"login": user.email, "password": "wrong"})
    assert wrong.status_code == 200
    assert "_auth_user_id" not in client.session
    right = client.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert right.status_code == 302
    assert client.get("/").headers["Location"] == "/t/harbor/"


def test_guessing_passwords_is_slowed_down(tenant: Tenant, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    client = Client()
    answers = [
        client.post("/accounts/login/", {"login": "nobody@example.org", "password": f"guess {n}"}) for n in range(12)
    ]
    assert any(answer.status_code == 429 or b"Too many" in answer.content for answer in answers)


def test_pages_send_a_strict_policy_and_no_inline_style(tenant: Tenant) -> None:
    page = signed_in(owner_of(tenant)).get("/t/harbor/")
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'self'" in policy
    assert b" style=" not in page.content
    assert not re.search(rb"<script(?![^>]*(src=|application/json))", page.content)


def test_a_foreign_tenant_is_not_found_and_says_nothing(tenant: Tenant) -> None:
    answer = signed_in(make_user()).get("/t/harbor/keys/")
    assert answer.status_code == 404
    assert b"Harbor" not in answer.content


def test_a_page_of_the_platform_is_forbidden_to_others(tenant: Tenant) -> None:
    assert signed_in(owner_of(tenant)).get("/platform/nodes/").status_code == 403
    assert signed_in(make_user(admin=True)).get("/platform/nodes/").status_code == 200


def test_forms_without_a_token_change_nothing(tenant: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner_of(tenant), backend="allauth.account.auth_backends.AuthenticationBackend")
    answer = client.post("/t/harbor/keys/new/", {"name": "x", "scopes": ["inference"]})
    assert answer.status_code == 403
    with scope.tenant(tenant.id):
        assert not ApiKey.objects.exists()


def test_a_key_is_in_the_answer_to_its_own_request_and_nowhere_else(tenant: Tenant) -> None:
    client = signed_in(owner_of(tenant))
    answer = client.post("/t/harbor/keys/new/", {"name": "ci", "scopes": ["inference"], "expires": "30"})
    found = re.search(r"mp_[a-z0-9]{12}_[A-Za-z0-9_-]{43}", answer.content.decode())
    assert found
    assert "no-store" in answer.headers["Cache-Control"]
    assert found.group() not in client.get("/t/harbor/keys/").content.decode()
    with scope.tenant(tenant.id):
        key = ApiKey.objects.get(name="ci")
    assert key.digest == services.digest_of(found.group())
    assert key.expires_at is not None


@pytest.mark.parametrize(("role", "status"), [(Role.VIEWER, 403), (Role.DEVELOPER, 200)])
def test_making_a_key_needs_the_role(tenant: Tenant, role: Role, status: int) -> None:
    client = signed_in(make_member(tenant, role))
    assert client.get("/t/harbor/keys/new/").status_code == status


def test_the_last_owner_cannot_leave(tenant: Tenant) -> None:
    owner = owner_of(tenant)
    with scope.tenant(tenant.id):
        member = Member.objects.get(user=owner)
    client = signed_in(owner)
    answer = client.post(f"/t/harbor/members/{member.id}/remove/", headers={"HX-Request": "true"})
    assert answer.status_code == 409
    assert json.loads(answer.headers["HX-Trigger"])["toast"]["code"] == "last_owner"
    with scope.tenant(tenant.id):
        assert Member.objects.filter(user=owner).exists()


def test_a_refusal_names_the_role_that_could_and_is_said_in_both_languages(tenant: Tenant) -> None:
    viewer = make_member(tenant, Role.VIEWER)
    english = signed_in(viewer).get("/t/harbor/members/add/")
    chinese = signed_in(viewer, **{"Accept-Language": "zh-Hans"}).get("/t/harbor/members/add/")
    assert english.status_code == chinese.status_code == 403
    assert "role admin" in english.content.decode()
    assert "没有权限" in chinese.content.decode()


def test_htmx_gets_only_the_live_part(tenant: Tenant) -> None:
    client = signed_in(owner_of(tenant))
    part = client.get("/t/harbor/keys/", headers={"HX-Request": "true", "HX-Target": "live"}).content.decode()
    assert part.lstrip().startswith('<div id="live"')
    assert "<html" not in part
    assert 'id="side-foot"' in part


def test_somebody_signed_out_is_led_to_the_login_by_htmx_too(tenant: Tenant) -> None:
    answer = Client().get("/t/harbor/keys/", headers={"HX-Request": "true"})
    assert answer.headers["HX-Redirect"].startswith("/accounts/login/")


def test_preferences_go_back_to_the_page_but_never_to_another_site(tenant: Tenant) -> None:
    client = signed_in(owner_of(tenant))
    back = client.post("/accounts/preferences/", {"language": "zh-hans", "next": "/t/harbor/models/?q=a"})
    assert back.headers["Location"] == "/t/harbor/models/?q=a"
    assert client.cookies["django_language"].value == "zh-hans"
    away = client.post("/accounts/preferences/", {"theme": "dark", "next": "https://evil.example/"})
    assert away.headers["Location"] == "/"
    user = User.objects.get(id=owner_of(tenant).id)
    assert (user.language, user.theme) == ("zh-hans", "dark")


def test_a_playground_key_lives_for_minutes_and_is_not_listed(tenant: Tenant) -> None:
    client = signed_in(owner_of(tenant))
    answer = client.post("/t/harbor/playground/key/")
    assert answer.json()["key"].startswith("mp_")
    assert "no-store" in answer.headers["Cache-Control"]
    assert b"No keys yet" in client.get("/t/harbor/keys/").content
    assert signed_in(make_member(tenant, Role.VIEWER)).post("/t/harbor/playground/key/").status_code == 403


def test_revisions_of_an_endpoint_are_offered_to_who_may_deploy(tenant: Tenant) -> None:
    owner = owner_of(tenant)
    story = Story(tenant, actor_for(owner), endpoint="chat", model="tiny", start=clock.now())
    alone = signed_in(owner).get("/t/harbor/playground/").content.decode()
    assert "chat@" not in alone  # one revision is what every call gets
    deploy_version(
        actor=actor_for(owner), tenant=tenant, endpoint_name="chat", model="tiny", version=2, config={}, replicas=1,
        weight=0,
    )  # fmt: skip
    waits = signed_in(owner).get("/t/harbor/playground/?model=chat@r1&with=chat@r2").content.decode()
    assert re.search(r'value="chat@r1"[^>]* selected>chat, r1 \(v1, 100.%\)', waits)
    assert re.search(r'value="chat@r2"[^>]* disabled>chat, r2 \(v2, no share\) \(does not serve\)', waits)
    story.make_ready()
    page = signed_in(owner).get("/t/harbor/playground/?model=chat@r1&with=chat@r2").content.decode()
    assert re.search(r'value="chat@r2" data-name="chat" data-revision="r2" selected', page)


def test_a_rejected_version_says_why_and_an_unfinished_one_what_is_missing(tenant: Tenant) -> None:
    owner = owner_of(tenant)
    model = catalog.make_model(tenant, "broken")
    catalog.checked_version(tenant, catalog.huggingface(tokenizer__json=None), model=model)
    client = signed_in(owner)
    page = client.get("/t/harbor/models/broken/versions/1/").content.decode()
    assert "MissingTokenizer" in page
    from catalog import services as verbs

    files = [verbs.DeclaredFile(path="model.gguf", size=10, sha256="0" * 64)]
    verbs.create_version(actor=actor_for(owner), tenant=tenant, model=model, files=files)
    page = client.get("/t/harbor/models/broken/versions/2/").content.decode()
    data = json.loads(re.search(r'id="upload-data"[^>]*>(.*?)</script>', page).group(1))  # type: ignore[union-attr]
    assert data["files"] == [
        {"path": "model.gguf", "size": 10, "sha256": "0" * 64, "verified": False, "offset": 0, "url": None}
    ]


def test_a_graph_shows_inputs_and_outputs_and_that_nothing_runs_it(tenant: Tenant) -> None:
    catalog.checked_version(tenant, {"m.onnx": onnx.model()}, model=catalog.make_model(tenant, "sight"))
    client = signed_in(owner_of(tenant))
    page = client.get("/t/harbor/models/sight/versions/1/").content.decode()
    assert "No engine here runs ONNX models." in page
    assert re.search(r"<td[^>]*>x</td><td>input</td><td[^>]*>FP32</td><td[^>]*>\[batch, 4\]</td>", page)
    assert "Where would it fit?" in page
    assert "<dt>Operator sets</dt><dd>ai.onnx 21</dd>" in page
    client.cookies["django_language"] = "zh-hans"
    chinese = client.get("/t/harbor/models/sight/versions/1/").content.decode()
    for raw in ("ir_version", "operator_sets", "producer", "<dt>nodes", "<dt>title"):
        assert raw not in chinese
    assert "<dt>算子集</dt><dd>ai.onnx 21</dd>" in chinese
    del client.cookies["django_language"]
    assert "KV cache, at least" not in page
    assert "Context length" not in page
    body = {
        "version": "sight:1", "endpoint": "sight", "replicas": "1", "weight": "100", "dtype": "float32",
        "max_num_seqs": "32", "max_num_batched_tokens": "512",
    }  # fmt: skip
    answer = client.post("/t/harbor/deployments/new/fit/", body).content.decode()
    assert "No engine here runs ONNX models." in answer
    assert "You can deploy anyway" not in answer
    refused = client.post("/t/harbor/deployments/new/", body)
    assert refused.status_code == 422
    assert "(no_engine)" in refused.content.decode()


def test_the_newest_version_that_can_be_deployed_is_chosen_first(tenant: Tenant) -> None:
    def chosen(query: str = "") -> list[str]:
        page = client.get(f"/t/harbor/deployments/new/{query}").content.decode()
        return re.findall(r'<option value="([^"]+:\d+)" selected>', page)

    client, nothing = signed_in(owner_of(tenant)), "No engine here runs any of these versions"
    sight = catalog.make_model(tenant, "sight")
    catalog.checked_version(tenant, {"m.onnx": onnx.model()}, model=sight)
    assert chosen() == ["sight:1"]
    page = client.get("/t/harbor/deployments/new/").content.decode()
    assert nothing in page
    assert 'type="submit"' not in page.partition('id="deploy-form"')[2].partition("</form>")[0]
    tiny = catalog.make_model(tenant, "tiny")
    catalog.checked_version(tenant, model=tiny)
    catalog.checked_version(tenant, {"m.onnx": onnx.model()}, model=tiny)
    catalog.checked_version(tenant, {"m.onnx": onnx.model()}, model=sight)
    page = client.get("/t/harbor/deployments/new/").content.decode()
    assert nothing not in page
    assert ">sight v2 (no engine)<" in page
    assert chosen() == chosen("?model=tiny") == ["tiny:1"]
    assert chosen("?model=sight") == ["sight:2"]
    assert chosen("?model=tiny&version=2") == ["tiny:2"], "what is asked for is shown, where it would fit"


def test_the_fit_check_refuses_with_a_reason_per_device(tenant: Tenant) -> None:
    version = catalog.checked_version(tenant, model=catalog.make_model(tenant, "tiny"))
    client = signed_in(owner_of(tenant))
    body = {
        "version": f"tiny:{version.number}", "endpoint": "chat", "replicas": "1", "weight": "100", "dtype": "float32",
        "max_num_seqs": "32", "max_num_batched_tokens": "512",
    }  # fmt: skip
    answer = client.post("/t/harbor/deployments/new/fit/", body).content.decode()
    assert "No device has joined yet" in answer
    assert "millpond deploy tiny:1" in answer
    wrong = client.post("/t/harbor/deployments/new/fit/", {**body, "replicas": "65"}).content.decode()
    assert "At most 64." in wrong


@pytest.mark.parametrize("path", ["deployments/00000000-0000-0000-0000-000000000000/", "models/none/", "nothing/"])
def test_what_is_not_there_is_a_page_that_says_so(tenant: Tenant, path: str) -> None:
    assert signed_in(owner_of(tenant)).get(f"/t/harbor/{path}").status_code == 404


def test_every_page_stands_without_any_data(tenant: Tenant) -> None:
    client = signed_in(make_user(admin=True))
    for path in ("", "models/", "models/upload/", "deployments/", "deployments/new/", "playground/", "usage/",
                 "usage/?by=caller&days=90", "keys/", "members/", "audit/", "settings/"):  # fmt: skip
        assert client.get(f"/t/harbor/{path}").status_code == 200, path
    for path in ("", "devices/", "nodes/", "tenants/", "audit/", "system/"):
        assert client.get(f"/platform/{path}").status_code == 200, path
    assert client.get("/accounts/settings/").status_code == 200


def test_a_tenant_and_a_join_token_are_made_by_platform_admins(tenant: Tenant) -> None:
    client = signed_in(make_user(admin=True))
    client.post("/platform/tenants/new/", {"slug": "lantern", "name": "Lantern", "owner": owner_of(tenant).email})
    assert Tenant.objects.filter(slug="lantern").exists()
    taken = client.post("/platform/tenants/new/", {"slug": "lantern", "name": "Again"})
    assert taken.status_code == 422
    made = client.post("/platform/nodes/join/", {"kind": "node", "name": "rack-1"}).content.decode()
    assert re.search(r"mpj_[a-z0-9]{12}_[A-Za-z0-9_-]{43}", made)
    assert "python -m runtime.agent" in made


def test_the_settings_name_each_quota_and_what_devices_cost(tenant: Tenant) -> None:
    page = signed_in(owner_of(tenant)).get("/t/harbor/settings/").content.decode()
    rows = re.findall(r'<td class="strong full">([^<]+)</td>', page)
    assert [name for name in rows if name in ("GPUs", "HBM", "Replicas", "Storage")] == [
        "GPUs", "HBM", "Replicas", "Storage"
    ]  # fmt: skip


def test_a_configuration_is_compared_with_the_others_behind_its_endpoint(tenant: Tenant) -> None:
    actor = actor_for(owner_of(tenant))
    version = catalog.checked_version(tenant, model=catalog.make_model(tenant, "tiny"))
    made = [
        deploy_version(
            actor=actor, tenant=tenant, endpoint_name="chat", model="tiny", version=version.number, config=config,
            replicas=1,
        )
        for config in ({}, {"max_num_seqs": 48})
    ]  # fmt: skip
    page = signed_in(owner_of(tenant)).get(f"/t/harbor/deployments/{made[1].id}/configuration/").content.decode()
    table = page[page.index("Compared with the others") :]
    assert re.search(r"max_num_seqs</td><td[^>]*>32</td><td[^>]*>48<", table)
