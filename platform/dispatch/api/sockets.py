"""WebSockets that carry hints to agents and gateways: "something changed, read again", and nothing else."""

import abc
import uuid
from typing import Any, ClassVar

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path

from fleet import gateways, machine_auth
from kernel.errors import PlatformError
from ledger import generations, hints
from runtime.wire import codec
from runtime.wire.errors import MalformedMessage
from runtime.wire.joining import Hint


class HintsConsumer(AsyncWebsocketConsumer, abc.ABC):
    """Joins the group of its machine's counter and forwards each new value; the current one comes first."""

    topic: ClassVar[str] = ""
    group = ""

    @abc.abstractmethod
    def counter(self, header: str) -> str:
        """The name of the counter that the credential in ``header`` may watch; raises :class:`PlatformError`."""

    async def connect(self) -> None:
        """Authenticate by header; a machine that is not known is refused before the handshake ends."""
        try:
            counter = await database_sync_to_async(self._enter)()
        except PlatformError:
            await self.close()
            return
        self.group = hints.group_of(counter)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        # Read only now: a change before this is in the number, one after it comes as a hint.
        await self._say(await database_sync_to_async(generations.current)(counter))

    def _enter(self) -> str:
        headers = {name.lower(): value for name, value in self.scope["headers"]}
        return self.counter(headers.get(b"authorization", b"").decode("latin-1"))

    async def disconnect(self, code: int) -> None:
        """Leave the group."""
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Machines have nothing to say here."""

    async def hint(self, event: dict[str, Any]) -> None:
        """A counter rose."""
        await self._say(int(event["data"].get("generation", 0)))

    async def _say(self, generation: int) -> None:
        await self.send(text_data=codec.encode(Hint(topic=self.topic, generation=generation)).decode())


class NodeHints(HintsConsumer):
    """For one agent."""

    topic = "assignments"

    def counter(self, header: str) -> str:
        return generations.of_node(machine_auth.node_of(header).id)


class GatewayHints(HintsConsumer):
    """For one gateway, which says here, too, what it serves from: sooner than its next report would."""

    topic = "routes"
    gateway_id: uuid.UUID | None = None

    def counter(self, header: str) -> str:
        self.gateway_id = machine_auth.gateway_of(header).id
        return generations.ROUTES

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Take an acknowledgement; anything else ends the socket, and reports go on saying it."""
        try:
            said = codec.decode(text_data or "", Hint)
        except MalformedMessage:
            await self.close()
            return
        if said.topic == self.topic and self.gateway_id is not None:
            await database_sync_to_async(self._acknowledge)(self.gateway_id, said.generation)

    def _acknowledge(self, gateway_id: uuid.UUID, generation: int) -> None:
        if generation <= generations.current(generations.ROUTES):  # nobody serves from a table that there is not
            gateways.acknowledge(gateway_id, generation)


urlpatterns = [
    path("internal/v1/nodes/hints", NodeHints.as_asgi()),
    path("internal/v1/gateways/hints", GatewayHints.as_asgi()),
]
