"""Hints over WebSockets: by credential, for one's own counter only, and never the truth itself."""

import asyncio
import uuid

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.db import connections, transaction

from dispatch.api.sockets import urlpatterns
from fleet import joining
from fleet.models import Gateway, MachineKind
from ledger import generations
from runtime.wire import codec
from runtime.wire.joining import Hint
from tests.build.machines import join_token

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]


@pytest.fixture(autouse=True)
async def _closed_connections():
    yield
    await sync_to_async(connections.close_all)()


@sync_to_async
def a_node():
    token = join_token()
    return joining.join_node(token=token, name="n", machine_id=str(uuid.uuid4()), version="1")


@sync_to_async
def a_gateway():
    token = join_token(MachineKind.GATEWAY)
    return joining.join_gateway(token=token, name="g", machine_id=str(uuid.uuid4()), version="1")


@sync_to_async
def bump(name):
    with transaction.atomic():
        return generations.bump(name)


class Socket:
    """One WebSocket of a machine, spoken in ASGI messages."""

    def __init__(self, path, credential):
        headers = [(b"authorization", f"Bearer {credential}".encode())] if credential else []
        scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"", "subprotocols": []}
        self.asgi = ApplicationCommunicator(URLRouter(urlpatterns), scope)

    async def opens(self):
        await self.asgi.send_input({"type": "websocket.connect"})
        return (await self.asgi.receive_output(timeout=15))["type"] == "websocket.accept"

    async def hint(self):
        return codec.decode((await self.asgi.receive_output(timeout=15))["text"], Hint)

    async def say(self, text):
        await self.asgi.send_input({"type": "websocket.receive", "text": text})

    async def settled(self):
        """Return when what was said is dealt with: messages are taken in order, and a hint follows this one."""
        value = await bump(generations.ROUTES)
        assert (await self.hint()).generation == value

    async def close(self):
        await self.asgi.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.asgi.wait(timeout=15)


async def test_a_node_hears_of_its_own_counter():
    (node, credential), (other, _) = await a_node(), await a_node()
    connected = Socket("/internal/v1/nodes/hints", credential)
    assert await connected.opens()
    assert await connected.hint() == Hint(topic="assignments", generation=1)
    await bump(generations.of_node(other.id))
    value = await bump(generations.of_node(node.id))
    assert await connected.hint() == Hint(topic="assignments", generation=value)
    await connected.close()


async def test_a_gateway_hears_of_routes():
    _, credential = await a_gateway()
    connected = Socket("/internal/v1/gateways/hints", credential)
    assert await connected.opens()
    first = await connected.hint()
    value = await bump(generations.ROUTES)
    assert (first.topic, await connected.hint()) == ("routes", Hint(topic="routes", generation=value))
    await connected.close()


@pytest.mark.parametrize("path", ["/internal/v1/nodes/hints", "/internal/v1/gateways/hints"])
async def test_strangers_are_refused_before_the_handshake_ends(path):
    for credential in ("", "mpn_abcdefghjkmn_nonsense", "mp_abcdefghjkmn_nonsense"):
        assert not await Socket(path, credential).opens()
    _, wrong_kind = await (a_gateway() if "nodes" in path else a_node())
    assert not await Socket(path, wrong_kind).opens()


async def test_a_gateway_acknowledges_on_its_socket():
    gateway, credential = await a_gateway()
    value = await bump(generations.ROUTES)
    connected = Socket("/internal/v1/gateways/hints", credential)
    assert await connected.opens()
    assert await connected.hint() == Hint(topic="routes", generation=value)
    for generation, stands in ((value - 1, value - 1), (value, value), (value - 1, value), (value + 50, value)):
        await connected.say(codec.encode(Hint(topic="routes", generation=generation)).decode())
        async with asyncio.timeout(15):
            await connected.settled()
        assert (await applied(gateway)) == stands
    await connected.say("no hint")
    assert (await connected.asgi.receive_output(timeout=15))["type"] == "websocket.close"
    await connected.close()


@sync_to_async
def applied(gateway):
    return Gateway.objects.get(id=gateway.id).applied_generation
