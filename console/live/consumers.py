"""A socket per open page. It forwards hints that something changed (never what), and ends when the right to see ends.

Close codes: 4401 signed out, 4404 no member (any more). The page reloads on both; the server then says what is so.
"""

import abc
import asyncio
import contextlib
import json
from typing import Any, Final

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase

from kernel import errors
from kernel.actors import Actor, Way
from ledger import hints
from tenants import access, identity
from tenants.models import User

SIGNED_OUT: Final = 4401
NO_MEMBER: Final = 4404
HEARTBEAT_SECONDS: Final = 10.0
COALESCE_SECONDS: Final = 0.2
MAX_INCOMING_BYTES: Final = 1024


class Hints(AsyncWebsocketConsumer, abc.ABC):
    """Base: checks who may listen, at the start and with every heartbeat; bundles hints that come together."""

    group: str = ""

    @abc.abstractmethod
    def topic(self, actor: Actor) -> str:
        """The topic of the page, if ``actor`` may see it. Raises a ``PlatformError`` otherwise."""

    async def connect(self) -> None:
        self._pending: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        await self.accept()
        topic = await self._allowed()
        if topic is None:
            return
        self.group = hints.group_of(topic)
        await self.channel_layer.group_add(self.group, self.channel_name)
        self._beat = asyncio.create_task(self._heartbeat())

    async def disconnect(self, code: int) -> None:
        for task in (self._beat, self._pending):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages have nothing to say; a talkative one is cut off."""
        if len(text_data or bytes_data or b"") > MAX_INCOMING_BYTES:
            await self.close(1009)

    async def hint(self, message: dict[str, Any]) -> None:
        """A hint from the channel layer."""
        if message.get("data", {}).get("what") == "members" and await self._allowed() is None:
            return
        if self._pending is None or self._pending.done():
            self._pending = asyncio.create_task(self._send_soon())

    async def _send_soon(self) -> None:
        await asyncio.sleep(COALESCE_SECONDS)
        await self._say("changed")

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if await self._allowed() is None:
                return
            await self._say("beat")

    async def _say(self, kind: str) -> None:
        with contextlib.suppress(RuntimeError):  # the socket closed meanwhile
            await self.send(json.dumps({"type": kind}))

    async def _allowed(self) -> str | None:
        """The topic, or ``None`` after closing with the reason."""
        code, topic = await database_sync_to_async(self._check)()
        if code:
            await self.close(code)
            return None
        return str(topic)

    def _check(self) -> tuple[int, str]:
        user, session = self.scope.get("user"), self.scope.get("session")
        if not isinstance(user, User) or not _lives(session):
            return SIGNED_OUT, ""
        current = identity.user_by_id(user.pk)
        if current is None:
            return SIGNED_OUT, ""
        try:
            return 0, self.topic(identity.actor_of_user(current, way=Way.CONSOLE))
        except errors.PlatformError:
            return NO_MEMBER, ""


def _lives(session: SessionBase | None) -> bool:
    """Whether the session still exists (signing out deletes it)."""
    return session is not None and session.session_key is not None and session.exists(session.session_key)


class TenantHints(Hints):
    """Pages under ``/t/<slug>/``."""

    def topic(self, actor: Actor) -> str:
        tenant = access.access_tenant(actor, self.scope["url_route"]["kwargs"]["slug"])
        return hints.tenant_topic(tenant.id)


class PlatformHints(Hints):
    """Pages of platform admins."""

    def topic(self, actor: Actor) -> str:
        access.require_platform_admin(actor)
        return hints.PLATFORM_TOPIC
