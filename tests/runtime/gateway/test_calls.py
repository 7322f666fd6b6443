"""The official client through a whole gateway: models, answers, streams, keys, grants, limits."""

import asyncio

import openai
import pytest

from runtime.wire.routes import RateLimits, TenantEntry
from tests.build.gateway_peers import (
    ACME_KEY,
    BETA_KEY,
    CONSOLE,
    ENGINE_TOKEN,
    a_key,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    until,
)

HELLO = [{"role": "user", "content": "hi"}]


async def test_the_official_client_lists_models_and_gets_answers(gateway, engine, control):
    client = gateway.openai()

    models = [model async for model in client.models.list()]
    assert [(model.id, model.owned_by) for model in models] == [("chat", "acme-corp")]
    assert (await client.models.retrieve("chat")).id == "chat"

    answer = await client.chat.completions.create(model="chat", messages=HELLO)
    assert answer.choices[0].message.content == "tok0 tok1 tok2 "
    assert answer.usage.total_tokens == 10

    stream = await client.chat.completions.create(
        model="chat", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "tok0 tok1 tok2 "
    assert chunks[-1].usage.completion_tokens == 3
    assert [request["body"]["model"] for request in engine[0].requests] == ["chat", "chat"]

    await until(lambda: len(control[0].booked) == 2, "both calls are booked")
    for record in control[0].booked.values():
        assert (record.tenant_id, record.owner_tenant_id, record.key_id) == ("acme", "acme", "key-acme")
        assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (7, 2, 3)
        assert (record.status, record.outcome, record.billable, record.replica_id) == (200, "ok", True, "replica-1")
        assert (record.deployment_id, record.revision_id) == ("deployment-1", "revision-1")


async def test_plain_completions_go_to_their_own_path(gateway, engine):
    status, _, _ = await gateway.post({"model": "chat", "prompt": "once"}, path="/v1/completions")
    assert status == 200
    assert engine[0].requests[0]["path"] == "/v1/completions"


async def test_without_a_good_key_the_answer_is_401_in_openai_shape(gateway, engine):
    unusable = {
        "none": "",
        "empty": "Bearer ",
        "wrong": "Bearer mp_wrongwrongwr_" + "x" * 43,
        "endless": "Bearer " + "y" * 5000,
        "other scheme": "Basic " + ACME_KEY,
        "not ascii": "Bearer ключ".encode().decode("latin-1"),
    }
    for name, authorization in unusable.items():
        async with gateway.http.post(
            gateway.url + "/v1/chat/completions", json=ask(), headers={"authorization": authorization}
        ) as response:
            assert response.status == 401, name
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["code"] in ("invalid_api_key", "missing_api_key")
        assert "mp_" not in error["message"]
    assert engine[0].requests == []


async def test_expired_and_revoked_keys_are_refused_and_an_inactive_tenant_is_told(start_gateway, control):
    endpoint = control[0].table.endpoints[0]
    off = TenantEntry(id="off", slug="off", prefix_salt="s", active=False)
    acme = control[0].table.tenants[0]
    keys = [a_key(ACME_KEY, "acme", expires_at=1_000_000_000.0), a_key(BETA_KEY, "off")]
    control[0].table = a_table(endpoint, tenants=[acme, off], keys=keys)
    async with start_gateway() as gateway:
        with pytest.raises(openai.AuthenticationError) as expired:
            await gateway.openai().models.list()
        assert expired.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError):
            await gateway.openai(BETA_KEY).models.list()


