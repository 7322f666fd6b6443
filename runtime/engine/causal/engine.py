"""The causal engine: a loop of steps in a thread of its own, and the calls other threads make.

One lock guards scheduler, jobs and figures. It is held for bookkeeping, never while the device computes, so that a
request is taken or cancelled at once: a cancelled sequence gives its blocks back immediately, and whatever a running
step still writes there is written before anybody else can be given them, because blocks are only handed out between
steps.
"""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Final

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.chores import Chores
from runtime.engine.causal.expiry import Expiries, Expiry
from runtime.engine.causal.gate import WatermarkGate
from runtime.engine.causal.jobs import Choice, GenerationRequest, Job, JobEnded, Sink
from runtime.engine.causal.ledger import MemoryBook
from runtime.engine.causal.outcome import StepBookkeeper
from runtime.engine.causal.pressure import MemoryWatch
from runtime.engine.causal.scheduler import NeverFits, QueueFull, Scheduler, StepPlan
from runtime.engine.causal.sequences import FinishReason, Sequence
from runtime.engine.causal.stats import EngineFigures, LoadFigures
from runtime.engine.causal.steps import OutOfMemory, StepRunner
from runtime.engine.detokenize import OutputText
from runtime.engine.ended import EndedBook
from runtime.engine.tokenizer import TextTokenizer
from runtime.wire.inference import Usage
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats

_log = logs.get(__name__)

