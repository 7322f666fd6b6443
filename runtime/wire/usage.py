"""Metering: gateway to control plane, at least once on the wire, exactly once in the books (by ``id``)."""

import msgspec

from runtime.wire.version import CURRENT, ProtocolVersion


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request that reached an engine, or was answered without one.

    ``tenant_id`` is the caller's, ``owner_tenant_id`` the endpoint's. ``status`` is the HTTP status the client got
    (499 when it left first). ``outcome`` is ``ok``, ``error`` or ``aborted``. Times are Unix seconds, durations
    milliseconds. ``billable`` is false for what the platform lost; ``aborted`` with status 502 is what was under way
    when a gateway died, or what a replica computed before it dropped the request. ``picked``: the caller named the
    revision, so that it is no sample of how the endpoint's traffic goes.
    """

    id: str
    request_id: str
    tenant_id: str
    owner_tenant_id: str
    key_id: str
    endpoint_id: str
    deployment_id: str
    revision_id: str
    replica_id: str
    operation: str  # "chat.completions", "completions"
    status: int
    outcome: str
    started_at: float
    duration_ms: float
    ttft_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    billable: bool = True
    picked: bool = False


class UsageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Records in journal order."""

    gateway_id: str
    records: list[UsageRecord]
    protocol: ProtocolVersion = CURRENT


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    """``accepted`` counts rows that were new; every id of the batch is booked once this is received."""

    accepted: int
    duplicates: int
