"""What is met before any view: bodies without end, paths that are no routes, names that cannot be, a database away."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import OperationalError
from rest_framework.test import APIClient

from controlplane import bodies
from kernel.api import problems
from kernel.texts import storable
from tests.build.controlplane import client_for, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db


def test_a_socket_at_a_path_that_is_none_is_refused_before_it_opens() -> None:
    from controlplane.asgi import application

    async def answer(path: str) -> Any:
        headers = [(b"host", b"127.0.0.1")]
        scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"", "subprotocols": []}
        socket: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]
        await socket.send_input({"type": "websocket.connect"})
        return await socket.receive_output(timeout=15)

    for path in ("/ws/nothing/", "/ws/t/a/b/", "/internal/v1/nothing"):
        assert asyncio.run(answer(path))["type"] == "websocket.close"


class Wire:
    """One ASGI exchange: what the client sends, and what was answered."""

    def __init__(self, *pieces: bytes, length: str = "") -> None:
        headers = [(b"content-length", length.encode())] if length else []
        self.scope = {"type": "http", "headers": headers}
        self.pieces: Iterator[bytes] = iter(pieces)
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        piece = next(self.pieces, None)
        if piece is None:
            await asyncio.Event().wait()  # the client says nothing more
        return {"type": "http.request", "body": piece, "more_body": piece != b"end"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    def run(self, *, seconds: float = 30.0) -> tuple[int, str]:
        async def echo(_scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b'{"code": ""}'})

        async def exchange() -> None:
            await bodies.bounded(echo, max_bytes=10, idle_seconds=seconds)(self.scope, self.receive, self.send)

        asyncio.run(exchange())
        return self.sent[0]["status"], json.loads(self.sent[1]["body"])["code"]


def test_a_body_within_the_bound_arrives() -> None:
    assert Wire(b"1234567", b"end", length="10").run() == (200, "")


def test_a_stated_length_over_the_bound_is_refused_unread() -> None:
    assert Wire(length="11").run() == (413, "too_large")
    assert Wire(length="9" * 40).run() == (413, "too_large")


def test_a_body_that_states_no_length_is_counted() -> None:
    assert Wire(b"12345678", b"more", b"end").run() == (413, "too_large")


def test_a_sender_that_falls_silent_is_let_go() -> None:
    assert Wire(b"1", length="10").run(seconds=0.01) == (408, "body_late")


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/nodes/no-uuid", "/api/", "/api/v1/me/"])
def test_a_path_that_is_no_route_is_a_problem(path: str) -> None:
    answer = APIClient().get(path)
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not_found"


def test_machines_are_told_in_their_own_words() -> None:
    assert APIClient().get("/internal/v1/nothing").json()["code"] == "not_found"


def test_a_strange_host_is_a_problem() -> None:
    answer = APIClient().get("/api/v1/me", HTTP_HOST="evil.example")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("path", ["models/%00", "models?q=%00", "deployments/%00/events", "%00"])
def test_names_with_a_nul_are_nobodys(path: str) -> None:
    tenant = make_tenant()
    client = client_for(owner_of(tenant))
    assert client.get(f"/api/v1/tenants/{tenant.slug}/{path}").json()["code"] == "not_found"


def test_a_database_that_is_away_is_said_so_and_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: Any, **_more: Any) -> None:
        raise OperationalError("the connection is closed")

    client = client_for(make_user())
    monkeypatch.setattr("tenants.access.tenants_of", away)
    answer = client.get("/api/v1/me")
    assert (answer.status_code, answer["Content-Type"]) == (503, problems.CONTENT_TYPE)
    assert (answer.json()["code"], answer["Retry-After"]) == ("unavailable", "2")


def test_storable_text() -> None:
    odd = {"a\x00": ["\ud800b", ("\x00", 1)], "fine": None}
    assert storable(odd) == {"a�": ["�b", ("�", 1)], "fine": None}


def test_a_form_with_a_nul_is_refused() -> None:
    form = "application/x-www-form-urlencoded"
    assert APIClient().post("/accounts/login/", "login=a%00b", content_type=form).status_code == 400
    assert APIClient().post("/accounts/login/", {"login": "a\x00b"}, format="multipart").status_code == 400
