"""The causal engine: a loop of steps in a thread of its own, and the calls other threads make.

One lock guards scheduler, jobs and figures. It is held for bookkeeping, never while the device computes, so that a
request is taken or cancelled at once: a cancelled sequence gives its blocks back immediately, and whatever a running
step still writes there is written before anybody else can be given them, because blocks are only handed out between
steps.
"""

import threading
from collections.abc import Callable
from typing import Final

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.gate import WatermarkGate
from runtime.engine.causal.jobs import Choice, GenerationRequest, Job, JobEnded, Sink
from runtime.engine.causal.ledger import MemoryBook
from runtime.engine.causal.outcome import StepBookkeeper
from runtime.engine.causal.scheduler import NeverFits, QueueFull, Scheduler, StepPlan
from runtime.engine.causal.sequences import FinishReason, Sequence
from runtime.engine.causal.stats import EngineFigures
from runtime.engine.causal.steps import OutOfMemory, StepRunner
from runtime.engine.detokenize import OutputText
from runtime.engine.tokenizer import TextTokenizer
from runtime.wire.inference import Usage
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats

_log = logs.get(__name__)

_OBSERVE_SECONDS: Final = 1.0
_IDLE_WAIT_SECONDS: Final = 1.0
_BLOCKED_WAIT_SECONDS: Final = 0.01
_STALL_SECONDS: Final = 30.0
_MAX_FAILED_STEPS: Final = 3
_RETRY_AFTER_SECONDS: Final = 2


