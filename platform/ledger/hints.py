"""Hints over the channel layer: "something changed, look again". At most once; nobody relies on one arriving."""

import asyncio
import logging
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from asgiref.sync import async_to_sync
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.db import transaction

logger = logging.getLogger(__name__)

MESSAGE_TYPE = "hint"
#: Longest wait for the layer; what takes longer is lost.
PATIENCE_SECONDS: Final = 5.0


class _Sender:
    """A thread with an event loop of its own, and with it connections to the layer that are kept.

    ``async_to_sync`` makes a loop, and a connection, for every call: ten times the price of what it sends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def send(self, group: str, message: Mapping[str, Any]) -> None:
        """Send and wait until it is sent; raises what the layer raises, or ``TimeoutError``."""
        sending = asyncio.run_coroutine_threadsafe(_group_send(group, message), self._running())
        try:
            sending.result(PATIENCE_SECONDS)
        except TimeoutError:
            sending.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():  # a fork has the loop, but not its thread
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="hints", daemon=True).start()
            return self._loop


async def _group_send(group: str, message: Mapping[str, Any]) -> None:
    await get_channel_layer().group_send(group, message)


_sender: Final = _Sender()


def group_of(topic: str) -> str:
    """Channel-layer group of a topic (the layer allows letters, digits, ``-_.``)."""
    return "hint." + re.sub(r"[^A-Za-z0-9_.-]", ".", topic)


def push(topic: str, data: Mapping[str, Any] | None = None) -> None:
    """Send a hint now. A layer that is down costs latency, never the change itself."""
    layer = get_channel_layer()
    if layer is None:
        return
    message = {"type": MESSAGE_TYPE, "topic": topic, "data": dict(data or {})}
    try:
        if isinstance(layer, InMemoryChannelLayer):  # its queues belong to the loop of those who listen
            async_to_sync(layer.group_send)(group_of(topic), message)
        else:
            _sender.send(group_of(topic), message)
    except Exception as exc:  # boundary: any failure of the layer is a lost hint, which the design allows
        logger.warning("hint lost", extra={"topic": topic, "error": type(exc).__name__})


def push_on_commit(topic: str, data: Mapping[str, Any] | None = None) -> None:
    """Send a hint once the current transaction is committed (at once outside one)."""
    transaction.on_commit(lambda: push(topic, data))


def tenant_topic(tenant_id: object) -> str:
    """Topic of everything that changes on a tenant's pages."""
    return f"tenant:{tenant_id}"


PLATFORM_TOPIC = "platform"
