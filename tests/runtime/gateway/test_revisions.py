"""A request that names its revision: who may, what answers it, and that it changes nothing for the others."""

import contextlib

import pytest

from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    BETA_KEY,
    CONSOLE,
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
from tests.runtime.gateway.test_traffic import changed

HEADER = "x-millpond-revision"


@pytest.fixture
async def sides(control, engine):
    """Chat with all traffic on r7 of version 3, r8 of the same version beside it without any, and one that starts."""
    candidate = FakeEngine()
    async with serving(plain(candidate)) as url:
        variants = [
            changed(a_variant(a_replica(engine[1], 1), version=3), deployment_id="stable", revision_number=7),
            changed(a_variant(a_replica(url, 2), weight=0, version=3), deployment_id="next", revision_number=8,
                    revision_id="0197-NEXT".lower()),
            changed(a_variant(weight=0, version=4), deployment_id="starts", revision_number=9, coming=1),
        ]  # fmt: skip
        keys = [
            a_key(ACME_KEY, "acme", kind="playground", expires_at=4e9, picks_revision=True),
            a_key(BETA_KEY, "beta"),
        ]
        endpoint = an_endpoint("chat", *variants, granted_tenant_ids=["beta"], sticky="key")
        control[0].table = a_table(endpoint, keys=keys)
        yield engine[0], candidate


@contextlib.asynccontextmanager
async def called(start_gateway, **settings):
    async with start_gateway(**settings) as gateway:

        async def call(name, **more):
            return await gateway.post(ask(), **{HEADER: name}, **more)

        yield gateway, call


async def test_the_named_revision_answers_whatever_its_weight_and_is_marked_in_the_books(start_gateway, control, sides):
    async with called(start_gateway) as (gateway, call):
        for name in ("r8", "R8", "next", "0197-next"):
            assert (await call(name))[0] == 200
        assert (await call("r7"))[0] == 200
        assert (await gateway.post(ask()))[0] == 200
        await until(lambda: len(control[0].booked) == 6, "every call is booked")
    assert [len(side.requests) for side in sides] == [2, 4]
    told = sorted((record.deployment_id, record.picked, record.billable) for record in control[0].booked.values())
    assert told == [("next", True, True)] * 4 + [("stable", False, True), ("stable", True, True)]
    # What the caller wrote is no business of engines.
    assert all(HEADER not in request["headers"] for request in sides[1].requests)


async def test_unknown_ambiguous_and_unready_names_are_refused_in_words(start_gateway, sides):
    async with called(start_gateway) as (_, call):
        status, body, _ = await call("r1")
        assert (status, body["error"]["code"]) == (404, "revision_not_found")
        assert "r7 (v3), r8 (v3), r9 (v4)" in body["error"]["message"]
        status, body, _ = await call("v3")
        assert (status, body["error"]["code"]) == (400, "revision_ambiguous")
        assert "r7 (v3), r8 (v3)." in body["error"]["message"]
        status, body, headers = await call("v4")
        assert (status, body["error"]["code"]) == (503, "revision_not_ready")
        assert headers["retry-after"] == "5"
    assert not sides[0].requests
    assert not sides[1].requests


async def test_only_keys_that_may_name_a_revision_and_only_of_their_own_tenant(start_gateway, control, sides):
    async with called(start_gateway) as (gateway, call):
        granted = ask(model="acme-corp/chat")
        status, body, _ = await gateway.post(granted, key=BETA_KEY, **{HEADER: "r8"})
        assert (status, body["error"]["code"], body["error"]["param"]) == (403, "revision_not_allowed", HEADER)
        assert "r7" not in body["error"]["message"]
        # Not even with the right to do it at home: another tenant's revisions are not its to know.
        keys = [a_key(ACME_KEY, "acme"), a_key(BETA_KEY, "beta", picks_revision=True)]
        control[0].table = changed(control[0].table, keys=keys, generation=2)
        await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
        assert (await gateway.post(granted, key=BETA_KEY, **{HEADER: "r8"}))[0] == 403
        assert (await call("r8"))[0] == 403
        assert (await gateway.post(ask()))[0] == 200
    assert [len(side.requests) for side in sides] == [1, 0]


async def test_a_named_revision_that_fails_is_not_replaced_by_another(start_gateway, control, sides):
    async with called(start_gateway) as (gateway, call):
        endpoint = control[0].table.endpoints[0]
        gone = changed(endpoint.variants[1], replicas=[a_replica("http://127.0.0.1:9", 2)])
        endpoint = changed(endpoint, variants=[endpoint.variants[0], gone])
        control[0].table = changed(control[0].table, endpoints=[endpoint], generation=2)
        await until(lambda: gateway.core.keeper.generation == 2, "the table is applied")
        status, body, _ = await call("r8")
        assert (status, body["error"]["code"]) == (503, "upstream_unreachable")
    assert not sides[0].requests


async def test_a_page_of_the_console_may_send_the_header(gateway):
    asked = {"origin": CONSOLE, "access-control-request-method": "POST", "access-control-request-headers": HEADER}
    async with gateway.http.options(f"{gateway.url}/v1/chat/completions", headers=asked) as answer:
        assert HEADER in answer.headers["access-control-allow-headers"]
