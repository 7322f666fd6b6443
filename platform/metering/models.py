"""Usage: one row per request, sums per hour, and what could not be booked.

Tenants, keys, endpoints and revisions are referred to by id, without foreign keys, so that the books survive them.
The all-zero UUID stands for "none" (a request that reached no deployment), so that sums have one row per group.
"""

import uuid
from typing import ClassVar, Final

from django.db import models

from kernel.scope import ScopedManager

NOBODY: Final = uuid.UUID(int=0)


class Outcome(models.TextChoices):
    """How a request ended."""

    OK = "ok"
    ERROR = "error"
    ABORTED = "aborted"


class UsageRecord(models.Model):
    """One request, as a gateway journalled it. ``id`` is the gateway's: the same record twice is one row.

    ``tenant_id`` is the caller, who pays; ``owner_tenant_id`` owns the endpoint. Durations are milliseconds. ``cost``
    is in millionths of the currency (exact: six more places), at the prices of the moment when it began.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.CharField(primary_key=True, max_length=64)
    request_id = models.CharField(max_length=128)
    gateway_id = models.UUIDField()
    tenant_id = models.UUIDField()
    owner_tenant_id = models.UUIDField(default=NOBODY)
    key_id = models.UUIDField(default=NOBODY)
    endpoint_id = models.UUIDField(default=NOBODY)
    deployment_id = models.UUIDField(default=NOBODY)
    revision_id = models.UUIDField(default=NOBODY)
    replica_id = models.UUIDField(default=NOBODY)
    operation = models.CharField(max_length=32)
    status = models.PositiveSmallIntegerField()
    outcome = models.CharField(max_length=8, choices=Outcome)
    started_at = models.DateTimeField()
    booked_at = models.DateTimeField()
    duration_ms = models.FloatField()
    ttft_ms = models.FloatField(null=True)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cost = models.DecimalField(max_digits=30, decimal_places=6, default=0)
    billable = models.BooleanField()

    objects = ScopedManager["UsageRecord"]()

    class Meta:
        indexes = [
            models.Index(fields=["tenant_id", "-started_at"], name="usage_tenant_started"),
            models.Index(fields=["started_at"], name="usage_started"),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(outcome__in=Outcome.values), name="usage_outcome_known"),
            models.CheckConstraint(
                condition=models.Q(prompt_tokens__gte=0, cached_tokens__gte=0, completion_tokens__gte=0),
                name="usage_tokens_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"usage {self.id}"


class UsageHour(models.Model):
    """Sums of one hour (UTC) for one caller, key, endpoint and revision. Written in the transaction of its records.

    ``unbilled`` counts requests whose tokens the platform does not charge, because it lost what they were for; theirs
    are summed apart, so that all of it together is what engines computed.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    tenant_id = models.UUIDField()
    owner_tenant_id = models.UUIDField()
    key_id = models.UUIDField()
    endpoint_id = models.UUIDField()
    revision_id = models.UUIDField()
    requests = models.BigIntegerField(default=0)
    errors = models.BigIntegerField(default=0)
    aborted = models.BigIntegerField(default=0)
    unbilled = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    cost = models.DecimalField(max_digits=30, decimal_places=6, default=0)
    duration_ms = models.FloatField(default=0.0)
    unbilled_prompt_tokens = models.BigIntegerField(default=0)
    unbilled_completion_tokens = models.BigIntegerField(default=0)

    objects = ScopedManager["UsageHour"]()

    class Meta:
        indexes = [models.Index(fields=["owner_tenant_id", "hour"], name="usage_hour_owner")]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "hour", "owner_tenant_id", "key_id", "endpoint_id", "revision_id"],
                name="usage_hour_once_per_group",
            ),
        ]

    def __str__(self) -> str:
        return f"usage of {self.tenant_id} at {self.hour:%Y-%m-%dT%HZ}"


