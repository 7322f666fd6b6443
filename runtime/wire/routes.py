"""What gateways serve from: control plane to gateway."""

import msgspec

from runtime.wire.version import CURRENT, ProtocolVersion


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``None`` is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel_requests: int | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens or cost that may be used in one period.

    ``limit`` is in tokens (``unit`` "tokens": prompt + completion) or in millionths of the currency ("cost").
    ``period`` is ``hour``, ``day``, ``week``, ``month`` (calendar, UTC) or empty: for ever. ``used`` is what the books
    held for the period that began at ``period_start`` (Unix seconds) when the table was made: the seed of a counter
    that is not there. ``blocks`` false only alerts.
    """

    limit: int
    unit: str = "tokens"
    period: str = ""
    period_start: float = 0.0
    used: int = 0
    blocks: bool = True


class TokenPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Millionths of the currency for one million tokens of each kind."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint promises; ``None`` promises nothing. Milliseconds at the 95th percentile; a fraction 0..1."""

    ttft_p95_ms: float | None = None
    itl_p95_ms: float | None = None
    e2e_p95_ms: float | None = None
    error_rate: float | None = None


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One live API key with the ``inference`` scope. ``digest`` is the keyed hash (hex) of the full key.

    ``expires_at`` is a Unix time in seconds. ``allowed_endpoints`` holds endpoint ids; empty means all that the tenant
    may call.
    ``kind`` is ``key`` or ``playground`` (short-lived, minted for a signed-in user). While a rotation overlaps,
    ``previous_digest`` is accepted until ``previous_expires_at``. ``allowed_addresses`` holds networks in CIDR form;
    empty means any. ``criticalities`` names the priority classes above ``default`` that the key may ask for;
    ``default`` and below are everybody's. ``picks_revision`` lets a request name the revision that answers it
    (``x-millpond-revision``), of endpoints of the key's own tenant.
    """

    id: str
    digest: str
    tenant_id: str
    expires_at: float | None = None
    allowed_endpoints: list[str] = []
    limits: RateLimits = RateLimits()
    kind: str = "key"
    previous_digest: str = ""
    previous_expires_at: float = 0.0
    allowed_addresses: list[str] = []
    criticalities: list[str] = []
    budget: Budget | None = None
    picks_revision: bool = False


class TenantEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as gateways need it. ``prefix_salt`` separates the tenants' prefix caches.

    ``weight`` is its share of an engine's work beside others who wait (1.0 is the usual share).
    """

    id: str
    slug: str
    prefix_salt: str
    active: bool = True
    limits: RateLimits = RateLimits()
    weight: float = 1.0
    budget: Budget | None = None


class ReplicaRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One replica that may get traffic. An ``asleep`` one answers after its weights are back on the device."""

    replica_id: str
    generation: int
    url: str
    token: str
    node_id: str = ""
    asleep: bool = False


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment behind an endpoint, with its share of the traffic (relative weight).

    ``coming`` counts the replicas that are wanted and not ready yet: a gateway holds requests for them.
    ``revision_number`` is the revision's in its model (0: not told); ``version`` the model version's.
    """

    deployment_id: str
    revision_id: str
    version: int
    weight: int
    replicas: list[ReplicaRoute]
    coming: int = 0
    revision_number: int = 0


class EndpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A name that clients call. Its owner calls it ``name``; a tenant it is granted to calls ``owner/name``.

    ``sticky`` says what keeps a caller on one variant: ``key``, ``user`` (the body's field), ``header``
    (``x-millpond-sticky``), or empty: every request is drawn anew.
    """

    id: str
    name: str
    tenant_id: str
    granted_tenant_ids: list[str]
    created: int
    max_model_len: int
    variants: list[Variant]
    state: str = ""  # one sentence for people when nothing is ready
    sticky: str = ""
    slo: Slo = Slo()
    price: TokenPrice = TokenPrice()


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


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that this gateway sends nothing to for now. ``reason`` is PascalCase, ``message`` a sentence."""

    replica_id: str
    generation: int
    reason: str
    message: str
    since: float


class AdaptiveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests this gateway keeps in flight to one deployment, found from its SLO, and how many wait here."""

    deployment_id: str
    limit: int
    in_flight: int
    queued: int


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway to control plane: heartbeat and acknowledgement."""

    gateway_id: str
    version: str
    url: str
    applied_generation: int
    table_age_seconds: float
    in_flight: int
    journal_pending: int
    limits_shared: bool = True  # false while the shared counters cannot be reached
    ejected: list["Ejection"] = []
    adaptive: list["AdaptiveLimit"] = []
    protocol: ProtocolVersion = CURRENT


class GatewayReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a gateway's report."""

    generation: int
    interval_seconds: float
