"""Routing, holding and failure through a whole gateway over HTTP."""

import asyncio
import collections
import socket

import aiohttp
import pytest

from runtime.gateway import outliers
from runtime.wire.reports import Phase
from runtime.wire.routes import Slo
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import (
    ACME_KEY,
    BETA_KEY,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    plain,
    serving,
    until,
)

HEADERS = {"authorization": f"Bearer {ACME_KEY}"}


def changed(struct, **changes):
    """A copy of a struct with other fields."""
    return type(struct)(**{**{name: getattr(struct, name) for name in struct.__struct_fields__}, **changes})


async def offer(gateway, control, table) -> None:
    """Let the gateway serve from ``table``."""
    control[0].table = table
    await until(lambda: gateway.core.keeper.generation == table.generation, "the table is applied")


@pytest.mark.parametrize(
    ("sticky", "calls", "keeps"),
    [
        ("user", [(ask(user="ann"), {})] * 12, True),
        ("header", [(ask(), {"x-millpond-sticky": "ann"})] * 12, True),
        ("key", [(ask(user=f"u{number}"), {"x-millpond-sticky": f"h{number}"}) for number in range(12)], True),
        ("user", [(ask(), {"x-millpond-sticky": "ann"})] * 40, False),
        ("", [(ask(user="ann"), {"x-millpond-sticky": "ann"})] * 40, False),
    ],
    ids=["user field", "header", "key", "nothing to go by", "not asked for"],
)
async def test_a_caller_stays_with_its_variant(start_gateway, control, engine, sticky, calls, keeps):
    other = FakeEngine()
    async with serving(plain(other)) as url:
        variants = [a_variant(a_replica(engine[1], 1)), a_variant(a_replica(url, 2), version=2)]
        control[0].table = a_table(an_endpoint("chat", *variants, sticky=sticky))
        async with start_gateway() as gateway:
            for body, headers in calls:
                assert (await gateway.post(body, **headers))[0] == 200
    assert (min(len(engine[0].requests), len(other.requests)) == 0) is keeps


async def test_an_engine_is_told_who_asks_and_until_when(start_gateway, control, engine):
    table = a_table(an_endpoint("chat", a_variant(a_replica(engine[1]))))
    tenants = [changed(tenant, weight=2.5) if tenant.id == "acme" else tenant for tenant in table.tenants]
    control[0].table = changed(table, tenants=tenants)
    async with start_gateway() as gateway:
        await gateway.post(ask(), **{"x-millpond-deadline-ms": "5000"})
        await gateway.post(ask())
        status, body, _ = await gateway.post(ask(), **{"x-millpond-deadline-ms": "soon"})
    first, second = (request["headers"] for request in engine[0].requests)
    assert first["x-millpond-tenant-weight"] == "2.5"
    assert first["x-millpond-priority"] == "default"
    assert first["x-millpond-gateway"] == "gateway-1"
    assert 4000 < int(first["x-millpond-deadline-ms"]) <= 5000
    assert 3_500_000 < int(second["x-millpond-deadline-ms"]) <= 3_600_000
    assert (status, body["error"]["param"]) == (400, "x-millpond-deadline-ms")


async def test_a_deadline_that_the_engine_does_not_keep_is_kept_here(gateway, engine, control):
    engine[0].gate.clear()
    status, body, _ = await gateway.post(ask(), **{"x-millpond-deadline-ms": "1"})
    assert (status, body["error"]["code"]) == (504, "deadline")
    await until(lambda: control[0].booked, "the record")
    (record,) = control[0].booked.values()
    assert (record.status, record.billable) == (504, True)  # who names a deadline pays as if it had hung up
    await until(lambda: engine[0].running == 0, "the engine is free")


async def test_a_grant_holds_requests_back_and_one_whose_client_goes_leaves_no_trace(gateway, engine, control):
    engine[0].credits = 1
    await gateway.post(ask())  # hears of the grant
    engine[0].gate.clear()
    calls = [asyncio.create_task(gateway.post(ask())) for _ in range(3)]
    await until(lambda: gateway.core.traffic.held == 2, "two are held")
    assert engine[0].running == 1
    calls[2].cancel()
    await until(lambda: gateway.core.traffic.held == 1, "the one has left")
    engine[0].gate.set()
    assert [(await call)[0] for call in calls[:2]] == [200, 200]
    assert engine[0].peak == 1
    assert len(engine[0].requests) == 3
    await until(lambda: len(control[0].booked) == 4, "every request is booked")
    aborted = [record for record in control[0].booked.values() if record.status == 499]
    assert [(record.outcome, record.completion_tokens, record.replica_id) for record in aborted] == [("aborted", 0, "")]
    _, text = await metrics(gateway)
    assert 'millpond_gateway_queue_seconds_count{deployment="deployment-1"} 2.0' in text


