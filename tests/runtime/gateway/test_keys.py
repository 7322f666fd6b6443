"""Keys through a whole gateway: rotation, addresses, criticalities, revocation, and budgets that tell."""

import asyncio
import hashlib
import hmac

import pytest

from runtime.gateway import auth
from runtime.gateway.auth import client_address, digest_of, networks_of
from runtime.wire.routes import Budget, RateLimits, TokenPrice
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    PEPPER,
    a_key,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    plain,
    serving,
    until,
)

NEW_KEY = "mp_newernewerne_" + "n" * 43


def serve(control, engine, key, **endpoint):
    generation = control[0].table.generation + 1
    endpoint = an_endpoint("chat", a_variant(a_replica(engine[1])), **endpoint)
    control[0].table = a_table(endpoint, keys=[key], generation=generation)


async def test_while_a_rotation_overlaps_both_texts_are_the_same_key(start_gateway, control, engine):
    old = digest_of(ACME_KEY, bytes.fromhex(PEPPER))
    key = a_key(NEW_KEY, "acme", previous_digest=old, previous_expires_at=4e9, limits=RateLimits(requests_per_minute=2))
    serve(control, engine, key)
    async with start_gateway() as gateway:
        assert (await gateway.post(ask(), key=NEW_KEY))[0] == 200
        assert (await gateway.post(ask(), key=ACME_KEY))[0] == 200
        # One key, one limit.
        assert (await gateway.post(ask(), key=NEW_KEY))[0] == 429
        await until(lambda: len(control[0].booked) == 2, "both calls are booked")
        assert {record.key_id for record in control[0].booked.values()} == {"key-acme"}


async def test_after_the_overlap_the_old_text_is_no_key(start_gateway, control, engine):
    old = digest_of(ACME_KEY, bytes.fromhex(PEPPER))
    serve(control, engine, a_key(NEW_KEY, "acme", previous_digest=old, previous_expires_at=1e9))
    async with start_gateway() as gateway:
        status, body, _ = await gateway.post(ask(), key=ACME_KEY)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert (await gateway.post(ask(), key=NEW_KEY))[0] == 200


async def test_a_key_may_be_held_to_networks(start_gateway, control, engine):
    serve(control, engine, a_key(ACME_KEY, "acme", allowed_addresses=["10.0.0.0/8", "2001:db8::/32"]))
    async with start_gateway() as gateway:
        status, body, _ = await gateway.post(ask(), x_forwarded_for="10.1.2.3")
        assert (status, body["error"]["code"]) == (403, "address_not_allowed")
        serve(control, engine, a_key(ACME_KEY, "acme", allowed_addresses=["127.0.0.0/8", "not a network"]))
        await until(lambda: gateway.core.keeper.generation == control[0].table.generation, "the new list is applied")
        assert (await gateway.post(ask()))[0] == 200
    assert len(engine[0].requests) == 1


async def test_a_trusted_proxy_says_where_a_request_comes_from(start_gateway, control, engine):
    serve(control, engine, a_key(ACME_KEY, "acme", allowed_addresses=["10.0.0.0/8"]))
    async with start_gateway(trusted_proxies="127.0.0.1, 192.168.0.0/16") as gateway:
        assert (await gateway.post(ask(), x_forwarded_for="10.1.2.3"))[0] == 200
        assert (await gateway.post(ask(), x_forwarded_for="10.1.2.3, 192.168.1.1"))[0] == 200
        # What the client wrote itself stands to the left of what the proxy saw.
        assert (await gateway.post(ask(), x_forwarded_for="10.1.2.3, 8.8.8.8"))[0] == 403
        assert (await gateway.post(ask()))[0] == 403


@pytest.mark.parametrize("pepper", [b"", b"p" * 32, b"p" * 64, b"p" * 65])
def test_the_digest_is_an_hmac(pepper):
    for key in ("", ACME_KEY, "ключ"):
        assert digest_of(key, pepper) == hmac.new(pepper, key.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("peer", "forwarded", "want"),
    [
        pytest.param("8.8.8.8", "10.0.0.1", "8.8.8.8", id="untrusted peer"),
        pytest.param("127.0.0.1", "", "127.0.0.1", id="no header"),
        pytest.param("127.0.0.1", "1.1.1.1, 2.2.2.2", "2.2.2.2", id="the nearest that is not trusted"),
        pytest.param("::ffff:127.0.0.1", "2001:db8::1", "2001:db8::1", id="mapped"),
        pytest.param("127.0.0.1", "1.1.1.1, nonsense", None, id="nonsense"),
        pytest.param("", "1.1.1.1", None, id="no peer"),
    ],
)
def test_the_address_of_a_request(peer, forwarded, want):
    found = client_address(peer, forwarded, networks_of(["127.0.0.0/8"]))
    assert (None if found is None else str(found)) == want


