"""Reads."""

import uuid

from django.db import models
from django.db.models import Count, Q

from kernel import clock, scope
from tenants.models import ApiKey, Invitation, KeyKind, KeyScope, Member, ServiceAccount, Tenant, User


def find(wanted: str = "") -> "models.QuerySet[Tenant]":
    """Every tenant, or those with ``wanted`` in their name or short name."""
    rows = Tenant.objects.all()
    return rows.filter(Q(name__icontains=wanted) | Q(slug__icontains=wanted)) if wanted else rows


def people(wanted: str = "") -> "models.QuerySet[User]":
    """Every account with its number of memberships (``tenants``), or those with ``wanted`` in name or address."""
    rows = User.objects.annotate(tenants=Count("memberships"))
    return rows.filter(Q(email__icontains=wanted) | Q(name__icontains=wanted)) if wanted else rows


def members_of(tenant: Tenant) -> "models.QuerySet[Member]":
    """Members with their users, by role and e-mail."""
    with scope.tenant(tenant.id):
        return Member.objects.select_related("user").order_by("role", "user__email")


def member_by_email(tenant: Tenant, email: str) -> Member | None:
    """The member with this address, in any case of its letters."""
    return members_of(tenant).filter(user__email__iexact=email, user__is_active=True).first()


def keys_of(tenant: Tenant) -> "models.QuerySet[ApiKey]":
    """Keys that people made, newest first; playground keys are left out."""
    with scope.tenant(tenant.id):
        return ApiKey.objects.select_related("created_by", "service_account").filter(kind=KeyKind.KEY).order_by("-id")


def service_accounts_of(tenant: Tenant) -> "models.QuerySet[ServiceAccount]":
    """Service accounts that are not deleted, by name, each with ``live_keys`` and ``last_used_at`` of its keys."""
    live = models.Q(keys__revoked_at=None) & (
        models.Q(keys__expires_at=None) | models.Q(keys__expires_at__gt=clock.now())
    )
    with scope.tenant(tenant.id):
        return (
            ServiceAccount.objects.filter(deleted_at=None)
            .select_related("created_by")
            .annotate(live_keys=models.Count("keys", filter=live), last_used_at=models.Max("keys__last_used_at"))
            .order_by("name")
        )


def keys_of_account(account: ServiceAccount) -> "models.QuerySet[ApiKey]":
    """Keys of a service account, newest first."""
    with scope.tenant(account.tenant_id):
        return ApiKey.objects.filter(service_account=account, kind=KeyKind.KEY).order_by("-id")


def invitations_of(tenant: Tenant) -> "models.QuerySet[Invitation]":
    """Invitations that nobody accepted or revoked, newest first; some may have expired."""
    with scope.tenant(tenant.id):
        return Invitation.objects.filter(accepted_at=None, revoked_at=None).select_related("created_by").order_by("-id")


def live_inference_keys() -> "models.QuerySet[ApiKey]":
    """Every tenant's keys that gateways may accept now, with the service accounts that some belong to."""
    with scope.all_tenants():
        return (
            ApiKey.objects.select_related("service_account")
            .filter(revoked_at=None, scopes__contains=[KeyScope.INFERENCE])
            .filter(models.Q(expires_at=None) | models.Q(expires_at__gt=clock.now()))
        )


def tenant_by_id(tenant_id: uuid.UUID) -> Tenant | None:
    """The tenant, whoever asks: for rooms that already checked."""
    return Tenant.objects.filter(id=tenant_id).first()