class CausalEngine:
    """Continuous batching over one runner. Methods may be called from any thread."""

    def __init__(
        self,
        *,
        runner: StepRunner,
        scheduler: Scheduler,
        tokenizer: TextTokenizer,
        book: MemoryBook,
        gate: WatermarkGate,
        clock: Clock,
        eos_ids: frozenset[int],
        max_model_len: int,
        max_num_seqs: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self._runner = runner
        self._scheduler = scheduler
        self._book = book
        self._gate = gate
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self._on_fatal = on_fatal
        self._wake = threading.Condition()
        self.figures = EngineFigures()
        self._steps = StepBookkeeper(scheduler, self.figures, eos_ids, self._end, runner.scrub)
        self._jobs: dict[str, Job] = {}
        self._arrivals = 0
        self._stopping = False
        self._failed_in_a_row = 0
        self._last_progress = clock.monotonic()
        self._observed_at = float("-inf")
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        """Start the step loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the running step; requests that are still here are failed."""
        with self._wake:
            self._stopping = True
            for job in list(self._jobs.values()):
                self._end(job, errors.Unavailable("The engine is shutting down.", code="shutting_down"))
            self._wake.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def submit(self, request: GenerationRequest, sink: Sink) -> Job:
        """Take ``request``; ``sink`` is called from the engine's thread with its events, and must not block.

        Raises:
            errors.InvalidRequest: it could never fit into the KV cache.
            errors.Overloaded: the waiting queue is full.
            errors.Unavailable: the engine is stopping.
        """
        now = self._clock.monotonic()
        with self._wake:
            if self._stopping:
                raise errors.Unavailable("The engine is shutting down.", code="shutting_down")
            if request.request_id in self._jobs:
                raise errors.InvalidRequest("A request with this id is already running.", code="duplicate_request")
            job = self._new_job(request, sink, now)
            leaders = [choice.sequence for choice in job.choices if choice.index % request.n == 0]
            try:
                self._scheduler.add(leaders, extra=len(job.choices) - len(leaders))
            except NeverFits as exc:
                raise errors.InvalidRequest(f"The request {exc}.", code="context_length_exceeded") from exc
            except QueueFull as exc:
                raise errors.Overloaded(
                    "The waiting queue is full.", code="queue_full", retry_after=_RETRY_AFTER_SECONDS
                ) from exc
            self._jobs[request.request_id] = job
            self._steps.track(job)
            self.figures.counters.requests += 1
            self._wake.notify_all()
            return job

    def _new_job(self, request: GenerationRequest, sink: Sink, now: float) -> Job:
        choices = []
        for number, prompt in enumerate(request.prompts):
            for copy in range(request.n):
                index = number * request.n + copy
                choices.append(self._new_choice(request, index, list(prompt)))
        followers = {first: choices[first + 1 : first + request.n] for first in range(0, len(choices), request.n)}
        return Job(request=request, choices=choices, followers=followers, submitted_at=now, sink=sink)

    def _new_choice(self, request: GenerationRequest, index: int, prompt: list[int]) -> Choice:
        self._arrivals += 1
        sequence = Sequence(
            id=self._arrivals,
            arrival=self._arrivals,
            tokens=prompt,
            max_total=len(prompt) + request.max_tokens,
            sampling=self._steps.with_seed(request.sampling, request.seeds[index]),
            tenant=request.tenant,
            salt=request.salt,
        )
        text = OutputText(
            self.tokenizer,
            stops=request.stops,
            include_stop=request.include_stop,
            skip_special=request.skip_special,
        )
        return Choice(index=index, sequence=sequence, text=text)

    def cancel(self, request_id: str) -> Usage | None:
        """End a request now; its slot and blocks are free when this returns. ``None`` when it is not here."""
        with self._wake:
            job = self._jobs.get(request_id)
            if job is None:
                return None
            usage = job.usage()
            self.figures.counters.aborted += 1
            self._end(job, errors.Cancelled("The request was cancelled.", code="cancelled"))
            return usage

    def _end(self, job: Job, error: errors.RequestError | None = None) -> None:
        """Give back everything of ``job`` and tell its owner; once. Called with the lock held."""
        if job.ended:
            return
        job.ended = True
        for choice in job.choices:
            self._scheduler.finish(choice.sequence)
            if choice.finished is None:
                choice.finished = FinishReason.FAILED
        self._steps.forget(job)
        del self._jobs[job.request.request_id]
        usage = job.usage()
        self.figures.counters.prompt_tokens += usage.prompt_tokens
        self.figures.counters.cached_tokens += usage.cached_tokens
        if error is not None and not isinstance(error, errors.Cancelled):
            self.figures.counters.failed += 1
        job.sink(job, JobEnded(error))

    @property
    def num_jobs(self) -> int:
        """Requests that have not ended."""
        return len(self._jobs)

    def ledger(self) -> MemoryLedger:
        """The memory ledger as of now."""
        with self._wake:
            return self._book.ledger()

    def stats(self) -> EngineStats:
        """Load and speed as of now."""
        now = self._clock.monotonic()
        with self._wake:
            figures, counters = self.figures, self.figures.counters
            ttft_p50, ttft_p95 = figures.ttft.percentiles_ms(now, 0.5, 0.95)
            itl_p50, itl_p95 = figures.itl.percentiles_ms(now, 0.5, 0.95)
            (queue_p95,) = figures.queue.percentiles_ms(now, 0.95)
            waiting_followers = sum(len(group) for job in self._jobs.values() for group in job.followers.values())
            return EngineStats(
                num_requests_running=self._scheduler.num_running,
                num_requests_waiting=self._scheduler.num_waiting + waiting_followers,
                max_num_seqs=self._max_num_seqs,
                admission_open=self._gate.open,
                requests_total=counters.requests,
                requests_failed_total=counters.failed,
                requests_aborted_total=counters.aborted,
                prompt_tokens_total=counters.prompt_tokens,
                cached_tokens_total=counters.cached_tokens,
                completion_tokens_total=counters.completion_tokens,
                preemptions_total=self._scheduler.preemptions_total,
                steps_total=counters.steps,
                tokens_per_second=figures.tokens_per_second(now),
                ttft_p50_ms=ttft_p50,
                ttft_p95_ms=ttft_p95,
                itl_p50_ms=itl_p50,
                itl_p95_ms=itl_p95,
                queue_p95_ms=queue_p95,
            )

    def reset_figures(self) -> None:
        """Forget what was counted so far: the warm-up is nobody's traffic."""
        with self._wake:
            self.figures.reset()

    def stalled(self) -> bool:
        """True when there is work and no step has ended for a long time."""
        with self._wake:
            return bool(self._jobs) and self._clock.monotonic() - self._last_progress > _STALL_SECONDS

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._stopping:
                    self._last_progress = self._clock.monotonic()
                    self._wake.wait(_IDLE_WAIT_SECONDS)
                    self._watch_memory()
                if self._stopping:
                    return
                plan = self._plan()
                if not plan.work:
                    self._wake.wait(_BLOCKED_WAIT_SECONDS)
                    continue
            self._step(plan)

    def _plan(self) -> StepPlan:
        """Decide the next step. Called with the lock held."""
        now = self._clock.monotonic()
        for job in [job for job in self._jobs.values() if job.request.deadline is not None]:
            if job.request.deadline is not None and job.request.deadline <= now:
                self._end(job, errors.DeadlineExceeded("The deadline passed.", code="deadline_exceeded"))
        self._watch_memory()
        plan = self._scheduler.schedule(admit=self._gate.open)
        self._steps.note_admitted(plan, now)
        return plan

    def _watch_memory(self) -> None:
        """Move the gate by the level; above ``critical`` the newest sequences give way. Called with the lock held."""
        now = self._clock.monotonic()
        if now - self._observed_at >= _OBSERVE_SECONDS:
            self._observed_at = now
            self._book.observe_device()
        level = self._book.level()
        self._gate.observe(level)
        while self._gate.critical(level) and self._scheduler.preempt_newest() is not None:
            level = self._book.level()

    def _step(self, plan: StepPlan) -> None:
        try:
            result = self._runner.run(plan)
        except OutOfMemory as exc:
            with self._wake:
                self._survive_out_of_memory(plan, exc)
            return
        except Exception as exc:  # the boundary that keeps one bad step from taking every tenant down
            _log.exception("step_failed", sequences=len(plan.work), tokens=plan.num_tokens)
            with self._wake:
                self._fail_step(plan, exc)
            return
        with self._wake:
            self._failed_in_a_row = 0
            self._last_progress = self._clock.monotonic()
            self._scheduler.commit(plan)
            self._steps.apply(plan, result, self._last_progress)

    def _survive_out_of_memory(self, plan: StepPlan, exc: OutOfMemory) -> None:
        """A step without memory had no effect: make it smaller, or give up the one sequence that does not fit."""
        self.figures.counters.out_of_memory += 1
        _log.warning("step_out_of_memory", sequences=len(plan.work), tokens=plan.num_tokens, error=str(exc)[:200])
        if self._scheduler.preempt_newest() is not None:
            return
        job = self._steps.owner(plan.work[0].sequence)
        if job is not None:
            error = errors.RequestFailed("The engine has no memory for this request.", code="out_of_memory")
            self._end(job, error)

    def _fail_step(self, plan: StepPlan, exc: Exception) -> None:
        """End the requests of a broken step; several in a row mean that the device or the model is broken."""
        self.figures.counters.failed_steps += 1
        self._failed_in_a_row += 1
        for item in plan.work:
            job = self._steps.owner(item.sequence)
            if job is not None:
                self._end(job, errors.RequestFailed("The engine failed on this step.", code="step_failed"))
        if self._failed_in_a_row >= _MAX_FAILED_STEPS:
            self._stopping = True
            for job in list(self._jobs.values()):
                self._end(job, errors.RequestFailed("The engine has failed.", code="engine_failed"))
            self._on_fatal(f"{self._failed_in_a_row} steps in a row failed; the last with {type(exc).__name__}: {exc}")
