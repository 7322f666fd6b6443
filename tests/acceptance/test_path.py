"""The path that people walk, on a tiny model made on the spot: upload, deploy, call, grant, revoke, break, heal, bill.

The tests of this module run in order on one platform; each leaves it serving.
"""

import datetime
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.acceptance.conftest import Stack, eventually
from tests.build.models import tiny_gguf, tiny_llama

pytestmark = pytest.mark.engine

MESSAGES: list[Any] = [{"role": "user", "content": "the water turns"}]


def deployment(stack: Stack, name: str = "tiny") -> dict[str, Any]:
    rows = stack.rest(stack.credentials["manage_key"]).get("/tenants/demo/deployments").json()["data"]
    found = next(row for row in rows if row["endpoint"] == name)
    answer = stack.rest(stack.credentials["manage_key"]).get(f"/tenants/demo/deployments/{found['id']}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def ready(stack: Stack, count: int = 1, name: str = "tiny") -> dict[str, Any]:
    def check() -> dict[str, Any] | None:
        found = deployment(stack, name)
        alive = [row for row in found["replicas"] if row["state"] not in ("stopped",)]
        return found if found["ready_replicas"] == count and len(alive) == count else None

    result: dict[str, Any] = eventually(check, f"{count} ready replicas of {name}")
    return result


def answers(stack: Stack, key: str | None = None, model: str = "tiny") -> bool:
    try:
        stack.openai(key).completions.create(model=model, prompt="the", max_tokens=2)
    except openai.APIError:
        return False
    return True


def usage(stack: Stack, secret: str, tenant: str = "demo") -> dict[str, int]:
    totals: dict[str, int] = stack.rest(secret).get(f"/tenants/{tenant}/usage").json()["totals"]
    return totals


@pytest.fixture(scope="module")
def second(stack: Stack) -> dict[str, str]:
    """A second tenant with keys of its own."""
    admin = stack.admin()
    body = {"slug": "second", "name": "Second", "owner_email": stack.credentials["admin_email"]}
    assert admin.post("/tenants", json=body).status_code == 201
    keys = {}
    for scope in ("inference", "manage"):
        answer = admin.post("/tenants/second/keys", json={"name": scope, "scopes": [scope]})
        assert answer.status_code == 201, answer.text
        keys[scope] = answer.json()["key"]
    return keys


def test_a_model_is_uploaded_and_deployed_from_the_command_line(stack: Stack, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "tiny")
    said = stack.cli("--tenant", "demo", "upload", str(tmp_path / "tiny"), "--model", "tiny")
    assert "ready" in said
    fit = stack.rest(stack.credentials["manage_key"]).post(
        "/tenants/demo/fit", json={"model": "tiny", "version": 1, "replicas": 1, "config": {}}
    )
    assert fit.json()["fits"], fit.text
    stack.cli("--tenant", "demo", "deploy", "tiny", "--endpoint", "tiny", "--wait")
    ready(stack)
    ledger = eventually(lambda: deployment(stack)["replicas"][0]["ledger"], "the memory ledger is reported", 20)
    assert ledger["weights_bytes"] > 0
    assert ledger["kv_total_bytes"] > 0


def test_the_official_client_lists_completes_chats_and_streams(stack: Stack) -> None:
    client = stack.openai()
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.completions.create(model="tiny", prompt="the water", max_tokens=8, temperature=0)
    assert (whole.usage and whole.usage.completion_tokens == 8) or whole.choices[0].finish_reason == "stop"
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0)
    assert chat.choices[0].finish_reason in ("length", "stop")
    events = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == (chat.choices[0].message.content or "")
    usages = [event.usage for event in events if event.usage]
    assert chat.usage
    assert [(one.prompt_tokens, one.completion_tokens) for one in usages] == [
        (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    ]


def test_a_gguf_file_is_served_too(stack: Stack, tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "small.gguf")
    stack.cli("--tenant", "demo", "upload", str(tmp_path / "small.gguf"), "--model", "small")
    stack.cli("--tenant", "demo", "deploy", "small", "--endpoint", "small", "--wait")
    assert answers(stack, model="small")
    found = ready(stack, name="small")
    client = stack.rest(stack.credentials["manage_key"])
    assert client.delete(f"/tenants/demo/deployments/{found['id']}").status_code in (202, 204)

    def gone() -> bool:
        rows = client.get("/tenants/demo/deployments").json()["data"]
        return found["id"] not in [row["id"] for row in rows] and len(stack.engines()) == 1

    eventually(gone, "the deployment and its engine are gone")
    with pytest.raises(openai.APIStatusError) as caught:
        stack.openai().completions.create(model="small", prompt="x", max_tokens=1)
    assert caught.value.status_code in (404, 503)


def test_a_wrong_key_is_401_in_the_clients_own_words(stack: Stack) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        stack.openai("mp_aaaaaaaaaaaa_" + "a" * 43).models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_foreign_endpoint_is_404_until_it_is_granted_and_the_caller_pays(
    stack: Stack, second: dict[str, str]
) -> None:
    theirs = second["inference"]
    eventually(lambda: _code(stack, theirs, "demo/tiny") == 404, "the new key is known to the gateway", 20)
    assert _code(stack, theirs, "tiny") == 404
    mine = stack.rest(stack.credentials["manage_key"])
    granted = mine.post("/tenants/demo/endpoints/tiny/grants", json={"tenant": "second"})
    assert granted.status_code == 201, granted.text
    eventually(lambda: answers(stack, theirs, "demo/tiny"), "the grant is known to the gateway", 20)
    assert [model.id for model in stack.openai(theirs).models.list()] == ["demo/tiny"]

    def paid() -> bool:
        return usage(stack, second["manage"], "second")["completion_tokens"] > 0

    eventually(paid, "the caller's usage is booked", 30)
    assert mine.delete(f"/tenants/demo/endpoints/tiny/grants/{granted.json()['id']}").status_code == 204
    eventually(lambda: _code(stack, theirs, "demo/tiny") == 404, "the grant is gone", 20)


def _code(stack: Stack, key: str, model: str) -> int:
    try:
        stack.openai(key).completions.create(model=model, prompt="x", max_tokens=1)
    except openai.APIStatusError as error:
        return error.status_code
    return 200


def test_a_revoked_key_is_refused(stack: Stack) -> None:
    client = stack.rest(stack.credentials["manage_key"])
    made = client.post("/tenants/demo/keys", json={"name": "short-lived"}).json()
    eventually(lambda: answers(stack, made["key"]), "the key works", 20)
    client.post(f"/tenants/demo/keys/{made['id']}/revoke")
    eventually(lambda: _code(stack, made["key"], "tiny") == 401, "the key is refused", 20)


def test_a_key_may_be_limited_to_endpoints(stack: Stack) -> None:
    client = stack.rest(stack.credentials["manage_key"])
    keys = {
        name: client.post("/tenants/demo/keys", json={"name": name, "allowed_endpoints": [name]}).json()["key"]
        for name in ("tiny", "elsewhere")
    }
    eventually(lambda: answers(stack, keys["tiny"]), "the key for this endpoint works", 20)
    eventually(lambda: _code(stack, keys["elsewhere"], "tiny") != 401, "the other key is known, too", 20)
    assert _code(stack, keys["elsewhere"], "tiny") == 403


def test_usage_is_what_the_engine_counted_once(stack: Stack) -> None:
    client = stack.rest(stack.credentials["manage_key"])
    made = client.post("/tenants/demo/keys", json={"name": "metered"}).json()
    spent: list[Any] = []

    def call(tokens: int) -> bool:
        try:
            answer = stack.openai(made["key"]).completions.create(model="tiny", prompt="the wheel", max_tokens=tokens)
        except openai.AuthenticationError:
            return False
        spent.append(answer.usage)
        return True

    eventually(lambda: call(1), "the key works", 20)
    assert call(3)
    assert call(5)
    want = {
        "prompt_tokens": sum(one.prompt_tokens for one in spent),
        "completion_tokens": sum(one.completion_tokens for one in spent),
    }
    eventually(lambda: _key_usage(client, made["id"]) == want, f"exactly {want} is booked", 30)


def _key_usage(client: Any, key_id: str) -> dict[str, int]:
    rows = client.get("/tenants/demo/usage", params={"group_by": "key"}).json()["rows"]
    found = [row for row in rows if key_id in json.dumps(row)]
    return {name: sum(row[name] for row in found) for name in ("prompt_tokens", "completion_tokens")}


def test_a_killed_engine_comes_back_and_no_stream_is_forged(stack: Stack) -> None:
    stream = stack.openai().completions.create(
        model="tiny", prompt="a", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    victim = stack.engines()[0]
    victim.kill()
    finishes: list[str | None] = []
    with pytest.raises(openai.APIError) as cut:
        for event in stream:
            finishes += [choice.finish_reason for choice in event.choices]
    assert not isinstance(cut.value, openai.APIConnectionError)  # said in the stream, not a torn connection
    assert not any(finishes)
    eventually(lambda: answers(stack), "an engine serves again")
    assert [engine.pid for engine in stack.engines()] != [victim.pid]
    assert len(stack.engines()) == 1


def test_a_killed_agent_adopts_its_engines(stack: Stack) -> None:
    ready(stack)
    engine = stack.engines()[0].pid
    agent = stack.pid_of("agent")
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: stack.pid_of("agent") not in (agent, 0), "the agent runs again", 60)
    assert answers(stack)
    time_of_report = time.time()

    def reported() -> bool:
        node = stack.admin().get("/nodes").json()["data"][0]
        return node["state"] == "ready" and _seen_after(node, time_of_report)

    eventually(reported, "the agent reports again", 60)
    assert [process.pid for process in stack.engines()] == [engine]
    ready(stack)


def _seen_after(node: dict[str, Any], moment: float) -> bool:
    seen = datetime.datetime.fromisoformat(node["last_seen_at"].replace("Z", "+00:00"))
    return seen.timestamp() > moment


def test_scaling_up_and_down_drains(stack: Stack) -> None:
    client = stack.rest(stack.credentials["manage_key"])
    found = deployment(stack)
    assert client.patch(f"/tenants/demo/deployments/{found['id']}", json={"replicas": 2}).status_code == 200
    ready(stack, 2)
    assert len(stack.engines()) == 2
    client.patch(f"/tenants/demo/deployments/{found['id']}", json={"replicas": 1})
    ready(stack, 1)
    eventually(lambda: len(stack.engines()) == 1, "the surplus engine has ended", 60)
    assert answers(stack)


def test_inference_goes_on_while_the_control_plane_is_gone(stack: Stack) -> None:
    frozen = [stack.pid_of(name) for name in ("web", "worker", "postgres")]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert all(answers(stack) for _ in range(5))
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    ready(stack)


def test_stopped_and_started_again(stack: Stack) -> None:
    client = stack.rest(stack.credentials["manage_key"])
    found = deployment(stack)
    client.post(f"/tenants/demo/deployments/{found['id']}/stop")
    eventually(lambda: not stack.engines(), "the engine has ended", 60)
    with pytest.raises(openai.APIStatusError) as caught:
        stack.openai().completions.create(model="tiny", prompt="x", max_tokens=1)
    assert caught.value.status_code == 503
    client.post(f"/tenants/demo/deployments/{found['id']}/start")
    ready(stack)
    eventually(lambda: answers(stack), "it serves again", 30)


def test_no_secret_is_in_any_log(stack: Stack) -> None:
    secrets = [
        value for name, value in stack.credentials.items() if name in ("api_key", "manage_key", "admin_password")
    ]
    for log in (stack.home / "logs").rglob("*"):
        if log.is_file():
            text = log.read_text(errors="replace")
            assert not [secret for secret in secrets if secret in text], log


def test_kill_nine_of_the_supervisor_leaves_no_orphan(stack: Stack) -> None:
    assert len(stack.processes()) >= 7
    assert stack.engines()
    stack.process.kill()
    stack.process.wait()
    eventually(lambda: not stack.processes() and not stack.engines(), "every process has ended", 30)
