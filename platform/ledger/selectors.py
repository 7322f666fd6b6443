"""Reads of the audit log."""

import uuid

from django.db import models

from ledger.models import AuditEvent


def events_of_tenant(tenant_id: uuid.UUID) -> "models.QuerySet[AuditEvent]":
    """Audit events that concern ``tenant_id``, newest first."""
    return AuditEvent.objects.filter(tenant_id=tenant_id)


def events_of_subject(tenant_id: uuid.UUID | None, kind: str, subject_id: object) -> "models.QuerySet[AuditEvent]":
    """Audit events about one thing, newest first; ``tenant_id`` ``None`` is for platform admins."""
    events = AuditEvent.objects.filter(subject_kind=kind, subject_id=str(subject_id))
    return events if tenant_id is None else events.filter(tenant_id=tenant_id)
