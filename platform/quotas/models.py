"""Limits per tenant. What is used is never stored here: it is counted from what exists."""

from typing import ClassVar

from django.db import models

from kernel.scope import ScopedManager
from tenants.models import Tenant


class TenantQuota(models.Model):
    """What a tenant may hold. -1 is unlimited. A tenant without a row has the defaults of the settings."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="quota")
    hbm_bytes = models.BigIntegerField()
    replicas = models.IntegerField()
    storage_bytes = models.BigIntegerField()
    updated_at = models.DateTimeField()

    objects = ScopedManager["TenantQuota"]()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(hbm_bytes__gte=-1), name="quota_hbm_bytes_sane"),
            models.CheckConstraint(condition=models.Q(replicas__gte=-1), name="quota_replicas_sane"),
            models.CheckConstraint(condition=models.Q(storage_bytes__gte=-1), name="quota_storage_bytes_sane"),
        ]

    def __str__(self) -> str:
        return f"quota of {self.tenant_id}"
