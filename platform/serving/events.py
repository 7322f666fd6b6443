"""The audit trail of a deployment: its own events and those of its replicas."""

from django.db import models
from django.db.models import Q

from kernel import scope
from ledger.models import AuditEvent
from serving.models import Deployment, Replica


def events_of(deployment: Deployment) -> "models.QuerySet[AuditEvent]":
    """Events about ``deployment`` and the replicas it still remembers, newest first."""
    with scope.tenant(deployment.tenant_id):
        replica_ids = [str(key) for key in Replica.objects.filter(deployment=deployment).values_list("id", flat=True)]
    about = Q(subject_kind="deployment", subject_id=str(deployment.id)) | Q(
        subject_kind="replica", subject_id__in=replica_ids
    )
    return AuditEvent.objects.filter(about, tenant_id=deployment.tenant_id).order_by("-id")
