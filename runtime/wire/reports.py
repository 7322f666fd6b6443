"""What a node observes: agent to control plane."""

import enum

import msgspec

from runtime.wire.devices import DeviceReport, HealthFact, HostReport, MigLayoutReport
from runtime.wire.memory import MemoryLedger
from runtime.wire.version import CURRENT, ProtocolVersion


class Phase(enum.StrEnum):
    """Where a replica is on its node, in the order it gets there."""

    FETCHING = "fetching"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    ASLEEP = "asleep"  # ready, its weights in host memory: the next request wakes it
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Load and speed of one engine. Counters are since the engine started; latencies are of the last minute.

    Milliseconds; ``None`` while nothing was measured.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    max_num_seqs: int = 0
    admission_open: bool = True
    requests_total: int = 0
    requests_failed_total: int = 0
    requests_aborted_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    completion_tokens_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    tokens_per_second: float = 0.0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    queue_p95_ms: float | None = None
    sleeps_total: int = 0
    wakes_total: int = 0
    last_wake_ms: float | None = None  # from the request that woke it to awake


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as the agent sees it. ``reason`` is PascalCase, ``message`` a sentence.

    ``progress`` is 0..1 within the phase. ``address`` is ``http://host:port`` once the engine listens.
    ``log_tail`` holds the last lines of the engine's log (bounded), sent when they changed.
    """

    replica_id: str
    generation: int
    phase: Phase
    reason: str = ""
    message: str = ""
    progress: float | None = None
    address: str = ""
    pid: int | None = None
    restarts: int = 0
    ledger: MemoryLedger | None = None
    stats: EngineStats | None = None
    log_tail: list[str] = []


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole node, every interval: heartbeat and observation in one.

    ``boot_id`` changes when the machine restarts, ``agent_id`` when the agent does.
    ``rank_address`` is where ranks on other nodes reach those here; "": the node takes part in no such replica.
    ``applied_generation`` is the newest ``NodeAssignments.generation`` the agent acts on. ``health`` holds every fact
    that no received report has held yet (bounded: the oldest go first, and ``health_dropped`` counts them).
    """

    agent_version: str
    boot_id: str
    agent_id: str
    sequence: int
    data_address: str
    applied_generation: int
    host: HostReport
    devices: list[DeviceReport]
    replicas: list[ReplicaReport]
    stored_sha256: list[str] = []
    health: list[HealthFact] = []
    health_dropped: int = 0
    layouts: list[MigLayoutReport] = []
    rank_address: str = ""
    protocol: ProtocolVersion = CURRENT


class ReportReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a report: how far desired state is, and how soon to come back."""

    generation: int
    interval_seconds: float
    lease_seconds: float