async def test_a_foreign_endpoint_does_not_exist_unless_granted(start_gateway, control, engine):
    variant = a_variant(a_replica(engine[1]))
    table = a_table(
        an_endpoint("chat", variant, granted_tenant_ids=["beta"]), an_endpoint("secret", variant), an_endpoint("x")
    )
    control[0].table = table
    async with start_gateway() as gateway:
        beta = gateway.openai(BETA_KEY)
        assert [model.id async for model in beta.models.list()] == ["acme-corp/chat"]
        for name in ("secret", "acme-corp/secret", "chat", "no-such"):
            with pytest.raises(openai.NotFoundError) as missing:
                await beta.chat.completions.create(model=name, messages=HELLO)
            assert missing.value.code == "model_not_found"
            assert (
                missing.value.body["message"] == f"The model {name!r} does not exist or you do not have access to it."
            )
        assert (await beta.models.retrieve("acme-corp/chat")).owned_by == "acme-corp"

        await beta.chat.completions.create(model="acme-corp/chat", messages=HELLO)
        seen = engine[0].requests[0]
        assert seen["body"]["model"] == "chat"
        assert seen["headers"]["x-millpond-tenant"] == "beta"
        assert seen["headers"]["x-millpond-prefix-salt"] == "salt-beta"
        await until(lambda: control[0].booked, "the call is booked")
        record = next(iter(control[0].booked.values()))
        assert (record.tenant_id, record.owner_tenant_id, record.key_id) == ("beta", "acme", "key-beta")


async def test_a_key_may_be_narrowed_to_some_endpoints(start_gateway, control, engine):
    variant = a_variant(a_replica(engine[1]))
    key = a_key(ACME_KEY, "acme", allowed_endpoints=["endpoint-acme-chat"])
    control[0].table = a_table(an_endpoint("chat", variant), an_endpoint("other", variant), keys=[key])
    async with start_gateway() as gateway:
        client = gateway.openai()
        assert [model.id async for model in client.models.list()] == ["chat"]
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.chat.completions.create(model="other", messages=HELLO)
        assert refused.value.code == "model_not_allowed"


async def test_an_endpoint_without_a_ready_replica_says_its_state(start_gateway, control):
    control[0].table = a_table(an_endpoint("chat", a_variant(), state="Loading weights: 40 %."))
    async with start_gateway() as gateway:
        status, body, headers = await gateway.post(ask())
    assert status == 503
    assert body["error"]["message"] == "Loading weights: 40 %."
    assert body["error"]["code"] == "model_not_ready"
    assert int(headers["retry-after"]) >= 1


async def test_requests_per_minute_are_refused_with_a_retry_after_and_headers(start_gateway, control, engine):
    control[0].table = a_table(*control[0].table.endpoints, acme_limits=RateLimits(requests_per_minute=2))
    async with start_gateway() as gateway:
        results = [await gateway.post(ask()) for _ in range(3)]
    assert [status for status, _, _ in results] == [200, 200, 429]
    assert [headers["x-ratelimit-remaining-requests"] for _, _, headers in results] == ["1", "0", "0"]
    _, body, headers = results[2]
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert 1 <= int(headers["retry-after"]) <= 61
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert "2 requests per minute" in body["error"]["message"]
    assert len(engine[0].requests) == 2


async def test_parallel_requests_are_limited_and_the_slot_comes_back(start_gateway, control, engine):
    control[0].table = a_table(*control[0].table.endpoints, acme_limits=RateLimits(max_parallel_requests=1))
    engine[0].gate.clear()
    async with start_gateway() as gateway:
        first = asyncio.create_task(gateway.post(ask()))
        await until(lambda: engine[0].running == 1, "the first call runs")
        assert (await gateway.post(ask()))[0] == 429
        engine[0].gate.set()
        assert (await first)[0] == 200
        assert (await gateway.post(ask()))[0] == 200


async def test_a_request_that_can_never_fit_is_told_so(start_gateway, control):
    control[0].table = a_table(*control[0].table.endpoints, acme_limits=RateLimits(tokens_per_minute=500))
    async with start_gateway() as gateway:
        status, body, headers = await gateway.post(ask(max_tokens=1000))
        assert (status, body["error"]["code"]) == (429, "request_too_large")
        assert "retry-after" not in headers
        # What was reserved comes back down to what was used: many small calls fit one after another.
        statuses = [(await gateway.post(ask(max_tokens=100)))[0] for _ in range(10)]
    assert statuses == [200] * 10


