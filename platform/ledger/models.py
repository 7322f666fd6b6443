"""Facts that are only ever added. Tenants are referred to by id, without a foreign key: history survives them."""

from django.db import models

from kernel import ids


class AuditEvent(models.Model):
    """Who did what to what, from where, by which way, and how it ended."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    at = models.DateTimeField(db_index=True)
    tenant_id = models.UUIDField(null=True, db_index=True)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=64)
    actor_label = models.CharField(max_length=254)
    way = models.CharField(max_length=16)
    address = models.CharField(max_length=64, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    subject_kind = models.CharField(max_length=32)
    subject_id = models.CharField(max_length=64)
    subject_label = models.CharField(max_length=254, blank=True)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["tenant_id", "-at"], name="audit_tenant_at"),
            models.Index(fields=["subject_kind", "subject_id", "-at"], name="audit_subject_at"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.subject_kind} {self.subject_label or self.subject_id}"


class OutboxMessage(models.Model):
    """Work that follows a change, written in its transaction and done afterwards, at least once."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    created_at = models.DateTimeField()
    topic = models.CharField(max_length=64)
    payload = models.JSONField(default=dict)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=models.Q(done_at=None), name="outbox_due"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class Generation(models.Model):
    """A counter per name that rises with every change of what it stands for; see ``ledger.generations``."""

    name = models.CharField(primary_key=True, max_length=80)
    value = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(value__gte=0), name="generation_not_negative")]

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


class IdempotencyRecord(models.Model):
    """The stored answer to a POST that carried an ``Idempotency-Key``. Kept for 24 hours."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    created_at = models.DateTimeField(db_index=True)
    owner = models.CharField(max_length=80)
    route = models.CharField(max_length=200)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "route", "key"], name="idempotency_one_per_key"),
        ]

    def __str__(self) -> str:
        return f"{self.route} {self.key}"
