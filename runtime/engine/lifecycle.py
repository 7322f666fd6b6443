"""Where an engine process is between start and end, readable from any thread."""

import dataclasses
import threading

import msgspec

from runtime.engine.causal import engine as causal
from runtime.engine.causal.grammar import GrammarService
from runtime.engine.slumber import Slumber
from runtime.engine.templates.renderer import TemplateRenderer
from runtime.wire.inference import EngineSpec, EngineState
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, Phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """What exists once a model is loaded."""

    engine: causal.CausalEngine
    renderer: TemplateRenderer | None
    grammars: GrammarService
    slumber: Slumber


class Lifecycle:
    """Phase, reason and progress; and the engine, once there is one."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._phase = Phase.LOADING
        self._reason = ""
        self._message = ""
        self._progress: float | None = 0.0
        self._loaded: Loaded | None = None

    @property
    def phase(self) -> Phase:
        """The phase as reported now: a ready engine may be asleep; one that makes no progress is degraded."""
        loaded = self.loaded
        if self._phase is Phase.READY and loaded is not None:
            if loaded.slumber.asleep:
                return Phase.ASLEEP
            if loaded.engine.stalled():
                return Phase.DEGRADED
        return self._phase

    @property
    def loaded(self) -> Loaded | None:
        """The engine, or ``None`` while it is loading or after it failed."""
        with self._lock:
            return self._loaded

    @property
    def message(self) -> str:
        """A sentence about the phase, where there is something to say."""
        return self._message

    def move(self, phase: Phase, progress: float | None = None) -> None:
        """Enter ``phase``; a failed engine stays failed."""
        with self._lock:
            if self._phase is not Phase.FAILED:
                self._phase, self._progress = phase, progress

    def ready(self, loaded: Loaded) -> None:
        """The model has answered."""
        with self._lock:
            self._loaded = loaded
        self.move(Phase.READY)

    def fail(self, reason: str, message: str) -> None:
        """Enter ``failed`` for good."""
        with self._lock:
            self._phase, self._reason, self._message, self._progress = Phase.FAILED, reason, message, None

    def state(self) -> EngineState:
        """What the agent is told."""
        loaded = self.loaded
        ledger: MemoryLedger | None = None
        stats = EngineStats(max_num_seqs=self._spec.config.max_num_seqs)
        if loaded is not None:
            slumber = loaded.slumber
            ledger = loaded.engine.ledger()
            stats = msgspec.structs.replace(
                loaded.engine.stats(),
                sleeps_total=slumber.sleeps,
                wakes_total=slumber.wakes,
                last_wake_ms=slumber.last_wake_ms,
            )
        phase = self.phase
        stalled = phase is Phase.DEGRADED
        return EngineState(
            replica_id=self._spec.replica_id,
            generation=self._spec.generation,
            phase=phase,
            reason="Stalled" if stalled else self._reason,
            message="There is work, but no step has ended for a while." if stalled else self._message,
            progress=self._progress,
            max_model_len=loaded.engine.max_model_len if loaded else 0,
            ledger=ledger,
            stats=stats,
        )
