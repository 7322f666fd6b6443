"""One replica in memory: what the agent knows of it, the frozen view for the diff, and what is reported."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from runtime.agent import enginelog, states
from runtime.agent.errors import Fault
from runtime.agent.processes import EngineProcess
from runtime.agent.records import ProcessRecord, ReplicaFolder, ReplicaRecord
from runtime.agent.views import ProcessView, ReplicaView, Work
from runtime.base import logs
from runtime.wire.assignments import ReplicaAssignment
from runtime.wire.inference import EngineState
from runtime.wire.reports import Phase, ReplicaReport

log = logs.get(__name__)
MESSAGE_CHARS: Final = 500


def bounded_text(message: str) -> str:
    """``message`` as it may leave this machine: secrets masked, length bounded."""
    return logs.mask(message)[:MESSAGE_CHARS]


@dataclass(slots=True, kw_only=True)
class Running:
    """The engine process of a replica and what was asked of it. ``token`` is the one in its spec."""

    process: EngineProcess
    record: ProcessRecord
    token: str
    url: str = ""
    term_at: float | None = None
    kill_at: float | None = None
    end_reason: str = ""
    end_message: str = ""


@dataclass(slots=True, kw_only=True)
class Slot:
    """One replica. Changed by the applier and by the work it starts, all in one event loop."""

    assignment: ReplicaAssignment
    folder: ReplicaFolder
    phase: Phase
    since: float
    reason: str = ""
    message: str = ""
    files: Work = Work.NONE
    fetched: float = 0.0  # fraction of the bytes
    fault: Fault | None = None
    running: Running | None = None
    engine: EngineState | None = None
    engine_at: float = 0.0
    silent_since: float | None = None
    verify: Work = Work.NONE
    verify_failures: int = 0
    verify_at: float = 0.0
    retry_at: float = 0.0
    blocked: bool = False
    drain_at: float | None = None
    restarts: int = 0
    crashes: int = 0
    faults: int = 0
    uid: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    reported: tuple[Phase, str, str, int] | None = None
    reported_tail: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.assignment.replica_id

    @property
    def mark(self) -> tuple[Phase, str, str, int]:
        """Changes whenever the control plane should hear of it soon."""
        return self.phase, self.reason, self.running.url if self.running else "", self.assignment.generation

    def move(self, phase: Phase, reason: str, message: str, now: float) -> None:
        """Change the phase along the table; ``since`` is the time of entry into the phase."""
        states.check(self.phase, phase)
        if (phase, reason) != (self.phase, self.reason):
            log.info(
                "replica_moved", replica=self.id, source=self.phase, target=phase, reason=reason, message=message[:200]
            )
        if phase is not self.phase:
            self.since = now
        self.phase, self.reason, self.message = phase, reason, bounded_text(message)

    def save(self) -> None:
        """Make durable what the next agent must know."""
        self.folder.write(self.record(self.running.record if self.running else None))

    def record(self, process: ProcessRecord | None) -> ReplicaRecord:
        """The durable part of the slot, with ``process`` as the engine started or about to be."""
        return ReplicaRecord(
            assignment=self.assignment,
            process=process,
            verified=self.verify is Work.DONE,
            restarts=self.restarts,
            crashes=self.crashes,
            uid=self.uid,
        )

    def view(self) -> ReplicaView:
        """Return the replica as the diff sees it; asks the kernel whether the process lives."""
        return ReplicaView(
            assignment=self.assignment,
            phase=self.phase,
            since=self.since,
            reason=self.reason,
            message=self.message,
            files=self.files,
            fault=self.fault,
            process=self._process_view(),
            engine=self.engine,
            engine_at=self.engine_at,
            silent_since=self.silent_since,
            verify=self.verify,
            verify_failures=self.verify_failures,
            verify_at=self.verify_at,
            retry_at=self.retry_at,
            blocked=self.blocked,
            drain_at=self.drain_at,
            crashes=self.crashes,
            faults=self.faults,
            reported=self.reported == self.mark,
        )

    def _process_view(self) -> ProcessView | None:
        run = self.running
        if run is None:
            return None
        ended = run.process.poll()
        return ProcessView(
            generation=run.record.generation,
            exit=str(ended) if ended else "",
            last_line=enginelog.last_line(self.folder.log) if ended else "",
            term_at=run.term_at,
            kill_at=run.kill_at,
            end_reason=run.end_reason,
            end_message=run.end_message,
        )

    def report(self) -> ReplicaReport:
        """Return what is reported; the log's tail only when it differs from the last one received."""
        tail = enginelog.tail(self.folder.log)
        answering = self.engine if self.running and self.silent_since is None else None
        progress = self.fetched if self.phase is Phase.FETCHING else None
        if answering and self.phase in {Phase.LOADING, Phase.WARMING}:
            progress = answering.progress
        return ReplicaReport(
            replica_id=self.id,
            generation=self.assignment.generation,
            phase=self.phase,
            reason=self.reason,
            message=self.message,
            progress=progress,
            address=self.running.url if self.running else "",
            pid=self.running.process.pid if self.running else None,
            restarts=self.restarts,
            ledger=answering.ledger if answering else None,
            stats=answering.stats if answering else None,
            log_tail=tail if tail != self.reported_tail else [],
        )

    def received(self, report: ReplicaReport, mark: tuple[Phase, str, str, int]) -> None:
        """The control plane has ``report``, which was made when the slot had ``mark``."""
        self.reported = mark
        if report.log_tail:
            self.reported_tail = report.log_tail

    def cancel_work(self) -> None:
        """Stop fetching and verifying."""
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()