_IDLE_WAIT_SECONDS: Final = 1.0
_BLOCKED_WAIT_SECONDS: Final = 0.01
# Without progress for so long something is wrong: while nothing is computed, and while a step is.
_STALL_SECONDS: Final = 5.0
_LONG_STEP_SECONDS: Final = 30.0
_JOIN_SECONDS: Final = 20.0
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
        queue_timeout: float = 0.0,
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.max_model_len = max_model_len
        self._runner = runner
        self._scheduler = scheduler
        self._book = book
        self._gate = gate
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self._queue_timeout = queue_timeout
        self._on_fatal = on_fatal
        self._wake = threading.Condition()
        self.figures = EngineFigures()
        self._steps = StepBookkeeper(scheduler, self.figures, eos_ids, self._end, runner.scrub)
        self._jobs: dict[str, Job] = {}
        self._ended = EndedBook()
        self._arrivals = 0
        self._stopping = False
        self._asleep = False
        self._chores = Chores()
        self._failed_in_a_row = 0
        self._computing = False
        self._last_progress = clock.monotonic()
        self._expiries = Expiries()
        self.watch = MemoryWatch(book, gate, scheduler, runner)
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        """Start the step loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the running step; requests that are still here are failed."""
        with self._wake:
            self._stopping = True
            self._chores.cancel()
            for job in list(self._jobs.values()):
                self._end(job, errors.Unavailable("The engine is shutting down.", code="shutting_down"))
            self._wake.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)  # a step that never ends must not keep the process
        self._runner.close()

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
            if self._asleep:
                raise errors.Unavailable("The engine is asleep.", code="engine_asleep", retry_after=1)
            if request.request_id in self._jobs:
                raise errors.InvalidRequest("A request with this id is already running.", code="duplicate_request")
            job = self._new_job(request, sink, now)
            self._enqueue(job)
            self._jobs[request.request_id] = job
            self._steps.track(job)
            if request.deadline is not None:
                self._expiries.watch(job, request.deadline, Expiry.DEADLINE)
            if self._queue_timeout:
                self._expiries.watch(job, now + self._queue_timeout, Expiry.QUEUE)
            self.figures.counters.requests += 1
            self._wake.notify_all()
            return job

    def _enqueue(self, job: Job) -> None:
        """Queue the first choice of each prompt; a full queue makes room for a tenant that has less in it."""
        leaders = [choice.sequence for choice in job.choices if choice.index % job.request.n == 0]
        while True:
            try:
                self._scheduler.add(leaders, extra=len(job.choices) - len(leaders))
            except NeverFits as exc:
                raise errors.InvalidRequest(f"The request {exc}.", code="context_length_exceeded") from exc
            except QueueFull as exc:
                full = errors.Overloaded(
                    "The waiting queue is full.", code="queue_full", retry_after=_RETRY_AFTER_SECONDS
                )
                crowder = self._scheduler.crowder(leaders[0], len(job.choices))
                other = self._steps.owner(crowder) if crowder is not None else None
                if other is None or other.started:
                    raise full from exc
                self.figures.counters.displaced += 1
                self._end(other, full)
            else:
                return

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
            weight=request.weight,
            priority=request.priority,
            constraint=request.constraint.fresh() if request.constraint is not None else None,
        )
        text = OutputText(
            self.tokenizer,
            stops=request.stops,
            include_stop=request.include_stop,
            skip_special=request.skip_special,
            shown_special=request.shown_special,
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

    def ended(self, request_id: str) -> Usage | None:
        """What a request came to that has ended here lately; ``None`` when there is none such."""
        with self._wake:
            return self._ended.find(request_id)

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
        self._ended.note(job.request.request_id, usage)
        if job.request.counted:
            self.figures.counters.prompt_tokens += usage.prompt_tokens
            self.figures.counters.cached_tokens += usage.cached_tokens
        if error is not None and not isinstance(error, errors.Cancelled):
            self.figures.counters.failed += 1
        job.sink(job, JobEnded(error))

    def sleep(self) -> concurrent.futures.Future[None]:
        """Give the device back once nothing runs: the prefix cache is forgotten, weights go where they can wait.

        The future fails with :class:`errors.Overloaded` when a request came first.
        """
        return self._do(self._fall_asleep)

    def wake(self) -> concurrent.futures.Future[None]:
        """Inverse of :meth:`sleep`; the future fails when the device has no room, and the engine sleeps on."""
        return self._do(self._get_up)

    def _do(self, work: Callable[[], None]) -> concurrent.futures.Future[None]:
        with self._wake:
            if self._stopping:
                raise errors.Unavailable("The engine is shutting down.", code="shutting_down")
            future = self._chores.add(work)
            self._wake.notify_all()
            return future

    def _fall_asleep(self) -> None:
        with self._wake:
            if self._asleep:
                return
            if self._jobs:
                raise errors.Overloaded("A request is running.", code="busy", retry_after=_RETRY_AFTER_SECONDS)
            self._asleep = True
            self._scheduler.pool.drop_cache()
        try:
            freed = self._runner.sleep()
        except BaseException:
            self._asleep = False
            raise
        with self._wake:
            self._book.rest(weights_away=freed)

    def _get_up(self) -> None:
        if not self._asleep:
            return
        self._runner.wake()
        with self._wake:
            self._book.resume()
            self._asleep = False

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
            return EngineStats(
                num_requests_running=self._scheduler.num_running,
                num_requests_waiting=self._scheduler.num_waiting + self._steps.followers_waiting,
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

    def load(self) -> LoadFigures:
        """How busy the engine is, cheap enough for every answer."""
        now = self._clock.monotonic()
        with self._wake:
            scheduler, pool = self._scheduler, self._scheduler.pool
            oldest = scheduler.oldest_waiting()
            job = self._steps.owner(oldest) if oldest is not None else None
            return LoadFigures(
                slots=self._max_num_seqs,
                places=scheduler.max_waiting,
                running=scheduler.num_running,
                waiting=scheduler.num_waiting + self._steps.followers_waiting,
                admission_open=self._gate.open,
                kv_free=pool.available / pool.total,
                tokens_total=self.figures.counters.step_tokens,
                oldest_waiting_ms=(now - job.submitted_at) * 1000.0 if job is not None else 0.0,
                tenants_waiting=scheduler.num_tenants_waiting,
                kv_withdrawn=pool.withdrawn,
            )

    def reset_figures(self) -> None:
        """Forget what was counted so far: the warm-up is nobody's traffic."""
        with self._wake:
            self.figures.reset()

    def stuck_seconds(self) -> float:
        """How long there has been work without any progress."""
        with self._wake:
            return self._clock.monotonic() - self._last_progress if self._jobs else 0.0

    def stalled(self) -> bool:
        """True when there is work and no step has ended for longer than one can take."""
        return self.stuck_seconds() > (_LONG_STEP_SECONDS if self._computing else _STALL_SECONDS)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._jobs or self._stopping or self._chores):
                    self._last_progress = self._clock.monotonic()
                    self._wake.wait(_IDLE_WAIT_SECONDS)
                    self.watch.look(self._clock.monotonic())
                if self._stopping:
                    return
                chore = self._chores.next() if self._chores and not self._jobs else None
                plan = StepPlan(()) if chore else self._plan()
                if not (chore or plan.work):
                    self._wake.wait(_BLOCKED_WAIT_SECONDS)
                    continue
            if chore:
                chore()
            else:
                self._computing = True
                self._step(plan)
                self._computing = False

    def _plan(self) -> StepPlan:
        """Decide the next step. Called with the lock held."""
        now = self._clock.monotonic()
        self._expire(now)
        self.watch.look(now)
        plan = self._scheduler.schedule(admit=self._gate.open)
        self._steps.note_admitted(plan, now)
        return plan

    def _expire(self, now: float) -> None:
        """End what has run out of time. Called with the lock held, between steps and before a step's tokens count."""
        for job, what in self._expiries.due(now):
            if what is Expiry.DEADLINE:
                self._end(job, errors.DeadlineExceeded("The deadline passed.", code="deadline_exceeded"))
            else:
                self.figures.counters.queue_timeouts += 1
                message = f"No slot became free within {self._queue_timeout:g} seconds."
                self._end(job, errors.Overloaded(message, code="queue_timeout", retry_after=_RETRY_AFTER_SECONDS))

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
            self._expire(self._last_progress)
            self._scheduler.commit(plan)
            self._steps.apply(plan, result, self._last_progress)

    def _survive_out_of_memory(self, plan: StepPlan, exc: OutOfMemory) -> None:
        """A step without memory had no effect: make it smaller, or give up the one sequence that does not fit."""
        self.figures.counters.out_of_memory += 1
        _log.warning("step_out_of_memory", sequences=len(plan.work), tokens=plan.num_tokens, error=str(exc)[:200])
        if self._scheduler.preempt_one() is not None:
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
