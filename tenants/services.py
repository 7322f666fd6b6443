"""Verbs on tenants, members and user tokens: each is one transaction of check, change, audit and generation."""

import datetime
import re
from typing import Final

from django.db import transaction

from kernel import clock, errors, ids, scope, texts
from kernel.actors import Actor, ActorKind
from ledger import generations, hints, outbox
from ledger.record import record
from tenants import access, invitations, keys
from tenants.errors import LastOwner, SlugTaken
from tenants.keys import create_api_key, digest_of, mint_playground_key, revoke_api_key, rotate_api_key, set_key_terms
from tenants.models import SLUG, SLUG_PATTERN, Member, Tenant, User, UserToken
from tenants.roles import Permission, Role, permits
from tenants.terms import Limits, check_limits

__all__ = [
    "create_api_key",
    "create_tenant",
    "create_user_token",
    "digest_of",
    "mint_playground_key",
    "remove_member",
    "resume_tenant",
    "revoke_api_key",
    "revoke_user_token",
    "rotate_api_key",
    "set_key_terms",
    "set_member",
    "set_tenant_limits",
    "suspend_tenant",
]

USER_TOKEN_LIFETIME = datetime.timedelta(days=30)
TENANT_CREATED: Final = "tenant.created"
MIN_WEIGHT: Final = 0.01
MAX_WEIGHT: Final = 100.0


def create_tenant(*, actor: Actor, slug: str, name: str, owner: User | None = None) -> Tenant:
    """Make a tenant; platform admins only. ``owner`` becomes its first member."""
    access.require_platform_admin(actor)
    if not re.match(SLUG_PATTERN, slug):
        raise errors.InvalidInput(str(SLUG.message), code="invalid_slug", data={"field": "slug"})
    with transaction.atomic():
        tenant, created = Tenant.objects.get_or_create(slug=slug, defaults={"name": texts.readable(name) or slug})
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
        outbox.emit(TENANT_CREATED, {"slug": slug})
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


def set_tenant_limits(*, actor: Actor, tenant: Tenant, limits: Limits, weight: float) -> Tenant:
    """Set what all keys of the tenant together may use, and its share beside others who wait. Platform admins only."""
    access.require_platform_admin(actor)
    check_limits(limits)
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise errors.InvalidInput(f"weight is from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}.", data={"field": "weight"})
    with transaction.atomic():
        Tenant.objects.filter(id=tenant.id).update(**limits.columns(), weight=weight)
        record(
            actor=actor,
            action="tenant.limits_set",
            subject_kind="tenant",
            subject_id=tenant.id,
            tenant_id=tenant.id,
            subject_label=tenant.slug,
            data={**limits.columns(), "weight": weight},
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
            keys.end_playground(tenant, user)
        invitations.end_of_maker(actor, tenant, user, role)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "members"})
    return member


def remove_member(*, actor: Actor, tenant: Tenant, member: Member) -> None:
    """Take a user out of a tenant, or leave it (anybody may take themselves out); the last owner stays."""
    leaving = actor.kind is ActorKind.USER and actor.id == str(member.user_id)
    if not leaving:
        access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        found = Member.objects.select_related("user").filter(id=member.id).first()  # as it is under the lock
        if found is None:
            raise errors.NotFound("This member is gone already.", code="member_not_found")
        member = found
        if member.role == Role.OWNER:
            if not leaving:
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
        keys.end_playground(tenant, member.user)
        invitations.end_of_maker(actor, tenant, member.user, None)
        hints.push_on_commit(hints.tenant_topic(tenant.id), {"what": "members"})


def _keep_an_owner(tenant: Tenant, member: Member, role: Role | None) -> None:
    if role is not Role.OWNER and access.owners_left_without(tenant, member) == 0:
        raise LastOwner("This is the tenant's last owner; make somebody else owner first.")


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
