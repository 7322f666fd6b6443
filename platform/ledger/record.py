"""Writing audit events; called inside services, in the transaction of the change."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction

from kernel import clock
from kernel.actors import Actor
from kernel.machine import Move
from ledger.models import AuditEvent

MAX_LABEL: Final = 254


def record(
    *,
    actor: Actor,
    action: str,
    subject_kind: str,
    subject_id: object,
    tenant_id: uuid.UUID | None,
    subject_label: str = "",
    reason: str = "",
    message: str = "",
    data: Mapping[str, Any] | None = None,
) -> AuditEvent:
    """Write one audit event. ``action`` reads ``noun.verb``, for instance ``api_key.created``."""
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an audit event belongs to the transaction of its change")
    return AuditEvent.objects.create(
        at=clock.now(),
        tenant_id=tenant_id,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_label=actor.label,
        way=actor.way,
        address=actor.address,
        request_id=actor.request_id,
        action=action,
        subject_kind=subject_kind,
        subject_id=str(subject_id),
        subject_label=subject_label[:MAX_LABEL],  # a name for people, not an identity: better cut than refused
        reason=reason,
        message=message,
        data=dict(data or {}),
    )


def record_move(
    move: Move,
    *,
    actor: Actor,
    tenant_id: uuid.UUID | None,
    subject_label: str = "",
    data: Mapping[str, Any] | None = None,
) -> AuditEvent:
    """Write the audit event of a state move."""
    return record(
        actor=actor,
        action=f"{move.subject}.{move.target}",
        subject_kind=move.subject,
        subject_id=move.subject_id,
        tenant_id=tenant_id,
        subject_label=subject_label,
        reason=move.reason,
        message=move.message,
        data={"from": move.source, "to": move.target, **(data or {})},
    )