async def test_a_request_waits_for_a_replica_that_is_coming(start_gateway, control, engine):
    control[0].table = a_table(an_endpoint("chat", changed(a_variant(), coming=1)))
    async with start_gateway() as gateway:
        call = asyncio.create_task(gateway.post(ask(stream=True)))
        await until(lambda: gateway.core.traffic.held == 1, "it is held")
        reply = [changed(a_variant(a_replica(engine[1])), coming=0)]
        control[0].table = a_table(an_endpoint("chat", *reply), generation=2)
        with pytest.raises(aiohttp.ContentTypeError):  # a stream, and no refusal
            await call
    assert len(engine[0].requests) == 1


async def test_a_sleeping_replica_is_woken_by_a_request(start_gateway, control, engine):
    engine[0].phase, engine[0].credits = Phase.ASLEEP, 4
    control[0].table = a_table(an_endpoint("chat", a_variant(changed(a_replica(engine[1]), asleep=True))))
    async with start_gateway() as gateway:
        assert (await gateway.post(ask()))[0] == 200
    assert engine[0].phase is Phase.READY


@pytest.fixture
def dropping():
    """A replica that takes a request and hangs up without a word; counts what it took."""

    class Dropping:
        def __init__(self):
            self.taken = 0

        async def serve(self, reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            self.taken += head.startswith(b"POST")  # it is asked afterwards, too, what it computed
            writer.close()

    return Dropping()


async def test_a_replica_that_dies_before_it_answers_is_replaced_without_the_client_noticing(
    start_gateway, control, engine, dropping
):
    server = await asyncio.start_server(dropping.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    routes = [a_replica(f"http://127.0.0.1:{port}", 1), a_replica(engine[1], 2)]
    control[0].table = a_table(an_endpoint("chat", a_variant(*routes)))
    async with server, start_gateway() as gateway:
        assert [(await gateway.post(ask()))[0] for _ in range(20)] == [200] * 20
        assert [ejection.replica_id for ejection in gateway.core.traffic.ejections()] == ["replica-1"]
        await until(lambda: control[0].reports and control[0].reports[-1].ejected, "it is reported at once")
    assert dropping.taken == 5
    (reported,) = control[0].reports[-1].ejected
    assert (reported.replica_id, reported.reason) == ("replica-1", outliers.CONSECUTIVE)


async def test_a_request_that_kills_engines_kills_no_third(start_gateway, control, dropping):
    server = await asyncio.start_server(dropping.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    control[0].table = a_table(an_endpoint("chat", a_variant(*(a_replica(url, number) for number in range(5)))))
    async with server, start_gateway() as gateway:
        assert (await gateway.post(ask()))[0] == 502
    assert dropping.taken == 2


async def test_tries_on_other_replicas_are_a_tenth_at_most(start_gateway, control, engine):
    engine[0].mode = "busy"
    routes = [a_replica(engine[1], number) for number in range(4)]
    control[0].table = a_table(an_endpoint("chat", a_variant(*routes)))
    async with start_gateway() as gateway:
        for _ in range(100):
            assert (await gateway.post(ask()))[0] == 503
    assert len(engine[0].requests) <= 100 + 10 + 10


async def test_a_stuck_engine_is_ejected_reported_and_readmitted(start_gateway, control, engine):
    engine[0].credits, engine[0].stuck = 8, True
    other = FakeEngine()
    async with serving(plain(other)) as url:
        control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(engine[1], 1), a_replica(url, 2))))
        async with start_gateway(load_poll_seconds=0.02, stuck_seconds=0.2) as gateway:
            traffic = gateway.core.traffic
            engine[0].gate.clear()
            calls = [asyncio.create_task(gateway.post(ask())) for _ in range(2)]
            await until(traffic.ejections, "it is ejected")
            (ejection,) = traffic.ejections()
            assert (ejection.replica_id, ejection.reason) == ("replica-1", outliers.STUCK)
            await until(lambda: control[0].reports[-1].ejected, "it is reported at once")
            assert [(await gateway.post(ask()))[0] for _ in range(5)] == [200] * 5
            assert len(other.requests) >= 6
            engine[0].stuck = False
            engine[0].gate.set()
            traffic.pool.replicas["replica-1"].health.until = 0.0  # its time is over
            await until(lambda: not traffic.ejections(), "it is readmitted")
            await until(lambda: not control[0].reports[-1].ejected, "that is reported, too")
            assert [(await call)[0] for call in calls] == [200, 200]
    probe = engine[0].requests[-1]
    assert probe["headers"]["x-millpond-tenant"] == "millpond-probe"
    assert probe["body"] == {"model": "chat", "prompt": "1", "max_tokens": 1}
    await until(lambda: len(control[0].booked) == 7, "callers' requests are booked")
    assert {record.tenant_id for record in control[0].booked.values()} == {"acme"}


