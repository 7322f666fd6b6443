"""Verbs on tenants, members and secrets: each is one transaction of check, change, audit and generation."""

import datetime
import re
import uuid
from collections.abc import Sequence

from django.conf import settings
from django.db import transaction

from kernel import clock, errors, ids, scope
from kernel.actors import Actor
from ledger import generations, hints
from ledger.record import record
from tenants import access
from tenants.errors import KeyRevoked, LastOwner, SlugTaken
from tenants.models import SLUG, SLUG_PATTERN, ApiKey, KeyKind, KeyScope, Member, Tenant, User, UserToken
from tenants.roles import Permission, Role, permits

PLAYGROUND_KEY_LIFETIME = datetime.timedelta(minutes=15)
USER_TOKEN_LIFETIME = datetime.timedelta(days=30)


def digest_of(text: str) -> str:
    """Keyed hash of one of our secrets, with the installation's pepper."""
    return ids.keyed_digest(text, settings.KEY_PEPPER)


def create_tenant(*, actor: Actor, slug: str, name: str, owner: User | None = None) -> Tenant:
    """Make a tenant; platform admins only. ``owner`` becomes its first member."""
    access.require_platform_admin(actor)
    if not re.match(SLUG_PATTERN, slug):
        raise errors.InvalidInput(str(SLUG.message), code="invalid_slug", data={"field": "slug"})
    with transaction.atomic():
        tenant, created = Tenant.objects.get_or_create(slug=slug, defaults={"name": name or slug})
        if not created:
            raise SlugTaken(f"A tenant {slug!r} exists already; choose another name.", data={"field": "slug"})
        if owner is not None:
            with scope.tenant(tenant.id):
                Member.objects.create(tenant=tenant, user=owner, role=Role.OWNER)
        record(
            actor=actor,
            action="tenant.created",
            subject_kind="tenant",
            subject_id=tenant.id,
            tenant_id=tenant.id,
            subject_label=slug,
        )
        generations.bump(generations.ROUTES)
    return tenant


def suspend_tenant(*, actor: Actor, tenant: Tenant, reason: str) -> Tenant:
    """Stop a tenant's calls and changes; what it has stays and can be read. Platform admins only."""
    return _set_suspended(actor, tenant, clock.now(), "tenant.suspended", reason)


def resume_tenant(*, actor: Actor, tenant: Tenant) -> Tenant:
    """Let a suspended tenant call and change again."""
    return _set_suspended(actor, tenant, None, "tenant.resumed", "")


def _set_suspended(actor: Actor, tenant: Tenant, at: datetime.datetime | None, action: str, reason: str) -> Tenant:
    access.require_platform_admin(actor)
    with transaction.atomic():
        changed = Tenant.objects.filter(id=tenant.id, suspended_at__isnull=at is not None).update(suspended_at=at)
        if changed:
            record(
                actor=actor,
                action=action,
                subject_kind="tenant",
                subject_id=tenant.id,
                tenant_id=tenant.id,
                subject_label=tenant.slug,
                message=reason,
            )
            hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "tenant"})
            hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "tenants"})
            generations.bump(generations.ROUTES)
        tenant.refresh_from_db()
    return tenant


def set_member(*, actor: Actor, tenant: Tenant, user: User, role: Role) -> Member:
    """Give ``user`` the ``role`` in ``tenant``, as a new member or instead of the old role."""
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    if role is Role.OWNER:
        access.require(actor, Permission.MANAGE_TENANT, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        member = Member.objects.filter(user=user).first()
        if member is not None and member.role == Role.OWNER:
            access.require(actor, Permission.MANAGE_TENANT, tenant.id)
            _keep_an_owner(tenant, member, role)
        member, _created = Member.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role.value})
        record(
            actor=actor,
            action="member.set",
            subject_kind="member",
            subject_id=member.id,
            tenant_id=tenant.id,
            subject_label=user.email,
            data={"role": role.value},
        )
        if not permits(role, Permission.INFER):
            _end_playground(tenant, user)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "members"})
    return member


def remove_member(*, actor: Actor, tenant: Tenant, member: Member) -> None:
    """Take a user out of a tenant; the last owner stays."""
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if member.role == Role.OWNER:
            access.require(actor, Permission.MANAGE_TENANT, tenant.id)
            _keep_an_owner(tenant, member, None)
        record(
            actor=actor,
            action="member.removed",
            subject_kind="member",
            subject_id=member.id,
            tenant_id=tenant.id,
            subject_label=member.user.email,
        )
        member.delete()
        _end_playground(tenant, member.user)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "members"})