class Price(models.Model):
    """Millionths of the currency for one million tokens of each kind, from ``valid_from`` on.

    Rows without an endpoint are for all others. ``own`` is false where an endpoint goes back to that price.
    ``announced``: gateways were told that it holds (a price may be set for later).
    """

    id = models.BigAutoField(primary_key=True)
    endpoint_id = models.UUIDField(null=True)
    valid_from = models.DateTimeField()
    own = models.BooleanField(default=True)
    prompt = models.BigIntegerField(default=0)
    cached = models.BigIntegerField(default=0)
    completion = models.BigIntegerField(default=0)
    changed_at = models.DateTimeField()
    announced = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint_id", "valid_from"], nulls_distinct=False, name="price_once_per_endpoint_and_date"
            ),
            models.CheckConstraint(
                condition=models.Q(prompt__gte=0, cached__gte=0, completion__gte=0), name="price_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"price of {self.endpoint_id or 'every other endpoint'} from {self.valid_from:%Y-%m-%dT%H:%MZ}"


class DevicePrice(models.Model):
    """Millionths of the currency for one whole device of ``product`` and one hour, from ``valid_from`` (an hour) on.

    The empty product stands for every device without a price of its own; ``own`` is false where one goes back to that.
    """

    id = models.BigAutoField(primary_key=True)
    product = models.CharField(max_length=120, blank=True)
    valid_from = models.DateTimeField()
    own = models.BooleanField(default=True)
    per_hour = models.BigIntegerField(default=0)
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["product", "valid_from"], name="device_price_once_per_product_and_date"),
            models.CheckConstraint(condition=models.Q(per_hour__gte=0), name="device_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"price of {self.product or 'every other device'} from {self.valid_from:%Y-%m-%dT%H:%MZ}"


class Holding(models.Model):
    """One partition while a replica has it, written in the transaction that gives it and the one that frees it.

    ``millis`` are thousandths of the device, by slice or by memory, as the quota counts them; ``product`` and ``kind``
    are the whole device's, also where a MIG instance is held. ``ended_at`` is empty while it is held.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    partition_id = models.UUIDField(primary_key=True)
    replica_id = models.UUIDField()
    tenant_id = models.UUIDField()
    deployment_id = models.UUIDField()
    endpoint_id = models.UUIDField()
    revision_id = models.UUIDField()
    product = models.CharField(max_length=120)
    kind = models.CharField(max_length=16)
    millis = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    objects = ScopedManager["Holding"]()

    class Meta:
        indexes = [
            models.Index(fields=["ended_at"], condition=models.Q(ended_at__isnull=False), name="holding_ended"),
            models.Index(fields=["began_at"], condition=models.Q(ended_at__isnull=True), name="holding_open"),
        ]

    def __str__(self) -> str:
        return f"{self.millis} thousandths of {self.product} from {self.began_at:%Y-%m-%dT%H:%MZ}"


class DeviceHour(models.Model):
    """What one deployment held of one device type in one hour (UTC): device-seconds by share, busy ones, and cost.

    ``busy_seconds`` are those with a request in flight; the rest was held idle. ``cost`` is in millionths.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.BigAutoField(primary_key=True)
    hour = models.DateTimeField()
    tenant_id = models.UUIDField()
    deployment_id = models.UUIDField()
    endpoint_id = models.UUIDField()
    revision_id = models.UUIDField()
    product = models.CharField(max_length=120)
    kind = models.CharField(max_length=16)
    held_seconds = models.FloatField()
    busy_seconds = models.FloatField()
    cost = models.DecimalField(max_digits=30, decimal_places=6, default=0)

    objects = ScopedManager["DeviceHour"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "hour", "deployment_id", "endpoint_id", "revision_id", "product", "kind"],
                name="device_hour_once_per_group",
            )
        ]

    def __str__(self) -> str:
        return f"{self.product} of {self.tenant_id} at {self.hour:%Y-%m-%dT%HZ}"


class DeviceCount(models.Model):
    """An hour whose device-hours are in the books. It goes when a late record says that more was in flight then."""

    hour = models.DateTimeField(primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"device-hours of {self.hour:%Y-%m-%dT%HZ}"


class BudgetUse(models.Model):
    """What the books hold of one budget in its current period: tokens, or millionths of the currency.

    ``subject_id`` is the key's or the tenant's. A row of another period or unit than the budget's stands for nothing.
    """

    subject_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    unit = models.CharField(max_length=8)
    period_start = models.DateTimeField()
    used = models.BigIntegerField()
    counted_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.used} {self.unit} of {self.subject_id}"


class UnbookedRecord(models.Model):
    """A delivered record that makes no sense (a bug in a gateway): kept for people, so that the rest can go on.

    ``id`` is the SHA-256 of ``body``, the record as JSON text.
    """

    id = models.CharField(primary_key=True, max_length=64)
    gateway_id = models.UUIDField()
    received_at = models.DateTimeField()
    problem = models.TextField()
    body = models.TextField()

    def __str__(self) -> str:
        return f"unbooked {self.id}: {self.problem}"


class Recount(models.Model):
    """A closed hour whose sums were compared with its records; ``corrected`` rows differed and were put right."""

    hour = models.DateTimeField(primary_key=True)
    at = models.DateTimeField()
    corrected = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"recount of {self.hour:%Y-%m-%dT%HZ}"
