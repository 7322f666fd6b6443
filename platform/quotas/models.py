"""Limits per tenant and per group of tenants. What is used is never stored here: it is counted from what exists."""

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from kernel import ids
from kernel.scope import ScopedManager
from quotas.tree import DEFAULT_WEIGHT, MAX_WEIGHT
from tenants.models import Tenant

GROUP_NAME = RegexValidator(
    r"^[a-z0-9][a-z0-9-]{0,39}\Z",
    "Use 1 to 40 lower-case letters, digits and hyphens; begin with a letter or digit.",
)


class Limits(models.Model):
    """Upper limits and guarantees; -1 is unlimited. GPUs are in thousandths, by slice."""

    gpu_millis = models.BigIntegerField(default=-1)
    hbm_bytes = models.BigIntegerField()
    replicas = models.IntegerField()
    storage_bytes = models.BigIntegerField()
    guaranteed_gpu_millis = models.BigIntegerField(default=-1)
    guaranteed_hbm_bytes = models.BigIntegerField(default=-1)
    updated_at = models.DateTimeField()

    class Meta:
        abstract = True


def _sane(prefix: str) -> list[models.BaseConstraint]:
    return [
        models.CheckConstraint(condition=Q(**{f"{name}__gte": -1}), name=f"{prefix}_{name}_sane")
        for name in (
            "gpu_millis", "hbm_bytes", "replicas", "storage_bytes", "guaranteed_gpu_millis", "guaranteed_hbm_bytes",
        )
    ]  # fmt: skip


class QuotaGroup(Limits):
    """Tenants under one roof: together they hold no more than this."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    name = models.CharField(max_length=40, unique=True, validators=[GROUP_NAME])

    class Meta:
        ordering = ["name"]
        constraints = _sane("quota_group")

    def __str__(self) -> str:
        return self.name


class TenantQuota(Limits):
    """What a tenant may hold. A tenant without a row has the defaults of the settings.

    A guarantee of -1 promises all that the limit allows: nothing is borrowed then (``promises.check`` refuses it in a
    group that has a limit). ``over_quota_weight`` is the share
    in what is left over above all guarantees; 0 never gets any of it before others.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    tenant = models.OneToOneField(Tenant, primary_key=True, on_delete=models.CASCADE, related_name="quota")
    over_quota_weight = models.PositiveSmallIntegerField(default=DEFAULT_WEIGHT)
    group = models.ForeignKey(QuotaGroup, null=True, on_delete=models.PROTECT, related_name="members")

    objects = ScopedManager["TenantQuota"]()

    class Meta:
        constraints = [
            *_sane("quota"),
            models.CheckConstraint(condition=Q(over_quota_weight__lte=MAX_WEIGHT), name="quota_weight_bounded"),
        ]

    def __str__(self) -> str:
        return f"quota of {self.tenant_id}"