def _end_playground(tenant: Tenant, user: User) -> None:
    """What a person was given for the playground ends with the right to use it, not with its quarter of an hour."""
    keys = ApiKey.objects.filter(tenant=tenant, created_by=user, kind=KeyKind.PLAYGROUND, revoked_at=None)
    if keys.update(revoked_at=clock.now()):
        generations.bump(generations.ROUTES)


def _keep_an_owner(tenant: Tenant, member: Member, role: Role | None) -> None:
    if role is not Role.OWNER and access.owners_left_without(tenant, member) == 0:
        raise LastOwner("This is the tenant's last owner; make somebody else owner first.")


def create_api_key(
    *,
    actor: Actor,
    tenant: Tenant,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime.datetime | None = None,
    allowed_endpoints: Sequence[str] = (),
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    max_parallel_requests: int | None = None,
) -> tuple[ApiKey, str]:
    """Make a key; returns the row and the text, which is shown once and kept nowhere."""
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    known = {choice.value for choice in KeyScope}
    if not scopes or not set(scopes) <= known:
        raise errors.InvalidInput(
            f"Scopes are {', '.join(sorted(known))}; name at least one.", data={"field": "scopes"}
        )
    if KeyScope.MANAGE.value in scopes:
        for permission in sorted(access.KEY_PERMISSIONS):  # a key carries no more than who makes it
            access.require(actor, permission, tenant.id)
    if not name.strip():
        raise errors.InvalidInput("Give the key a name, so that people know what uses it.", data={"field": "name"})
    if expires_at is not None and expires_at <= clock.now():
        raise errors.InvalidInput("The expiry lies in the past.", data={"field": "expires_at"})
    return _mint_key(
        actor=actor,
        tenant=tenant,
        name=name.strip(),
        kind=KeyKind.KEY,
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        allowed_endpoints=list(allowed_endpoints),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_parallel_requests=max_parallel_requests,
    )


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


def _mint_key(*, actor: Actor, tenant: Tenant, name: str, **fields: object) -> tuple[ApiKey, str]:
    secret = ids.new_secret("mp")
    with transaction.atomic(), scope.tenant(tenant.id):
        key = ApiKey.objects.create(
            tenant=tenant,
            name=name,
            public_id=secret.public_id,
            digest=digest_of(secret.text),
            last4=secret.last4,
            created_at=clock.now(),
            created_by_id=_user_id(actor),
            **fields,
        )
        record(
            actor=actor,
            action="api_key.created",
            subject_kind="api_key",
            subject_id=key.id,
            tenant_id=tenant.id,
            subject_label=name,
            data={"scopes": list(key.scopes), "kind": key.kind},
        )
        generations.bump(generations.ROUTES)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "api_keys"})
    return key, secret.text


def revoke_api_key(*, actor: Actor, tenant: Tenant, key: ApiKey) -> ApiKey:
    """Refuse the key from now on, everywhere; it cannot be undone."""
    access.require(actor, Permission.MANAGE_KEYS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        if not ApiKey.objects.filter(id=key.id, revoked_at=None).update(revoked_at=clock.now()):
            raise KeyRevoked("This key is revoked already.")
        record(
            actor=actor,
            action="api_key.revoked",
            subject_kind="api_key",
            subject_id=key.id,
            tenant_id=tenant.id,
            subject_label=key.name,
        )
        generations.bump(generations.ROUTES)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "api_keys"})
        key.refresh_from_db()
    return key


def create_user_token(*, actor: Actor, user: User, name: str) -> tuple[UserToken, str]:
    """A token with which REST and command line act as ``user`` for 30 days."""
    secret = ids.new_secret("mpu")
    now = clock.now()
    with transaction.atomic():
        token = UserToken.objects.create(
            user=user,
            name=name[:120] or "token",
            public_id=secret.public_id,
            digest=digest_of(secret.text),
            created_at=now,
            expires_at=now + USER_TOKEN_LIFETIME,
        )
        record(
            actor=actor,
            action="user_token.created",
            subject_kind="user_token",
            subject_id=token.id,
            tenant_id=None,
            subject_label=user.email,
        )
    return token, secret.text


def revoke_user_token(*, actor: Actor, token: UserToken) -> None:
    """Refuse the token from now on."""
    with transaction.atomic():
        UserToken.objects.filter(id=token.id, revoked_at=None).update(revoked_at=clock.now())
        record(actor=actor, action="user_token.revoked", subject_kind="user_token", subject_id=token.id, tenant_id=None)


def _user_id(actor: Actor) -> uuid.UUID | None:
    return uuid.UUID(actor.id) if actor.kind == "user" else None
