"""Verbs on service accounts: members that are no person. They have a role and keys, and never sign in.

A key of a service account may do what its role permits, and no more than any key may (``access.KEY_PERMISSIONS``).
Disabling or deleting one revokes all its keys in the same transaction; enabling it again brings none of them back.
"""

from typing import Any, Final

from django.db import IntegrityError, transaction

from kernel import clock, errors, scope, texts
from kernel.actors import Actor
from ledger import generations, hints
from ledger.record import record
from tenants import access
from tenants.keys import maker_of
from tenants.models import ApiKey, ServiceAccount, Tenant
from tenants.roles import SERVICE_ROLES, Permission, Role

MAX_PER_TENANT: Final = 200


def create_service_account(*, actor: Actor, tenant: Tenant, name: str, role: Role) -> ServiceAccount:
    """Make a service account without keys.

    Raises:
        errors.Conflict: the tenant has one of that name, or has the most it may have.
    """
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    chosen = _checked(name, role)
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if ServiceAccount.objects.filter(deleted_at=None).count() >= MAX_PER_TENANT:
            raise errors.Conflict(
                f"The tenant has {MAX_PER_TENANT} service accounts, which is the most.", code="too_many"
            )
        try:
            with transaction.atomic():
                account = ServiceAccount.objects.create(
                    tenant=tenant, name=chosen, role=role.value, created_by_id=maker_of(actor), created_at=clock.now()
                )
        except IntegrityError:
            raise errors.Conflict(
                f"There is a service account {chosen!r} already.", code="name_taken", data={"field": "name"}
            ) from None
        _note(actor, account, "service_account.created", {"role": role.value})
    return account


def _checked(name: str, role: Role) -> str:
    name = texts.readable(name)
    if not name:
        raise errors.InvalidInput("Give the service account a name.", data={"field": "name"})
    if role not in SERVICE_ROLES:
        raise errors.InvalidInput(
            "A service account is a viewer, a developer or an admin: owners are people.", data={"field": "role"}
        )
    return name


def set_service_role(*, actor: Actor, tenant: Tenant, account: ServiceAccount, role: Role) -> ServiceAccount:
    """Another role; its keys may do what that permits from the next call on, at gateways from their next table on."""
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    _checked(account.name, role)
    with transaction.atomic(), scope.tenant(tenant.id):
        ServiceAccount.objects.filter(id=account.id).update(role=role.value)
        account.refresh_from_db()
        generations.bump(generations.ROUTES)
        _note(actor, account, "service_account.changed", {"role": role.value})
    return account


def disable_service_account(*, actor: Actor, tenant: Tenant, account: ServiceAccount) -> int:
    """Revoke all its keys now and let it have no new ones; return how many were revoked."""
    return _end(actor, tenant, account, "service_account.disabled", {"disabled_at": clock.now()})


def delete_service_account(*, actor: Actor, tenant: Tenant, account: ServiceAccount) -> int:
    """Revoke all its keys now and forget it; return how many were revoked. It cannot be undone."""
    now = clock.now()
    return _end(actor, tenant, account, "service_account.deleted", {"disabled_at": now, "deleted_at": now})


def enable_service_account(*, actor: Actor, tenant: Tenant, account: ServiceAccount) -> ServiceAccount:
    """Let it have keys again; revoked ones stay revoked."""
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        if ServiceAccount.objects.filter(id=account.id, disabled_at__isnull=False).update(disabled_at=None):
            _note(actor, account, "service_account.enabled", {})
        account.refresh_from_db()
    return account


def _end(actor: Actor, tenant: Tenant, account: ServiceAccount, action: str, changes: dict[str, Any]) -> int:
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        row = ServiceAccount.objects.select_for_update(no_key=True).get(id=account.id)  # no key is made meanwhile
        if row.disabled_at is not None and "deleted_at" not in changes:
            return 0
        ServiceAccount.objects.filter(id=row.id).update(**changes)
        generation = generations.bump(generations.ROUTES)
        count = ApiKey.objects.filter(service_account=row, revoked_at=None).update(
            revoked_at=clock.now(), revoked_generation=generation
        )
        _note(actor, row, action, {"keys_revoked": count})
        account.refresh_from_db()
    return count


def _note(actor: Actor, account: ServiceAccount, action: str, data: dict[str, Any]) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="service_account",
        subject_id=account.id,
        tenant_id=account.tenant_id,
        subject_label=account.name,
        data=data,
    )
    hints.push_on_commit(hints.tenant_topic(account.tenant_id), {"what": "members"})
