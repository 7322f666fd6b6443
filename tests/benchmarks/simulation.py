"""A discrete-event engine: the scheduler, queue and block pool of the causal engine, with a clock instead of a model.

Steps take the time that a cost profile says; everything that decides is the product's own code. Figures from here are
simulated, and should be called so.
"""

import dataclasses
from collections.abc import Callable, Iterable

from runtime.engine.causal.scheduler import Scheduler, StepPlan
from runtime.engine.causal.sequences import DEFAULT_PRIORITY, SamplingParams, Sequence, SequenceState

StepSeconds = Callable[[StepPlan], float]
_SAMPLING = SamplingParams(temperature=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when, whose, how many tokens, its priority class and weight."""

    at: float
    tenant: str
    prompt: int
    output: int
    priority: int = DEFAULT_PRIORITY
    weight: float = 1.0


@dataclasses.dataclass(slots=True)
class Served:
    """What became of an arrival: times since the beginning of the run."""

    arrival: Arrival
    first_token_at: float = 0.0
    ended_at: float = 0.0
    preemptions: int = 0


class SimulatedEngine:
    """Plays arrivals through ``scheduler``; ``seconds`` says how long a step takes."""

    def __init__(self, scheduler: Scheduler, seconds: StepSeconds) -> None:
        self._scheduler = scheduler
        self._seconds = seconds
        self.now = 0.0
        self.steps = 0
        self.longest_stand_still = 0  # steps in a row that computed nothing although work waited

    def run(self, arrivals: Iterable[Arrival]) -> list[Served]:
        """Serve everything; results in order of arrival."""
        coming = sorted(arrivals, key=lambda item: item.at)
        served = [Served(item) for item in coming]
        sequences = [_sequence(number, item) for number, item in enumerate(coming)]
        by_id = {sequence.id: result for sequence, result in zip(sequences, served, strict=True)}
        position, idle = 0, 0
        while position < len(coming) or self._scheduler.num_running or self._scheduler.num_waiting:
            while position < len(coming) and coming[position].at <= self.now:
                self._scheduler.add([sequences[position]])
                position += 1
            plan = self._scheduler.schedule()
            if not plan.work:
                idle = idle + 1 if self._scheduler.num_waiting else 0
                self.longest_stand_still = max(self.longest_stand_still, idle)
                if not self._scheduler.num_waiting and not self._scheduler.num_running:
                    self.now = coming[position].at
                continue
            idle = 0
            self.steps += 1
            self.now += self._seconds(plan)
            self._apply(plan, by_id)
        return served

    def _apply(self, plan: StepPlan, results: dict[int, Served]) -> None:
        self._scheduler.commit(plan)
        for item in plan.work:
            sequence = item.sequence
            if not item.samples or sequence.state is not SequenceState.RUNNING:
                continue
            result = results[sequence.id]
            if sequence.num_output == 0:
                result.first_token_at = self.now
            self._scheduler.append(sequence, 0)
            if sequence.is_full():
                result.ended_at, result.preemptions = self.now, sequence.preemptions
                self._scheduler.finish(sequence)


def _sequence(number: int, item: Arrival) -> Sequence:
    return Sequence(
        id=number,
        arrival=number,
        tokens=[0] * item.prompt,
        max_total=item.prompt + item.output,
        sampling=_SAMPLING,
        tenant=item.tenant,
        salt=item.tenant.encode(),
        priority=item.priority,
        weight=item.weight,
    )