async def test_an_engine_that_hangs_is_ejected(start_gateway, control, engine):
    listener = socket.create_server(("127.0.0.1", 0))  # takes connections and never answers
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url, 1), a_replica(engine[1], 2))))
    with listener:
        async with start_gateway(load_poll_seconds=0.02, stuck_seconds=0.1, connect_timeout_seconds=0.1) as gateway:
            calls = [asyncio.create_task(gateway.post(ask())) for _ in range(2)]
            await until(gateway.core.traffic.ejections, "it is ejected")
            (ejection,) = gateway.core.traffic.ejections()
            assert (ejection.replica_id, ejection.reason) == ("replica-1", outliers.UNRESPONSIVE)
            assert [(await gateway.post(ask()))[0] for _ in range(4)] == [200] * 4
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_without_a_control_plane_serving_goes_on_under_load(start_gateway, control, engine):
    async with start_gateway(reread_seconds=0.02) as gateway:
        statuses: collections.Counter[int] = collections.Counter()

        async def caller() -> None:
            while not done.is_set():
                statuses[(await gateway.post(ask()))[0]] += 1

        done = asyncio.Event()
        callers = [asyncio.create_task(caller()) for _ in range(4)]
        await until(lambda: statuses[200] > 20, "it serves")
        control[0].down = True
        await until(lambda: not gateway.core.link.connected, "the control plane is missed")
        before = statuses[200]
        await until(lambda: statuses[200] > before + 100, "it serves on")
        done.set()
        await asyncio.gather(*callers)
        assert set(statuses) == {200}
        control[0].down = False
        await until(lambda: len(control[0].booked) == statuses[200], "everything is booked once")


async def metrics(gateway) -> tuple[int, str]:
    async with gateway.http.get(gateway.url + "/metrics") as response:
        return response.status, await response.text()


async def test_metrics_tell_of_deployments_and_forget_those_that_left(start_gateway, control, engine):
    engine[0].tokens = 5
    control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(engine[1])), slo=Slo(ttft_p95_ms=500.0)))
    async with start_gateway() as gateway:
        async with gateway.http.post(
            gateway.url + "/v1/chat/completions", json=ask(stream=True), headers=HEADERS
        ) as answer:
            assert b"[DONE]" in await answer.read()
        await until(lambda: control[0].booked, "the record")
        status, text = await metrics(gateway)
        assert status == 200
        both = 'deployment="deployment-1",endpoint="endpoint-acme-chat"'
        for name in ("request_seconds", "first_event_seconds"):
            assert f"millpond_gateway_{name}_count{{{both}}} 1.0" in text
        assert f'millpond_gateway_requests_total{{{both},operation="chat.completions",status="200"}} 1.0' in text
        gaps = [line for line in text.splitlines() if line.startswith("millpond_gateway_inter_event_seconds_count")]
        assert [float(line.rsplit(" ", 1)[1]) >= 1 for line in gaps] == [True]
        assert 'millpond_gateway_deployment_limit{deployment="deployment-1"} 32.0' in text
        await offer(gateway, control, a_table(generation=2))
        await until(lambda: not gateway.core.traffic.pool.replicas, "its state is forgotten")
        assert "deployment-1" not in (await metrics(gateway))[1]


async def test_many_tenants_and_names_make_no_more_series_than_the_cap(start_gateway, control, engine, monkeypatch):
    monkeypatch.setattr("runtime.gateway.metrics.MAX_TENANTS", 1)
    control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(engine[1])), granted_tenant_ids=["beta"]))
    async with start_gateway() as gateway:
        await gateway.post(ask())
        await gateway.post(ask(model="acme-corp/chat"), key=BETA_KEY)
        for number in range(5):
            await gateway.post(ask(model=f"no-such-{number}"))
        _, text = await metrics(gateway)
    assert "no-such" not in text
    assert 'millpond_gateway_refusals_total{reason="model_not_found"} 5.0' in text
    assert {line for line in text.splitlines() if line.startswith("millpond_gateway_tokens_total")} == {
        f'millpond_gateway_tokens_total{{kind="{kind}",tenant="{tenant}"}} {count}'
        for tenant in ("acme", "other")
        for kind, count in (("prompt", 7.0), ("cached", 2.0), ("completion", 3.0))
    }
