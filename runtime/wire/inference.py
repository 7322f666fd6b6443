"""Gateway (or agent) to engine: HTTP on the replica's private address, bearer token of the replica.

Bodies of ``/v1/*`` are OpenAI's. What the platform adds travels in headers, so that a client's body can never
set it.

While streaming, an engine that was sent ``HEADER_METERED`` writes an SSE comment ``: usage {json}`` before each data
event, so that a gateway knows the tokens computed so far without parsing the events; the comment is not passed on.
``DELETE /internal/v1/requests/{request_id}`` cancels a request within one step and returns its :class:`Usage`; for one
that has ended, what it came to, as long as the engine remembers (the last 20,000). 404: it was never here.
"""

from typing import Final

import msgspec

from runtime.wire.assignments import EngineConfig, World
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, Phase

HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_TENANT: Final = "x-millpond-tenant"
HEADER_PREFIX_SALT: Final = "x-millpond-prefix-salt"
HEADER_METERED: Final = "x-millpond-metered"
HEADER_DEADLINE_MS: Final = "x-millpond-deadline-ms"
HEADER_TENANT_WEIGHT: Final = "x-millpond-tenant-weight"  # decimal number above 0
HEADER_PRIORITY: Final = "x-millpond-priority"  # one of PRIORITIES
HEADER_GATEWAY: Final = "x-millpond-gateway"  # id of the gateway that asks: credits are shared among them
HEADER_CREDITS: Final = "x-millpond-credits"  # on answers: requests this gateway may have at this engine at one time
HEADER_USAGE: Final = "x-millpond-usage"  # on errors: JSON of Usage, what was computed before the request failed
HEADER_LOAD: Final = "x-millpond-load"  # on answers: "running=3;waiting=1;kv_free=0.42"

PATH_HEALTH: Final = "/health"
PATH_STATE: Final = "/internal/v1/state"
PATH_LOAD: Final = "/internal/v1/load"
PATH_SLEEP: Final = "/internal/v1/sleep"
PATH_WAKE: Final = "/internal/v1/wake"
PATH_DRAIN: Final = "/internal/v1/drain"
PATH_REQUEST: Final = "/internal/v1/requests/{request_id}"
USAGE_COMMENT: Final = b": usage "
# Trial inferences of agents and gateways come in nobody's name: engines leave their tokens out of their counters, so
# that those are what callers used.
PROBE_TENANT: Final = "millpond-probe"
PRIORITIES: Final = ("sheddable", "default", "critical")  # least important first


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens computed for one request so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /internal/v1/state``: what the agent forwards in its report."""

    replica_id: str
    generation: int
    phase: Phase
    reason: str = ""
    message: str = ""
    progress: float | None = None
    max_model_len: int = 0
    ledger: MemoryLedger | None = None
    stats: EngineStats = EngineStats()


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /internal/v1/load``: what a gateway needs to choose, to hold back, and to see a stuck engine.

    ``credits`` is for the gateway named in ``HEADER_GATEWAY``. ``kv_free`` is the fraction of KV blocks that are free
    or only cached. ``tokens_total`` counts tokens computed since the start, prompt and completion; it stands still
    while ``waiting`` or ``running`` is above 0 only when the engine is stuck. ``oldest_waiting_ms`` is 0 when nothing
    waits.
    """

    phase: Phase
    credits: int
    running: int
    waiting: int
    kv_free: float
    tokens_total: int
    oldest_waiting_ms: float = 0.0


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine process is started: ``python -m runtime.engine --spec FILE`` (mode 0600, private folder).

    ``model_path`` is a Hugging Face folder or a GGUF file under a path the agent made. The engine binds
    ``host:port`` (0 picks one) and then writes ``address_file``: JSON of :class:`EngineAddress`. ``world`` is there
    when it runs some of several ranks, and ``rank_address``, an IP address of this node, when others are elsewhere.
    """

    replica_id: str
    generation: int
    served_name: str
    model_path: str
    format: str
    device_kind: str
    device_uuid: str
    memory_bytes: int
    token: str
    address_file: str
    config: EngineConfig
    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str = "127.0.0.1"
    world: World | None = None
    rank_address: str = ""


class EngineAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine listens, and which process it is (pid and start time tell it from a later one)."""

    url: str
    pid: int
    started: float
