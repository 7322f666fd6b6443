"""Verbs on API keys: each is one transaction of check, change, audit and generation.

A key that manages gives no more than it has: what it makes, changes or rotates stays within its own terms. Terms are
compared key by key; what several keys use together is bounded by the tenant's limits.
"""

import datetime
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from kernel import clock, errors, ids, scope, texts
from kernel.actors import Actor, ActorKind
from ledger import generations, hints
from ledger.record import record
from tenants import access, terms
from tenants.errors import KeyRevoked, KeyTooWide, ServiceAccountDisabled
from tenants.models import ApiKey, KeyKind, KeyScope, ServiceAccount, Tenant, User
from tenants.roles import Permission
from tenants.terms import Budget, Terms

PLAYGROUND_KEY_LIFETIME = datetime.timedelta(minutes=15)
DEFAULT_OVERLAP: Final = datetime.timedelta(hours=24)
MAX_OVERLAP: Final = datetime.timedelta(days=30)


def digest_of(text: str) -> str:
    """Keyed hash of one of our secrets, with the installation's pepper."""
    return ids.keyed_digest(text, settings.KEY_PEPPER)


def create_api_key(
    *,
    actor: Actor,
    tenant: Tenant,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime.datetime | None = None,
    allowed_endpoints: Sequence[str] = (),
    allowed_addresses: Sequence[str] = (),
    criticalities: Sequence[str] = (),
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    max_parallel_requests: int | None = None,
    budget: Budget | None = None,
    service_account: ServiceAccount | None = None,
) -> tuple[ApiKey, str]:
    """Make a key; returns the row and the text, which is shown once and kept nowhere.

    A key of a service account makes keys of that account, whatever is asked.

    Raises:
        KeyTooWide: the actor is a key, and the new one would be allowed more than it is.
        ServiceAccountDisabled: the account may have no keys now.
    """
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    known = {choice.value for choice in KeyScope}
    if not scopes or not set(scopes) <= known:
        raise errors.InvalidInput(
            f"Scopes are {', '.join(sorted(known))}; name at least one.", data={"field": "scopes"}
        )
    acting = _acting_key(actor)
    account = acting.service_account if acting is not None and acting.service_account else service_account
    _require_hold(actor, acting, tenant, scopes, account)
    asked = Terms(
        expires_at=expires_at,
        allowed_endpoints=tuple(allowed_endpoints),
        allowed_addresses=tuple(allowed_addresses),
        criticalities=tuple(criticalities),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_parallel_requests=max_parallel_requests,
        budget=budget,
    )
    giver = terms.terms_of(acting) if acting is not None else None
    if giver is not None:
        asked = terms.within(asked, giver)
    checked = terms.checked(asked, now=clock.now())
    _require_within(checked, giver)
    return _mint_key(
        actor=actor,
        tenant=tenant,
        name=_checked_name(name),
        kind=KeyKind.KEY,
        service_account=account,
        scopes=sorted(set(scopes)),
        **checked.columns(),
    )


def _checked_name(name: str) -> str:
    name = texts.readable(name)
    if not name:
        raise errors.InvalidInput("Give the key a name, so that people know what uses it.", data={"field": "name"})
    return name


def _acting_key(actor: Actor) -> ApiKey | None:
    """The key that acts; ``None`` for people and for the platform itself."""
    if actor.kind is not ActorKind.KEY:
        return None
    with scope.all_tenants():
        return ApiKey.objects.select_related("service_account").get(id=actor.id)


def _terms_of_actor(actor: Actor) -> Terms | None:
    acting = _acting_key(actor)
    return terms.terms_of(acting) if acting is not None else None


def _require_hold(
    actor: Actor, acting: ApiKey | None, tenant: Tenant, scopes: Sequence[str], account: ServiceAccount | None
) -> None:
    """Raise unless ``actor`` may get hold of a key with these scopes: a key carries no more than who has its text."""
    if acting is not None:  # it manages, which stands above inference: handing out inference keys is its work
        if (account.id if account else None) != acting.service_account_id:
            raise KeyTooWide(
                "A key gives no more than it has itself: keys of another service account are beyond it. "
                "Let a member do this.",
                data={"fields": ["service_account"]},
            )
    elif account is not None:
        access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    elif KeyScope.MANAGE.value in scopes:
        for permission in sorted(access.KEY_PERMISSIONS):
            access.require(actor, permission, tenant.id)


def _require_within(asked: Terms, giver: Terms | None) -> None:
    if giver is not None and (names := terms.wider(asked, giver)):
        raise KeyTooWide(
            f"A key gives no more than it has itself; beyond it: {', '.join(names)}. Let a member do this.",
            data={"fields": names},
        )


def set_key_terms(*, actor: Actor, tenant: Tenant, key: ApiKey, name: str, asked: Terms) -> ApiKey:
    """Change what the key is called and may, from the next route table on; its text stays.

    Raises:
        KeyRevoked: it is revoked.
        KeyTooWide: the actor is a key, and this one would be allowed more than it is.
    """
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    _require_hold(actor, _acting_key(actor), tenant, key.scopes, key.service_account)
    chosen = _checked_name(name)
    before = terms.terms_of(key)
    now = clock.now()
    # A key that has expired may be changed in all else without being given new life.
    checked = terms.checked(asked, now=now if asked.expires_at != before.expires_at else _long_ago())
    _require_within(checked, _terms_of_actor(actor))
    with transaction.atomic(), scope.tenant(tenant.id):
        if not ApiKey.objects.filter(id=key.id, revoked_at=None).update(name=chosen, **checked.columns()):
            raise KeyRevoked("This key is revoked; make a new one.")
        changed = {name: value for name, value in _plain(checked).items() if value != _plain(before)[name]}
        _note(actor, tenant, key, "api_key.changed", chosen, {"name": chosen, **changed})
        key.refresh_from_db()
    return key


