"""Reads."""

import uuid

from django.db import models

from kernel import clock, scope
from tenants.models import ApiKey, KeyKind, KeyScope, Member, Tenant


def members_of(tenant: Tenant) -> "models.QuerySet[Member]":
    """Members with their users, by role and e-mail."""
    with scope.tenant(tenant.id):
        return Member.objects.select_related("user").order_by("role", "user__email")


def keys_of(tenant: Tenant) -> "models.QuerySet[ApiKey]":
    """Keys that people made, newest first; playground keys are left out."""
    with scope.tenant(tenant.id):
        return ApiKey.objects.select_related("created_by").filter(kind=KeyKind.KEY).order_by("-id")


def live_inference_keys() -> "models.QuerySet[ApiKey]":
    """Every tenant's keys that gateways may accept now."""
    with scope.all_tenants():
        return ApiKey.objects.filter(revoked_at=None, scopes__contains=[KeyScope.INFERENCE]).filter(
            models.Q(expires_at=None) | models.Q(expires_at__gt=clock.now())
        )


def tenant_by_id(tenant_id: uuid.UUID) -> Tenant | None:
    """The tenant, whoever asks: for rooms that already checked."""
    return Tenant.objects.filter(id=tenant_id).first()
