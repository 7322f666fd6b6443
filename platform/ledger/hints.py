"""Hints over the channel layer: "something changed, look again". At most once; nobody relies on one arriving."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

logger = logging.getLogger(__name__)

MESSAGE_TYPE = "hint"


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
        async_to_sync(layer.group_send)(group_of(topic), message)
    except Exception as exc:  # boundary: any failure of the layer is a lost hint, which the design allows
        logger.warning("hint lost", extra={"topic": topic, "error": type(exc).__name__})


def push_on_commit(topic: str, data: Mapping[str, Any] | None = None) -> None:
    """Send a hint once the current transaction is committed (at once outside one)."""
    transaction.on_commit(lambda: push(topic, data))


def tenant_topic(tenant_id: object) -> str:
    """Topic of everything that changes on a tenant's pages."""
    return f"tenant:{tenant_id}"


PLATFORM_TOPIC = "platform"
