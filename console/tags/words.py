"""Words for values of the rooms, and small helpers, as filters of templates."""

import json
from collections.abc import Mapping
from typing import Any

from django import template
from django.contrib.messages.storage.base import Message

from console.presenters import isolation as isolations
from console.presenters import limits
from console.presenters import quotas as quota_amounts
from console.web import UNDO_TAG
from quotas.amount import Kind

register = template.Library()


@register.filter
def undo(message: Message) -> dict[str, Any] | None:
    """Where a toast's change is taken back and with which fields; ``None`` where it cannot be."""
    tags = message.extra_tags or ""
    found: dict[str, Any] | None = json.loads(tags.removeprefix(UNDO_TAG)) if tags.startswith(UNDO_TAG) else None
    return found


@register.filter
def quota_word(kind: Kind) -> str:
    """What a quota counts, as the head of a column."""
    return str(quota_amounts.WORDS[kind])


@register.filter
def period_text(value: str) -> str:
    """When a budget begins anew."""
    return str(limits.PERIODS[value])


@register.filter
def sticky_text(value: str) -> str:
    """What keeps a caller on one variant of an endpoint."""
    return str(limits.STICKY[value])


@register.filter
def isolation(value: str) -> str:
    """What a part of a device is, in words."""
    return str(isolations.CLASSES.get(value, value))


@register.filter
def required_isolation(value: str) -> str:
    """The least isolation that is accepted, in words."""
    return str(isolations.REQUIRED.get(value, value))


@register.filter
def wall(value: str) -> str:
    """A kind of isolation that a host may offer, in words."""
    return str(isolations.WALLS.get(value, value))


@register.filter
def item(mapping: Mapping[str, Any] | None, key: str) -> Any:
    """``mapping[key]``, or nothing."""
    return (mapping or {}).get(key)


@register.filter
def initials(label: str) -> str:
    """At most two letters for the round badge of a person."""
    words = label.replace("@", " ").replace(".", " ").split()
    return "".join(word[0] for word in words[:2]).upper() or "?"
