"""What one request comes to: a usage record in the journal, the limit settled, the metrics moved. Once."""

from typing import Final

import msgspec

from runtime.gateway.auth import Caller
from runtime.gateway.balance import Choice
from runtime.gateway.core import Core
from runtime.gateway.limits import Lease
from runtime.wire.inference import Usage
from runtime.wire.routes import EndpointEntry
from runtime.wire.usage import UsageRecord

CLIENT_GONE = 499


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be proxied, and for whom. ``upstream_id`` is unique, whatever the client called its request."""

    operation: str
    path: str
    body: bytes
    caller: Caller
    endpoint: EndpointEntry
    lease: Lease
    record_id: str
    request_id: str
    upstream_id: str
    trace: dict[str, str]
    priority: str
    started_at: float  # Unix seconds
    started: float  # monotonic seconds
    until: float  # monotonic seconds after which no answer is of use
    impatient: bool  # the caller named that time: what is computed until then is the caller's to pay
    picked: str = ""  # id of the deployment that the caller named, past the weights


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. ``status`` is what the client got (499: it left first); ``first`` is monotonic seconds."""

    status: int
    outcome: str  # "ok", "error" or "aborted"
    usage: Usage
    billable: bool
    first: float | None = None


# What a request has come to if the gateway dies within it: nobody's fault but the platform's, so nobody pays.
CUT: Final = Ending(status=502, outcome="aborted", usage=Usage(), billable=False)


def record_of(core: Core, job: Job, choice: Choice | None, ending: Ending) -> UsageRecord:
    """The line of the books for ``job`` if it ends now, like this."""
    usage, first = ending.usage, ending.first
    return UsageRecord(
        id=job.record_id,
        request_id=job.request_id,
        tenant_id=job.caller.tenant.id,
        owner_tenant_id=job.endpoint.tenant_id,
        key_id=job.caller.key.id,
        endpoint_id=job.endpoint.id,
        deployment_id=choice.variant.deployment_id if choice else "",
        revision_id=choice.variant.revision_id if choice else "",
        replica_id=choice.replica.replica_id if choice else "",
        operation=job.operation,
        status=ending.status,
        outcome=ending.outcome,
        started_at=job.started_at,
        duration_ms=(core.clock.monotonic() - job.started) * 1000,
        ttft_ms=None if first is None else (first - job.started) * 1000,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        billable=ending.billable,
        picked=bool(job.picked),
    )


def book(core: Core, job: Job, choice: Choice | None, ending: Ending, *, soon: bool = False) -> None:
    """Write the record (``soon``: by way of the outbox, before what it sends), settle the lease, move the metrics."""
    seconds = core.clock.monotonic() - job.started
    first = None if ending.first is None else ending.first - job.started
    usage = ending.usage
    core.journal.append(record_of(core, job, choice, ending), soon=soon)
    core.limiter.settle(job.lease, usage, billable=ending.billable)
    core.metrics.served(
        operation=job.operation,
        endpoint_id=job.endpoint.id,
        deployment_id=choice.variant.deployment_id if choice else "",
        status=ending.status,
        seconds=seconds,
        first_seconds=first,
    )
    core.metrics.used(
        job.caller.tenant.id,
        prompt=usage.prompt_tokens,
        cached=usage.cached_tokens,
        completion=usage.completion_tokens,
    )
