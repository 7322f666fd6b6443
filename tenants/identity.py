"""From credentials to an actor."""

import datetime
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q
from django.http import HttpRequest

from kernel import clock, errors, ids, scope
from kernel.actors import Actor, ActorKind, Way
from tenants import access, second_factor, terms
from tenants.errors import AddressNotAllowed
from tenants.keys import digest_of
from tenants.models import ApiKey, KeyKind, KeyScope, Member, User, UserToken
from tenants.roles import Permission

CLI_USER_AGENT = "millpond-cli/"
_LAST_USE_RESOLUTION_SECONDS = 60


def actor_of_user(user: User, *, way: Way, address: str = "", request_id: str = "") -> Actor:
    """The actor a signed-in user is."""
    with scope.all_tenants():
        roles = tuple(Member.objects.filter(user=user).values_list("tenant_id", "role"))
    return _person(user, roles, way=way, address=address, request_id=request_id)


def _person(
    user: User, roles: tuple[tuple[uuid.UUID, str], ...], *, way: Way, address: str = "", request_id: str = ""
) -> Actor:
    return Actor(
        kind=ActorKind.USER,
        id=str(user.id),
        label=user.email,
        way=way,
        roles=roles,
        is_platform_admin=user.is_staff,
        address=address,
        request_id=request_id,
    )


def actor_of_request(request: HttpRequest, *, way: Way) -> Actor:
    """The actor of a request with a session.

    Raises:
        errors.Unauthenticated: nobody is signed in.
        SecondFactorMissing: the platform wants one of the user, who has none.
    """
    user = request.user
    if not isinstance(user, User) or not user.is_active:
        raise errors.Unauthenticated("Sign in first.")
    second_factor.require(user)
    return actor_of_user(user, way=way, address=address_of(request.META), request_id=getattr(request, "request_id", ""))


def actor_of_bearer(text: str, *, way: Way, address: str = "", request_id: str = "") -> Actor:
    """The actor behind a user token (``mpu_``) or an API key with the scope ``manage`` (``mp_``).

    Raises:
        errors.Unauthenticated: unknown, expired or revoked.
        errors.Forbidden: an API key without the scope ``manage``; or ``SecondFactorMissing``.
        AddressNotAllowed: an API key for other addresses.
    """
    public_id = ids.public_part(text)
    digest = digest_of(text)
    live = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=clock.now()))
    if text.startswith("mpu_"):
        token = UserToken.objects.select_related("user").filter(live, public_id=public_id, digest=digest).first()
        if token is None or not token.user.is_active:
            raise errors.Unauthenticated(
                "The token is unknown, expired or revoked; sign in again.", code="invalid_token"
            )
        second_factor.require(token.user)
        _touch(UserToken.objects.filter(id=token.id))
        return actor_of_user(token.user, way=way, address=address, request_id=request_id)
    with scope.all_tenants():
        key = (
            ApiKey.objects.select_related("service_account")
            .filter(live, _is_text_of(digest), tenant__suspended_at=None)
            .first()
        )
        if key is None:
            raise errors.Unauthenticated("The API key is unknown, expired or revoked.", code="invalid_api_key")
        if KeyScope.MANAGE not in key.scopes:
            raise errors.Forbidden(
                "This API key is for inference only; the REST API needs a key with the scope manage.",
                code="scope_missing",
            )
        if not terms.admits(key.allowed_addresses, address):
            raise AddressNotAllowed("This API key may not be used from your address.")
        _touch(ApiKey.objects.filter(id=key.id))
    account = key.service_account
    if account is not None and account.disabled_at is not None:  # its keys are revoked with it; a second lock
        raise errors.Unauthenticated("The API key is unknown, expired or revoked.", code="invalid_api_key")
    return _actor_of_key(key, way=way, address=address, request_id=request_id)


def _actor_of_key(key: ApiKey, *, way: Way, address: str = "", request_id: str = "") -> Actor:
    """The actor that a key with the scope ``manage`` is."""
    account = key.service_account
    return Actor(
        kind=ActorKind.KEY,
        id=str(key.id),
        label=f"service account {account.name}" if account else key.name,
        way=way,
        tenant_id=key.tenant_id,
        roles=((key.tenant_id, account.role),) if account else (),
        address=address,
        request_id=request_id,
    )


def picking_revisions(keys: Iterable[ApiKey]) -> frozenset[uuid.UUID]:
    """Those of ``keys`` (their ids) with which a call may name the revision that answers it.

    It shows what its tenant deploys beside each other, so it takes the right to deploy there: of the person whose
    playground key it is, or of a key that manages. At most two queries.
    """
    keys = list(keys)
    people = _people(key.created_by_id for key in keys if key.kind == KeyKind.PLAYGROUND)

    def may(key: ApiKey) -> bool:
        if key.kind == KeyKind.PLAYGROUND:
            actor = people.get(key.created_by_id)
        else:
            actor = _actor_of_key(key, way=Way.SYSTEM) if KeyScope.MANAGE in key.scopes else None
        return actor is not None and access.can(actor, Permission.DEPLOY, key.tenant_id)

    return frozenset(key.id for key in keys if may(key))


def _people(ids_of: Iterable[uuid.UUID | None]) -> Mapping[uuid.UUID | None, Actor]:
    """The actors that active users are, by id."""
    roles: dict[uuid.UUID, list[tuple[uuid.UUID, str]]] = {user_id: [] for user_id in ids_of if user_id}
    if not roles:
        return {}
    with scope.all_tenants():
        for member in Member.objects.filter(user_id__in=roles):
            roles[member.user_id].append((member.tenant_id, member.role))
    users = User.objects.filter(id__in=roles, is_active=True)
    return {user.id: _person(user, tuple(roles[user.id]), way=Way.SYSTEM) for user in users}


def _is_text_of(digest: str) -> Q:
    """Of the key's text, or of the one before the last rotation while that is accepted."""
    return Q(digest=digest) | Q(previous_digest=digest, previous_expires_at__gt=clock.now())


def _touch(rows: Any) -> None:
    """Note the last use, at most once a minute per secret, so that reads do not become writes."""
    now = clock.now()
    edge = now.timestamp() - _LAST_USE_RESOLUTION_SECONDS
    if (last := rows.values_list("last_used_at", flat=True).first()) is None or last.timestamp() < edge:
        rows.update(last_used_at=now)


def note_key_uses(uses: Mapping[uuid.UUID, datetime.datetime]) -> None:
    """Note when keys were last used for inference, as told later; never moves back, nor beyond now."""
    now = clock.now()
    with scope.all_tenants():
        for key_id, moment in uses.items():
            edge = moment - datetime.timedelta(seconds=_LAST_USE_RESOLUTION_SECONDS)
            older = Q(last_used_at__isnull=True) | Q(last_used_at__lt=edge)
            ApiKey.objects.filter(older, id=key_id).update(last_used_at=min(moment, now))


def address_of(meta: dict[str, Any]) -> str:
    """The peer's address as the server saw it (the ASGI server resolves trusted proxies)."""
    return str(meta.get("REMOTE_ADDR", ""))[:64]


def way_of(user_agent: str, default: Way) -> Way:
    """CLI when our command line asks, else ``default``."""
    return Way.CLI if user_agent.startswith(CLI_USER_AGENT) else default


def user_by_id(user_id: uuid.UUID) -> User | None:
    """An active user who has what the platform wants of them."""
    user = User.objects.filter(id=user_id, is_active=True).first()
    if user is not None and second_factor.is_required_of(user) and not second_factor.is_enrolled(user):
        return None
    return user