async def test_a_criticality_above_default_needs_the_keys_permission(start_gateway, control, engine):
    serve(control, engine, a_key(ACME_KEY, "acme"))
    async with start_gateway() as gateway:
        header = auth.HEADER_CRITICALITY.replace("-", "_")
        for asked, status in (("", 200), ("default", 200), ("Standard", 200), ("sheddable", 200), ("critical", 403)):
            assert (await gateway.post(ask(), **{header: asked}))[0] == status, asked
        status, body, _ = await gateway.post(ask(), **{header: "urgent"})
        assert (status, body["error"]["param"]) == (400, auth.HEADER_CRITICALITY)
        told = [request["headers"]["x-millpond-priority"] for request in engine[0].requests]
        assert told == ["default", "default", "default", "sheddable"]
        serve(control, engine, a_key(ACME_KEY, "acme", criticalities=["critical"]))
        await until(lambda: gateway.core.keeper.generation == control[0].table.generation, "the permission is applied")
        assert (await gateway.post(ask(), **{header: "critical"}))[0] == 200


async def test_a_revoked_key_is_refused_from_the_acknowledgement_on(start_gateway, control, engine):
    async with start_gateway(reread_seconds=30.0) as gateway:
        await until(lambda: control[0].listeners, "the gateway listens for hints")
        stop = asyncio.Event()
        accepted: list[float] = []
        loop = asyncio.get_running_loop()

        async def hammer() -> None:
            while not stop.is_set():
                if (await gateway.post(ask()))[0] == 200:
                    accepted.append(loop.time())

        hammers = [asyncio.create_task(hammer()) for _ in range(4)]
        await until(lambda: len(accepted) > 20, "requests are served")
        control[0].table = a_table(*control[0].table.endpoints, generation=2, keys=[a_key(NEW_KEY, "acme")])
        control[0].hint(2)
        await until(lambda: control[0].reports[-1].applied_generation == 2, "the revocation is acknowledged")
        acknowledged = loop.time()
        served = len(engine[0].requests)
        for _ in range(20):
            assert (await gateway.post(ask()))[0] == 401
        stop.set()
        await asyncio.gather(*hammers)
        assert len(engine[0].requests) == served
        # Answers on their way may still arrive; none was begun after the acknowledgement.
        assert [at for at in accepted if at > acknowledged + 1.0] == []


async def test_a_budget_refuses_with_litellms_word_and_follows_what_was_computed(start_gateway, control, engine):
    price = TokenPrice(prompt=0, completion=1_000_000)
    serve(control, engine, a_key(ACME_KEY, "acme", budget=Budget(limit=7, unit="cost", period="month")), price=price)
    async with start_gateway() as gateway:
        for left in ("3", "0"):
            status, _, headers = await gateway.post(ask(max_tokens=4))
            assert (status, headers["x-millpond-budget-limit"]) == (200, "7")
            assert headers["x-millpond-budget-unit"] == "cost"
            assert headers["x-millpond-budget-remaining"] == left
        status, body, headers = await gateway.post(ask(max_tokens=2))
        assert (status, body["error"]["code"]) == (429, "budget_exceeded")
        assert "6 used" in body["error"]["message"]
        assert int(headers["retry-after"]) >= 1
        assert (await gateway.post(ask(max_tokens=1)))[0] == 200
    await until(lambda: len(control[0].booked) == 3, "what was served is booked")


async def test_embeddings_reach_the_engine_and_count_their_prompt(start_gateway, control, engine):
    async with start_gateway() as gateway:
        status, _, _ = await gateway.post({"model": "chat", "input": ["a", "b"]}, path="/v1/embeddings")
        assert status == 200
        assert engine[0].requests[0]["path"] == "/v1/embeddings"
        await until(lambda: control[0].booked, "the call is booked")
        (record,) = control[0].booked.values()
        assert (record.operation, record.prompt_tokens) == ("embeddings", 7)


class NoEmbeddings(FakeEngine):
    """An engine that generates and has no other path."""

    async def _infer(self, request):
        if request.path == "/v1/embeddings":
            await request.json(404, {"error": {"message": "no such path"}})
        else:
            await super()._infer(request)


async def test_a_model_that_does_not_embed_says_so_and_goes_on_serving(start_gateway, control):
    async with serving(plain(NoEmbeddings())) as url:
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url))))
        async with start_gateway() as gateway:
            for _ in range(20):
                status, body, _ = await gateway.post({"model": "chat", "input": "a"}, path="/v1/embeddings")
                assert (status, body["error"]["code"]) == (400, "unsupported_operation")
            assert (await gateway.post(ask()))[0] == 200


async def test_health_and_metrics_tell_that_limits_are_counted_alone(gateway):
    _, health, _ = await gateway.get("/health")
    assert (health["limits_shared"], health["limits_gateways"]) == (False, 1)
    async with gateway.http.get(gateway.url + "/metrics") as response:
        assert "millpond_gateway_limits_shared 0.0" in await response.text()


async def test_what_a_refused_header_was_to_cost_is_not_held(start_gateway, control, engine):
    limits = RateLimits(requests_per_minute=100, max_parallel_requests=1)
    serve(control, engine, a_key(ACME_KEY, "acme", limits=limits, budget=Budget(limit=10_000)))
    async with start_gateway() as gateway:
        for _ in range(3):
            status, body, _ = await gateway.post(ask(max_tokens=4), x_millpond_deadline_ms="soon")
            assert (status, body["error"]["param"]) == (400, "x-millpond-deadline-ms")
        status, _, headers = await gateway.post(ask(max_tokens=4))
        assert status == 200
        assert headers["x-ratelimit-remaining-requests"] == "99"
