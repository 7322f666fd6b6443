"""Reports past Django's stack: the same answers, on connections that are kept and may die."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper

from controlplane import asgi
from dispatch.api import heartbeats, machines_asgi
from fleet import pacing
from fleet.models import Node
from runtime.wire import codec
from runtime.wire.reports import ReportReply
from tests.build.machines import FakeAgent

pytestmark = pytest.mark.django_db(transaction=True)
REPORT = "/internal/v1/nodes/report"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """One thread instead of several, whose connection ends with the test."""
    with ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(machines_asgi, "_threads", threads)
        monkeypatch.setattr(heartbeats, "_thread", threads)
        yield threads
        threads.submit(lambda: connection.close()).result()  # its own: connections are by thread


@pytest.fixture
def agent():
    made = FakeAgent()
    made.join()
    return made


def call(path, body=b"", *, method="POST", credential="", more=()):
    """One call as a server makes it: (status, headers, body)."""
    head = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {credential}".encode()), *more]
    scope = {
        "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "headers": head,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    pieces = [{"type": "http.request", "body": part, "more_body": True} for part in (body[:7], body[7:])]
    incoming, sent = iter([*pieces, {"type": "http.request"}]), []

    async def receive():
        return next(incoming)

    async def send(message):
        sent.append(message)

    asyncio.run(asgi.http(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def report(agent):
    return call(REPORT, codec.encode(agent.draft()), credential=agent.credential)


def test_a_report_and_the_table_it_leads_to(agent):
    status, headers, body = report(agent)
    assert status == 200
    assert headers[b"content-length"] == str(len(body)).encode()
    assert codec.decode(body, ReportReply).interval_seconds > 0
    assert Node.objects.get().state == "ready"
    status, headers, body = call("/internal/v1/nodes/assignments", method="GET", credential=agent.credential)
    assert status == 200
    known = (b"if-none-match", headers[b"etag"])
    again = call("/internal/v1/nodes/assignments", method="GET", credential=agent.credential, more=[known])
    assert (again[0], again[2]) == (304, b"")


def test_refusals_are_those_of_the_internal_api(agent):
    assert call(REPORT, b"{}", credential="mpn_nobody")[0] == 401
    assert call(REPORT, b"{}", credential=agent.credential)[0] == 400
    assert call(REPORT, method="GET", credential=agent.credential)[0] == 405
    large = (b"content-length", b"5000000")
    assert call(REPORT, b"", credential=agent.credential, more=[large])[0] == 413


def test_a_kept_connection_that_died_costs_no_report(agent, one_thread):
    def pid():
        return connection.connection.info.backend_pid if connection.connection else 0

    assert report(agent)[0] == 200
    before = one_thread.submit(pid).result()
    assert before
    assert report(agent)[0] == 200
    assert one_thread.submit(pid).result() == before
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [before])
    assert report(agent)[0] == 200
    assert one_thread.submit(pid).result() not in (0, before)


def test_without_a_database_reports_are_refused_and_work_again_with_it(agent, monkeypatch, one_thread):
    def away(self, params):
        raise OperationalError("nobody listens")

    assert report(agent)[0] == 200
    with monkeypatch.context() as patch:
        one_thread.submit(lambda: connection.close()).result()
        patch.setattr(DatabaseWrapper, "get_new_connection", away)
        assert report(agent)[0] == 503
    assert report(agent)[0] == 200


def test_a_call_that_has_waited_too_long_is_refused_unseen(agent, monkeypatch):
    monkeypatch.setattr(machines_asgi, "PATIENCE_SECONDS", -1.0)
    status, _headers, body = report(agent)
    assert status == 503
    assert b"report again after a pause" in body
    assert Node.objects.get().state == "joining"


def test_a_call_that_would_wait_too_long_is_refused_at_once_and_told_when_to_come_back(agent, monkeypatch):
    assert report(agent)[0] == 200
    load = machines_asgi.Load()
    monkeypatch.setattr(machines_asgi, "_load", load)
    for _ in range(100):
        load.served(1.0)
    load.calls = machines_asgi.THREADS + 30  # ten seconds of work for each thread stand before it
    assert report(agent)[0] == 200, "a heartbeat has its own thread"
    agent.stored = ["a" * 64]
    before = Node.objects.get()
    status, headers, _body = report(agent)
    assert status == 503
    assert 1 <= int(headers[b"retry-after"]) <= 1.5 * pacing.last().interval_seconds + 1
    after = Node.objects.get()
    assert (after.sequence, after.stored_sha256) == (before.sequence, [])
    assert after.lease_expires_at > before.lease_expires_at, "a node that is refused is there"
    load.calls = 0
    assert report(agent)[0] == 200