def _long_ago() -> datetime.datetime:
    return datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _plain(of: Terms) -> dict[str, Any]:
    columns = of.columns()
    if of.expires_at is not None:
        columns["expires_at"] = of.expires_at.isoformat()
    return columns


def rotate_api_key(
    *, actor: Actor, tenant: Tenant, key: ApiKey, overlap: datetime.timedelta = DEFAULT_OVERLAP
) -> tuple[ApiKey, str]:
    """Give the key a new text, shown once; the old one is accepted for ``overlap`` more (0: not any more).

    The text before the old one, if its time is not over yet, ends now: a key has two texts at most.

    Raises:
        KeyRevoked: it is revoked.
        KeyTooWide: the actor is a key, and this one is allowed more than it is.
    """
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    if not datetime.timedelta(0) <= overlap <= MAX_OVERLAP:
        raise errors.InvalidInput(
            f"The overlap is from 0 to {int(MAX_OVERLAP.total_seconds())} seconds.", data={"field": "overlap_seconds"}
        )
    _require_hold(actor, _acting_key(actor), tenant, key.scopes, key.service_account)
    _require_within(terms.terms_of(key), _terms_of_actor(actor))
    secret = ids.new_secret("mp")
    now = clock.now()
    with transaction.atomic(), scope.tenant(tenant.id):
        row = ApiKey.objects.select_for_update(no_key=True).get(id=key.id)
        if row.revoked_at is not None:
            raise KeyRevoked("This key is revoked; make a new one.")
        row.previous_digest = row.digest if overlap else None
        row.previous_expires_at = now + overlap if overlap else None
        row.public_id, row.digest, row.last4 = secret.public_id, digest_of(secret.text), secret.last4
        row.rotated_at = now
        row.save(update_fields=["previous_digest", "previous_expires_at", "public_id", "digest", "last4", "rotated_at"])
        _note(actor, tenant, row, "api_key.rotated", row.name, {"overlap_seconds": int(overlap.total_seconds())})
    return row, secret.text


def mint_playground_key(*, actor: Actor, tenant: Tenant) -> tuple[ApiKey, str]:
    """A short-lived inference key for the signed-in user's own playground."""
    access.require(actor, Permission.INFER, tenant.id)
    return _mint_key(
        actor=actor,
        tenant=tenant,
        name=f"playground of {actor.label}"[:120],
        kind=KeyKind.PLAYGROUND,
        scopes=[KeyScope.INFERENCE.value],
        expires_at=clock.now() + PLAYGROUND_KEY_LIFETIME,
    )


def _mint_key(*, actor: Actor, tenant: Tenant, name: str, **fields: Any) -> tuple[ApiKey, str]:
    secret = ids.new_secret("mp")
    with transaction.atomic(), scope.tenant(tenant.id):
        if (account := fields.get("service_account")) is not None:
            _require_usable(account)
        key = ApiKey.objects.create(
            tenant=tenant,
            name=name,
            public_id=secret.public_id,
            digest=digest_of(secret.text),
            last4=secret.last4,
            created_at=clock.now(),
            created_by_id=maker_of(actor),
            **fields,
        )
        of = {"service_account": account.name} if account is not None else {}
        _note(actor, tenant, key, "api_key.created", name, {"scopes": list(key.scopes), "kind": key.kind, **of})
    return key, secret.text


def maker_of(actor: Actor) -> uuid.UUID | None:
    """The person to be named as maker: none where a key or the platform acts."""
    return uuid.UUID(actor.id) if actor.kind is ActorKind.USER else None


def _require_usable(account: ServiceAccount) -> None:
    """Under a lock, so that no key is made beside the account's end."""
    row = ServiceAccount.objects.select_for_update(no_key=True).get(id=account.id)
    if row.deleted_at is not None or row.disabled_at is not None:
        raise ServiceAccountDisabled(f"The service account {row.name!r} is disabled; enable it first.")


def revoke_api_key(*, actor: Actor, tenant: Tenant, key: ApiKey) -> ApiKey:
    """Refuse the key from now on, everywhere; it cannot be undone. Its old text after a rotation ends with it."""
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        rows = ApiKey.objects.filter(id=key.id)
        if not rows.filter(revoked_at=None).update(revoked_at=clock.now()):
            raise KeyRevoked("This key is revoked already.")
        rows.update(revoked_generation=_note(actor, tenant, key, "api_key.revoked", key.name, {}))
        key.refresh_from_db()
    return key


def end_playground(tenant: Tenant, user: User) -> None:
    """What a person was given for the playground ends with the right to use it, not with its quarter of an hour."""
    keys = ApiKey.objects.filter(tenant=tenant, created_by=user, kind=KeyKind.PLAYGROUND, revoked_at=None)
    if keys.update(revoked_at=clock.now()):
        generations.bump(generations.ROUTES)


def _note(actor: Actor, tenant: Tenant, key: ApiKey, action: str, label: str, data: Mapping[str, Any]) -> int:
    record(
        actor=actor,
        action=action,
        subject_kind="api_key",
        subject_id=key.id,
        tenant_id=tenant.id,
        subject_label=label,
        data=data,
    )
    generation = generations.bump(generations.ROUTES)
    hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "api_keys"})  # after the gateways' hint: they hurry
    return generation
