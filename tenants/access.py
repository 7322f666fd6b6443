"""The gate: which tenant an actor may enter, and what it may do there.

What an actor may not see does not exist (404); what it may see but not do is 403 and names the role that could.
"""

import uuid

from kernel import errors, scope
from kernel.actors import Actor, ActorKind
from tenants.errors import TenantSuspended
from tenants.models import ApiKey, Invitation, KeyKind, Member, ServiceAccount, Tenant
from tenants.roles import Permission, Role, permits, weakest_role_with

# What an API key with the scope `manage` may do in its tenant.
KEY_PERMISSIONS = frozenset(
    {Permission.VIEW, Permission.PUBLISH, Permission.DEPLOY, Permission.MANAGE_KEYS, Permission.GRANT}
)


def can(actor: Actor, permission: Permission, tenant_id: uuid.UUID) -> bool:
    """The one answer to "may this actor do that in this tenant", used by REST, console and sockets."""
    if actor.kind is ActorKind.SYSTEM or actor.is_platform_admin:
        return True
    if actor.kind is ActorKind.KEY:  # one of a service account has that one's role on top
        allowed = not actor.roles or permits(actor.role_in(tenant_id), permission)
        return actor.tenant_id == tenant_id and permission in KEY_PERMISSIONS and allowed
    return permits(actor.role_in(tenant_id), permission)


def access_tenant(actor: Actor, slug: str, permission: Permission = Permission.VIEW) -> Tenant:
    """Return the tenant ``slug`` if ``actor`` may do ``permission`` there.

    Raises:
        errors.NotFound: no such tenant, or the actor is a stranger to it.
        errors.Forbidden: the actor's role does not carry ``permission``.
        TenantSuspended: the tenant is suspended and the permission changes something.
    """
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None or not can(actor, Permission.VIEW, tenant.id):
        raise errors.NotFound(f"There is no tenant {slug!r}, or you are not a member of it.", code="tenant_not_found")
    require(actor, permission, tenant.id)
    if tenant.suspended_at and permission is not Permission.VIEW and not actor.is_platform_admin:
        raise TenantSuspended(f"Tenant {slug!r} is suspended: nothing can be changed. Ask a platform admin.")
    return tenant


def require(actor: Actor, permission: Permission, tenant_id: uuid.UUID) -> None:
    """Raise unless ``actor`` may do ``permission`` in ``tenant_id``."""
    if not can(actor, permission, tenant_id):
        if actor.kind is ActorKind.KEY:
            raise errors.Forbidden(
                f"API keys cannot do this ({permission.value}); sign in as a member.",
                data={"permission": permission.value},
            )
        role = weakest_role_with(permission)
        raise errors.Forbidden(
            f"This needs the role {role.value} or above in the tenant; ask one of its owners.",
            data={"permission": permission.value, "role_needed": role.value},
        )


def require_platform_admin(actor: Actor) -> None:
    """Raise unless ``actor`` is above tenants."""
    if not actor.is_platform_admin and actor.kind is not ActorKind.SYSTEM:
        raise errors.Forbidden("Only platform admins may do this.", data={"role_needed": "platform_admin"})


def tenants_of(actor: Actor, most: int | None = None) -> list[Tenant]:
    """Tenants that the actor may enter, by slug; the first ``most`` of them."""
    if actor.is_platform_admin:
        return list(Tenant.objects.all()[:most])
    if actor.kind is ActorKind.KEY:
        return list(Tenant.objects.filter(id__in=[actor.tenant_id] if actor.tenant_id else [])[:most])
    return list(Tenant.objects.filter(id__in=[tenant_id for tenant_id, _ in actor.roles])[:most])


def access_key(actor: Actor, tenant: Tenant, key_id: uuid.UUID, permission: Permission = Permission.VIEW) -> ApiKey:
    """Return a key of ``tenant``; playground keys are not addressable."""
    require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        key = ApiKey.objects.select_related("service_account").filter(id=key_id, kind=KeyKind.KEY).first()
    if key is None:
        raise errors.NotFound(f"There is no API key {key_id} in tenant {tenant.slug!r}.", code="api_key_not_found")
    return key


def access_member(
    actor: Actor, tenant: Tenant, member_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> Member:
    """Return a member of ``tenant``."""
    require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        member = Member.objects.select_related("user").filter(id=member_id).first()
    if member is None:
        raise errors.NotFound(f"There is no member {member_id} in tenant {tenant.slug!r}.", code="member_not_found")
    return member


def access_service_account(
    actor: Actor, tenant: Tenant, account_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> ServiceAccount:
    """Return a service account of ``tenant`` that is not deleted."""
    require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        account = ServiceAccount.objects.filter(id=account_id, deleted_at=None).first()
    if account is None:
        raise errors.NotFound(
            f"There is no service account {account_id} in tenant {tenant.slug!r}.", code="service_account_not_found"
        )
    return account


def access_invitation(actor: Actor, tenant: Tenant, invitation_id: uuid.UUID) -> Invitation:
    """Return an invitation of ``tenant`` that is neither accepted nor revoked; members who invite see them."""
    require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with scope.tenant(tenant.id):
        found = Invitation.objects.filter(id=invitation_id, accepted_at=None, revoked_at=None).first()
    if found is None:
        raise errors.NotFound(
            f"There is no open invitation {invitation_id} in tenant {tenant.slug!r}.", code="invitation_not_found"
        )
    return found


def owners_left_without(tenant: Tenant, member: Member) -> int:
    """How many owners ``tenant`` would have without ``member``."""
    with scope.tenant(tenant.id):
        return Member.objects.filter(role=Role.OWNER).exclude(id=member.id).count()
