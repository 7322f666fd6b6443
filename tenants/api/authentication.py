"""Who calls a REST route: a person's token or session, or an API key with the scope ``manage``.

Apart from the views, since DRF imports this module while it loads its settings.
"""

import uuid

from rest_framework import authentication
from rest_framework.request import Request

from kernel.actors import Actor, ActorKind, Way
from tenants import identity, second_factor
from tenants.models import User


class Caller:
    """What DRF calls ``request.user`` on these routes: the actor, and the user where there is one."""

    is_authenticated = True

    def __init__(self, actor: Actor, user: User | None) -> None:
        self.actor = actor
        self.user = user
        self.pk = actor.id

    def __str__(self) -> str:
        return self.actor.label


class BearerAuthentication(authentication.BaseAuthentication):
    """``Authorization: Bearer mpu_…`` (a person) or ``mp_…`` (a key with the scope ``manage``)."""

    def authenticate(self, request: Request) -> tuple[Caller, str] | None:
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            return None
        actor = identity.actor_of_bearer(
            text.strip(),
            way=identity.way_of(request.META.get("HTTP_USER_AGENT", ""), Way.API),
            address=identity.address_of(request.META),
            request_id=getattr(request._request, "request_id", ""),
        )
        user = None
        if actor.kind is ActorKind.USER:
            user = identity.user_by_id(uuid.UUID(actor.id))
        return Caller(actor, user), "bearer"

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class SessionAuthentication(authentication.SessionAuthentication):
    """The console's session cookie, with CSRF checked."""

    def authenticate(self, request: Request) -> tuple[Caller, None] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        user = found[0]
        assert isinstance(user, User)
        second_factor.require(user)
        actor = identity.actor_of_user(
            user,
            way=Way.CONSOLE,
            address=identity.address_of(request.META),
            request_id=getattr(request._request, "request_id", ""),
        )
        return Caller(actor, user), None
