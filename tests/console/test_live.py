"""The socket of a page: who may listen, what it says, and when it ends."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import connections

from console.live import consumers, routing
from kernel import actors, scope
from ledger import hints
from tenants import services
from tenants.models import Member, Tenant, User
from tenants.roles import Role
from tests.build.controlplane import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    yield
    await database_sync_to_async(connections.close_all)()


class Socket(ApplicationCommunicator):
    """A browser's socket, played by hand."""

    def __init__(self, path: str, user: User | None, session: SessionStore | None = None) -> None:
        scope = {"type": "websocket", "path": path, "headers": [], "subprotocols": [], "user": user, "session": session}
        super().__init__(URLRouter(routing.urlpatterns), scope)

    async def connect(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        return bool((await self.receive_output(timeout=5))["type"] == "websocket.accept")

    async def hear(self) -> Any:
        return json.loads((await self.receive_output(timeout=5))["text"])

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(timeout=5)


def _session(user: User) -> SessionStore:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session.save()
    return session


@database_sync_to_async
def world() -> tuple[Tenant, User, SessionStore]:
    tenant = make_tenant("harbor")
    user = make_member(tenant, Role.VIEWER)
    return tenant, user, _session(user)


async def code_of(made: Socket) -> Any:
    assert await made.connect()
    return (await made.receive_output(timeout=5)).get("code")


async def test_a_member_hears_that_something_changed_and_not_what() -> None:
    tenant, user, session = await world()
    made = Socket("/ws/t/harbor/", user, session)
    assert await made.connect()
    for _ in range(5):
        await database_sync_to_async(hints.push)(hints.tenant_topic(tenant.id), {"what": "models", "id": "secret"})
    assert await made.hear() == {"type": "changed"}
    assert await made.receive_nothing(timeout=0.5)  # five hints in one moment are one message
    await made.close()


async def test_strangers_and_signed_out_visitors_are_told_to_look_again() -> None:
    _tenant, user, session = await world()
    stranger = await database_sync_to_async(make_user)()
    stranger_session = await database_sync_to_async(_session)(stranger)
    assert await code_of(Socket("/ws/t/harbor/", stranger, stranger_session)) == consumers.NO_MEMBER
    assert await code_of(Socket("/ws/t/nowhere/", user, session)) == consumers.NO_MEMBER
    assert await code_of(Socket("/ws/platform/", user, session)) == consumers.NO_MEMBER
    assert await code_of(Socket("/ws/t/harbor/", None)) == consumers.SIGNED_OUT


@pytest.mark.parametrize("ends", ["membership", "session"])
async def test_the_socket_ends_when_the_right_to_see_ends(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    tenant, user, session = await world()
    monkeypatch.setattr(consumers, "HEARTBEAT_SECONDS", 0.05)
    made = Socket("/ws/t/harbor/", user, session)
    assert await made.connect()
    assert await made.hear() == {"type": "beat"}

    @database_sync_to_async
    def end() -> None:
        if ends == "session":
            session.delete()
            return
        with scope.tenant(tenant.id):
            member = Member.objects.get(user=user)
        services.remove_member(actor=actors.system("tests"), tenant=tenant, member=member)

    await end()
    while (said := await made.receive_output(timeout=5))["type"] != "websocket.close":
        pass
    assert said["code"] == (consumers.NO_MEMBER if ends == "membership" else consumers.SIGNED_OUT)


async def test_a_page_that_talks_too_much_is_cut_off() -> None:
    _tenant, user, session = await world()
    made = Socket("/ws/t/harbor/", user, session)
    assert await made.connect()
    await made.send_input({"type": "websocket.receive", "text": "x" * 5000})
    assert (await made.receive_output(timeout=5))["code"] == 1009