async def test_the_clients_own_headers_cannot_reach_the_engine(gateway, engine):
    status, _, headers = await gateway.post(
        ask(),
        x_millpond_tenant="beta",
        x_millpond_prefix_salt="salt-beta",
        x_millpond_metered="0",
        x_request_id="mine-1",
        cookie="a=b",
        x_forwarded_for="10.0.0.1",
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )
    assert (status, headers["x-request-id"]) == (200, "mine-1")
    seen = engine[0].requests[0]["headers"]
    assert seen["x-millpond-tenant"] == "acme"
    assert seen["x-millpond-prefix-salt"] == "salt-acme"
    assert seen["x-millpond-metered"] == "1"
    assert seen["authorization"] == f"Bearer {ENGINE_TOKEN}"
    assert seen["traceparent"].startswith("00-aaaa")
    assert "cookie" not in seen
    assert "x-forwarded-for" not in seen
    # Two requests of one name stay two: the engine's name for each is unique, so a cancel hits the right one.
    await gateway.post(ask(), x_request_id="mine-1")
    names = [request["headers"]["x-request-id"] for request in engine[0].requests]
    assert len(set(names)) == 2
    assert all(name.startswith("mine-1-") for name in names)


async def test_an_odd_request_id_is_replaced(gateway):
    for given in ("", "two words", "x" * 129, "a/../b", "<script>"):
        _, _, headers = await gateway.get("/v1/models", **{"x-request-id": given})
        assert headers["x-request-id"].startswith("req_")


async def test_browsers_may_call_from_the_console_only(gateway):
    async def preflight(origin):
        async with gateway.http.options(
            gateway.url + "/v1/chat/completions",
            headers={"origin": origin, "access-control-request-method": "POST"},
        ) as response:
            return response.status, response.headers

    status, headers = await preflight(CONSOLE)
    assert (status, headers["access-control-allow-origin"]) == (204, CONSOLE)
    assert "authorization" in headers["access-control-allow-headers"]
    for origin in ("http://evil.test", "null", CONSOLE + ".evil.test", CONSOLE.upper()):
        _, headers = await preflight(origin)
        assert not [name for name in headers if name.lower().startswith("access-control")]
    _, _, headers = await gateway.post(ask(), origin=CONSOLE)
    assert headers["access-control-allow-origin"] == CONSOLE
    assert "x-request-id" in headers["access-control-expose-headers"]


async def test_unknown_paths_and_methods_are_refused_in_openai_shape(gateway):
    status, body, _ = await gateway.get("/v1/responses")
    assert (status, body["error"]["code"]) == (404, "route_not_found")
    status, body, headers = await gateway.get("/v1/chat/completions")
    assert (status, headers["allow"]) == (405, "POST")


async def test_health_and_metrics_tell_what_is_served_from(gateway):
    await gateway.post(ask())
    await gateway.post(ask(model="no-such-" + "z" * 50))
    status, health, _ = await gateway.get("/health")
    assert (status, health["status"], health["table_generation"]) == (200, "ok", 1)
    assert health["max_table_age_seconds"] == 24 * 3600
    async with gateway.http.get(gateway.url + "/metrics") as response:
        text = await response.text()
    assert (
        'millpond_gateway_requests_total{deployment="deployment-1",endpoint="endpoint-acme-chat",'
        'operation="chat.completions",status="200"} 1.0' in text
    )
    assert 'millpond_gateway_refusals_total{reason="model_not_found"} 1.0' in text
    assert 'millpond_gateway_tokens_total{kind="completion",tenant="acme"} 3.0' in text
    assert "no-such" not in text
    assert ACME_KEY not in text


async def test_a_full_journal_stops_new_requests_before_they_cost(start_gateway, engine, control):
    async with start_gateway(journal_max_bytes=100) as gateway:
        control[0].down = True
        assert (await gateway.post(ask()))[0] == 200
        status, body, _ = await gateway.post(ask())
        assert (status, body["error"]["code"]) == (503, "journal_full")
        assert len(engine[0].requests) == 1


async def test_more_requests_than_the_gateway_serves_at_once_are_told_to_come_back(start_gateway, engine):
    engine[0].gate.clear()
    async with start_gateway(max_in_flight=2) as gateway:
        calls = [asyncio.create_task(gateway.post(ask())) for _ in range(2)]
        await until(lambda: engine[0].running == 2, "two calls run")
        status, body, headers = await gateway.post(ask())
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "overloaded", "1")
        engine[0].gate.set()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]
