"""Where a person is signed in: devices, addresses, last seen; ending one or all others."""

import dataclasses
import hashlib
from typing import Any, Final

from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from kernel import clock
from kernel.actors import Actor
from tenants import identity, people
from tenants.models import User

SEEN_SECONDS: Final = 60
MAX_SHOWN: Final = 100
_BROWSERS: Final = (
    ("Edg", "Edge"), ("OPR", "Opera"), ("MicroMessenger", "WeChat"), ("Firefox", "Firefox"), ("Chrome", "Chrome"),
    ("Safari", "Safari"), ("curl", "curl"),
)  # fmt: skip
_SYSTEMS: Final = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One session as the page shows it."""

    id: int
    device: str | Promise
    address: str
    created_at: Any
    last_seen_at: Any
    is_current: bool


def seen(request: HttpRequest) -> None:
    """Note that the session is in use, at most once a minute, so that reads do not become writes."""
    key = request.session.session_key
    if not key:
        return
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        due = cache.add(f"seen:{digest}", 1, SEEN_SECONDS)
    except (RedisError, OSError):  # pages come out without the cache; the time of use is a nicety
        return
    if due:
        UserSession.objects.filter(session_key=key).update(
            last_seen_at=clock.now(), ip=identity.address_of(request.META) or "::"
        )


def device_of(user_agent: str) -> str | Promise:
    """What people call it: "Firefox, Linux". Made of words of ours alone, since anybody may send anything."""
    found = [name for mark, name in _BROWSERS if mark in user_agent][:1]
    found += [name for mark, name in _SYSTEMS if mark in user_agent][:1]
    return ", ".join(found) or _("Unknown device")


def of_user(user: User, request: HttpRequest) -> list[Row]:
    """The live sessions, this one first, then the last seen first. Dead rows are cleared away on the way."""
    current = request.session.session_key
    rows = [
        Row(
            id=one.pk,
            device=device_of(one.user_agent),
            address=one.ip,
            created_at=one.created_at,
            last_seen_at=one.last_seen_at,
            is_current=one.session_key == current,
        )
        for one in UserSession.objects.purge_and_list(user)
    ]
    rows.sort(key=lambda row: (row.is_current, row.last_seen_at), reverse=True)
    return rows[:MAX_SHOWN]


def end(*, actor: Actor, user: User, session_id: int) -> bool:
    """Sign out there; false where there is no such session of ``user``."""
    return people.end_sessions(actor, user, UserSession.objects.filter(user=user, pk=session_id)) == 1


def end_others(*, actor: Actor, user: User, request: HttpRequest) -> int:
    """Sign out everywhere but here; return from how many."""
    return people.end_sessions(
        actor, user, UserSession.objects.filter(user=user).exclude(session_key=request.session.session_key)
    )


def end_all(*, actor: Actor, user: User) -> int:
    """Sign ``user`` out everywhere, for somebody else who may."""
    return people.end_sessions(actor, user, UserSession.objects.filter(user=user))
