"""Who uploads: the same credentials, CSRF rule and roles as on every REST route, outside Django's request cycle."""

import io
import re
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib import auth
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from rest_framework.request import Request

from kernel import errors, ids
from kernel.actors import Actor
from tenants import access
from tenants.api.authentication import BearerAuthentication, Caller, SessionAuthentication
from tenants.models import Tenant
from tenants.roles import Permission

_SANE_ID = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


def request_id_of(headers: dict[str, str]) -> str:
    """The caller's request id where it is sane, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _SANE_ID.match(given) else str(ids.new_id())


def identify(scope: dict[str, Any], slug: str, permission: Permission, request_id: str) -> tuple[Actor, Tenant]:
    """Return the actor and the tenant, if the actor may do ``permission`` there.

    Raises:
        errors.PlatformError, rest_framework.exceptions.APIException: as on every REST route.
    """
    raw = ASGIRequest(scope, io.BytesIO())
    try:
        raw.get_host()
    except DisallowedHost as exc:
        raise errors.InvalidInput("The Host header is not one that this server answers to.", code="host") from exc
    raw.request_id = request_id  # type: ignore[attr-defined]
    store = import_module(settings.SESSION_ENGINE).SessionStore
    raw.session = store(raw.COOKIES.get(settings.SESSION_COOKIE_NAME))
    raw.user = auth.get_user(raw)
    caller: object = Request(raw, authenticators=[BearerAuthentication(), SessionAuthentication()]).user
    if not isinstance(caller, Caller):
        raise errors.Unauthenticated(
            "Sign in, or send Authorization: Bearer with a token or an API key of scope manage."
        )
    return caller.actor, access.access_tenant(caller.actor, slug, permission)
