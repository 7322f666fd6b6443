"""Wire usage records for the tests of metering."""

import datetime
import uuid

from kernel import ids
from runtime.wire.usage import UsageBatch, UsageRecord

NOON = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)
GATEWAY = uuid.UUID("01970000-0000-7000-8000-0000000000aa")


def record(caller_id, *, at=NOON, owner_id=None, **fields):
    """A good record of ``caller_id``; ``fields`` replace what it says."""
    values = {
        "id": str(ids.new_id()),
        "request_id": "req-1",
        "tenant_id": str(caller_id),
        "owner_tenant_id": str(owner_id or caller_id),
        "key_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "key")),
        "endpoint_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "endpoint")),
        "deployment_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "deployment")),
        "revision_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "revision")),
        "replica_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "replica")),
        "operation": "chat.completions",
        "status": 200,
        "outcome": "ok",
        "started_at": at.timestamp(),
        "duration_ms": 100.0,
        "ttft_ms": 10.0,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "billable": True,
    }
    return UsageRecord(**{**values, **fields})


def batch(records, gateway_id=GATEWAY):
    return UsageBatch(gateway_id=str(gateway_id), records=list(records))
