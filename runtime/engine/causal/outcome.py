"""What a step's tokens mean for the requests: text, stops, ends, figures."""

import dataclasses
from collections.abc import Callable

from runtime.engine import errors
from runtime.engine.causal.jobs import Choice, Job, Output, TokenPiece
from runtime.engine.causal.scheduler import Scheduler, StepPlan
from runtime.engine.causal.sequences import FinishReason, SamplingParams, Sequence, SequenceState
from runtime.engine.causal.stats import EngineFigures
from runtime.engine.causal.steps import Sampled, StepResult, TokenLogprob

EndJob = Callable[[Job, errors.RequestError | None], None]


class StepBookkeeper:
    """Applies results to jobs. Every method is called with the engine's lock held."""

    def __init__(
        self,
        scheduler: Scheduler,
        figures: EngineFigures,
        eos_ids: frozenset[int],
        end: EndJob,
        scrub: Callable[[list[int]], None],
    ) -> None:
        self._scheduler = scheduler
        self._figures = figures
        self._eos_ids = eos_ids
        self._end = end
        self._scrub = scrub
        self._owners: dict[int, tuple[Job, Choice]] = {}
        self.followers_waiting = 0  # choices whose turn to queue has not come

    @staticmethod
    def with_seed(sampling: SamplingParams, seed: int) -> SamplingParams:
        """``sampling`` with the seed of one choice."""
        return dataclasses.replace(sampling, seed=seed)

    def track(self, job: Job) -> None:
        """Remember whose the sequences of ``job`` are."""
        for choice in job.choices:
            self._owners[choice.sequence.id] = (job, choice)
        self.followers_waiting += sum(map(len, job.followers.values()))

    def forget(self, job: Job) -> None:
        """Inverse of :meth:`track`."""
        for choice in job.choices:
            self._owners.pop(choice.sequence.id, None)
        self.followers_waiting -= sum(map(len, job.followers.values()))
        job.followers = {}

    def owner(self, sequence: Sequence) -> Job | None:
        """The job of ``sequence``, while it lasts."""
        found = self._owners.get(sequence.id)
        return found[0] if found else None

    def note_admitted(self, plan: StepPlan, now: float) -> None:
        """Record how long newly admitted sequences waited; one that was preempted has waited before."""
        for sequence in plan.admitted:
            found = self._owners.get(sequence.id)
            if found is not None:
                found[0].started = True
                if sequence.preemptions == 0:
                    self._figures.queue.add(now, now - found[0].submitted_at)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Book one step that went well."""
        self._figures.counters.steps += 1
        self._figures.counters.step_tokens += plan.num_tokens
        generated = 0
        for item in plan.work:
            found = self._owners.get(item.sequence.id)
            if found is None or item.sequence.state is not SequenceState.RUNNING:
                continue  # cancelled while the step ran
            job, choice = found
            if result.prompt_logprobs:
                self._note_prompt_logprobs(job, choice, result)
            outcome = result.sampled.get(item.sequence.id)
            if outcome is not None:
                advanced = self._advance(job, choice, outcome, now)
                generated += advanced if job.request.counted else 0
        self._figures.add_tokens(now, generated)

    def _note_prompt_logprobs(self, job: Job, choice: Choice, result: StepResult) -> None:
        found = result.prompt_logprobs.get(choice.sequence.id)
        if found:
            kept = job.prompt_logprobs.setdefault(choice.index, {})
            for position, value in found.items():
                kept[position] = _piece(choice.sequence.tokens[position], value)

    def _advance(self, job: Job, choice: Choice, outcome: Sampled, now: float) -> int:
        """Add one sampled token to ``choice``; return how many tokens were generated (0 or 1)."""
        sequence = choice.sequence
        self._release_followers(job, choice)
        if sequence.is_full():  # nothing was asked for beyond the prompt
            self._finish(job, choice, "", (), FinishReason.LENGTH)
            return 0
        if outcome.token is None:
            self._break(job, choice, outcome.failure)
            return 0
        token = outcome.token
        self._scheduler.append(sequence, token)
        self._time_token(job, choice, now)
        pieces = (_piece(token, outcome.logprob),) if outcome.logprob is not None else ()
        ends = token in sequence.sampling.stop_token_ids or (token in self._eos_ids and not job.request.ignore_eos)
        if ends:
            self._finish(job, choice, choice.text.finish(), pieces, FinishReason.STOP)
            return 1
        delta = choice.text.push(token)
        if delta.stopped:
            self._finish(job, choice, delta.text, pieces, FinishReason.STOP)
        elif sequence.is_full():
            self._finish(job, choice, delta.text + choice.text.finish(), pieces, FinishReason.LENGTH)
        elif delta.text or pieces:
            job.sink(job, Output(choice.index, delta.text, pieces))
        return 1

    def _time_token(self, job: Job, choice: Choice, now: float) -> None:
        if choice.last_token_at is None:
            self._figures.ttft.add(now, now - job.submitted_at)
        else:
            self._figures.itl.add(now, now - choice.last_token_at)
        choice.last_token_at = now

    def _release_followers(self, job: Job, choice: Choice) -> None:
        """The prompt of ``choice`` is computed: its other choices find it in the prefix cache."""
        followers = job.followers.pop(choice.index, [])
        if followers:
            self.followers_waiting -= len(followers)
            self._scheduler.add([follower.sequence for follower in followers], reserved=True)

    def _finish(
        self, job: Job, choice: Choice, text: str, pieces: tuple[TokenPiece, ...], reason: FinishReason
    ) -> None:
        choice.finished = reason
        self._scheduler.finish(choice.sequence)
        job.sink(job, Output(choice.index, text, pieces, reason))
        if job.done:
            self._end(job, None)

    def _break(self, job: Job, choice: Choice, failure: str) -> None:
        """This sequence cannot go on: its grammar is at its limits, or its numbers are not finite. End it alone."""
        if failure:
            message = f"The output cannot follow the grammar any further: {failure}."
            self._end(job, errors.RequestFailed(message, code="grammar_failed"))
            return
        self._scrub(choice.sequence.blocks)  # nothing of it may reach another one
        self._scheduler.finish(choice.sequence, keep=False)
        self._end(
            job, errors.RequestFailed("The model produced numbers that are not finite.", code="non_finite_logits")
        )


def _piece(token: int, value: TokenLogprob) -> TokenPiece:
    return TokenPiece(token, value.value, value.top)
