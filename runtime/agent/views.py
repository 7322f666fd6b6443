"""What the diff looks at and what it answers: frozen, no I/O, no clock. Times are seconds on the monotonic clock."""

import enum
from dataclasses import dataclass

from runtime.agent.errors import Fault
from runtime.wire.assignments import ReplicaAssignment
from runtime.wire.inference import EngineState
from runtime.wire.reports import Phase


class Work(enum.StrEnum):
    """How far a piece of work for a replica is."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every duration and bound of the decisions, in seconds."""

    backoff_first: float = 1.0
    backoff_limit: float = 60.0
    forgive_after: float = 300.0  # of being ready: crashes before that no longer count
    loading_timeout: float = 1800.0
    degraded_after: float = 3.0  # of silence
    silent_limit: float = 60.0  # of silence: the engine is ended and started again
    verify_pause: float = 2.0
    verify_failures: int = 5
    term_grace: float = 10.0  # from SIGTERM to SIGKILL
    kill_grace: float = 10.0  # from SIGKILL to saying that it cannot be killed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """The engine process. ``exit`` says how it ended, "" while it runs.

    ``end_reason`` is set once the agent has asked it to end: "" with a ``term_at`` means because it is not wanted.
    """

    generation: int
    exit: str = ""
    last_line: str = ""
    term_at: float | None = None
    kill_at: float | None = None
    end_reason: str = ""
    end_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica as the agent sees it now.

    ``engine`` is the last answer of the engine and ``engine_at`` its time; ``silent_since`` is when it stopped
    answering (``None`` while it answers). ``drain_at`` is when the engine accepted the drain.
    ``reported`` is true once the control plane has received the current phase.
    """

    assignment: ReplicaAssignment
    phase: Phase
    since: float
    reason: str = ""
    message: str = ""
    files: Work = Work.NONE
    fault: Fault | None = None
    process: ProcessView | None = None
    engine: EngineState | None = None
    engine_at: float = 0.0
    silent_since: float | None = None
    verify: Work = Work.NONE
    verify_failures: int = 0
    verify_at: float = 0.0
    retry_at: float = 0.0
    blocked: bool = False  # failed for good: only a new generation helps
    drain_at: float | None = None
    crashes: int = 0  # of the engine, in a row
    faults: int = 0  # before an engine could start, in a row
    reported: bool = False

    @property
    def id(self) -> str:
        return self.assignment.replica_id

    @property
    def generation(self) -> int:
        return self.assignment.generation

    @property
    def follows(self) -> bool:
        """True when the leader of its ranks is on another node: requests go there, and it ends with that."""
        return self.assignment.world is not None and not self.assignment.world.leads

    @property
    def proved(self) -> bool:
        """True once a real inference has passed; what the leader's agent asks passes through all ranks."""
        return self.verify is Work.DONE or self.follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Take a new replica on; its engine starts no earlier than ``not_before``."""

    assignment: ReplicaAssignment
    not_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Act on a newer generation from now on: faults and back-off of the old one are forgotten."""

    assignment: ReplicaAssignment
    not_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """An older generation of a replica than this node has seen."""

    replica_id: str
    generation: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Start getting the files."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the engine."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Do one real inference."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Ask the engine to finish what it has and take nothing new."""

    replica_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """SIGTERM to the group. With ``reason`` it is a fault and a new try follows."""

    replica_id: str
    phase: Phase
    reason: str
    message: str
    fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL to the group."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The process has ended: forget it and rest in ``phase`` until ``retry_at``."""

    replica_id: str
    phase: Phase
    reason: str
    message: str
    crashed: bool = False
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """A fault without a process: rest in ``phase`` until ``retry_at`` (``blocked``: until a new generation)."""

    replica_id: str
    phase: Phase
    reason: str
    message: str
    retry_at: float
    blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Change the phase (or only its reason)."""

    replica_id: str
    phase: Phase
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgive:
    """It has been ready for long: crashes no longer count towards the back-off."""

    replica_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Nothing is left and nobody wants it: remove its folder."""

    replica_id: str


Action = (
    Create
    | Renew
    | Refuse
    | Fetch
    | Launch
    | Verify
    | Drain
    | Terminate
    | Kill
    | Settle
    | Fail
    | Move
    | Forgive
    | Forget
)
