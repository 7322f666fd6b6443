"""What gateways serve from: control plane to gateway."""

import msgspec

from runtime.wire.version import CURRENT, ProtocolVersion


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``None`` is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel_requests: int | None = None


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One live API key with the ``inference`` scope. ``digest`` is the keyed hash (hex) of the full key.

    ``expires_at`` is a Unix time in seconds. ``allowed_endpoints`` holds endpoint ids; empty means all that the tenant
    may call.
    ``kind`` is ``key`` or ``playground`` (short-lived, minted for a signed-in user).
    """

    id: str
    digest: str
    tenant_id: str
    expires_at: float | None = None
    allowed_endpoints: list[str] = []
    limits: RateLimits = RateLimits()
    kind: str = "key"


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as gateways need it. ``prefix_salt`` separates the tenants' prefix caches."""

    id: str
    slug: str
    prefix_salt: str
    active: bool = True
    limits: RateLimits = RateLimits()


class ReplicaRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One replica that may get traffic."""

    replica_id: str
    generation: int
    url: str
    token: str


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment behind an endpoint, with its share of the traffic (relative weight)."""

    deployment_id: str
    revision_id: str
    version: int
    weight: int
    replicas: list[ReplicaRoute]


class EndpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A name that clients call. Its owner calls it ``name``; a tenant it is granted to calls ``owner/name``."""

    id: str
    name: str
    tenant_id: str
    granted_tenant_ids: list[str]
    created: int
    max_model_len: int
    variants: list[Variant]
    state: str = ""  # one sentence for people when nothing is ready


class RouteTable(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, by generation. ``key_pepper`` is the secret of the keyed hash (hex)."""

    generation: int
    issued_at: float
    key_pepper: str
    console_origins: list[str]
    tenants: list[TenantEntry]
    keys: list[KeyEntry]
    endpoints: list[EndpointEntry]
    protocol: ProtocolVersion = CURRENT


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway to control plane: heartbeat and acknowledgement."""

    gateway_id: str
    version: str
    url: str
    applied_generation: int
    table_age_seconds: float
    in_flight: int
    journal_pending: int
    protocol: ProtocolVersion = CURRENT


class GatewayReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a gateway's report."""

    generation: int
    interval_seconds: float
