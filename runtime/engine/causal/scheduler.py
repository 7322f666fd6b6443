"""Which tokens are computed in the next step. No torch, no clock, no randomness: same history, same plans.

Every step has one budget of tokens. Sequences that miss one token (they are decoding) come first, so that a long
prompt never delays a stream by more than the step it shares; what is left of the budget goes to longer catches in
order of arrival, cut into chunks. When the pool runs dry the newest sequence gives its blocks back and recomputes
later. After ``MAX_PREEMPTIONS`` of those a sequence is admitted only with all the blocks it can ever need, and is
then never preempted again: the oldest one can therefore always go on.
"""

import dataclasses
from collections import deque
from typing import Final

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.sequences import Sequence, SequenceState

MAX_PREEMPTIONS: Final = 5


class NeverFits(Exception):
    """The sequence needs more blocks than the whole pool has."""

    def __init__(self, needed_blocks: int, total_blocks: int, block_tokens: int) -> None:
        super().__init__(
            f"needs KV cache for {needed_blocks * block_tokens} tokens, the engine has {total_blocks * block_tokens}"
        )
        self.limit_tokens = total_blocks * block_tokens


class QueueFull(Exception):
    """The waiting queue has no place left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Compute ``count`` tokens of ``sequence`` from ``start`` on; ``samples`` when that catches it up.

    ``blocks`` are its blocks as planned: they stay readable when the sequence is cancelled while the step runs.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    blocks: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``admitted`` and ``preempted`` are for bookkeeping; ``work`` is what the runner does."""

    work: tuple[Work, ...]
    admitted: tuple[Sequence, ...] = ()
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(item.count for item in self.work)


class Scheduler:
    """Owns the waiting queue, the running set and the block pool."""

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int, max_waiting: int) -> None:
        self.pool = pool
        self._max_num_seqs = max_num_seqs
        self._budget = max(max_num_batched_tokens, max_num_seqs)
        self._max_waiting = max_waiting
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.preemptions_total = 0

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a slot, blocks or an open gate."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Running sequences, oldest first."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Waiting sequences, next one first."""
        return tuple(self._waiting)

    def check_fits(self, max_total: int) -> None:
        """Refuse what could never run.

        Raises:
            NeverFits: ``max_total`` tokens need more blocks than exist.
        """
        needed = self.pool.blocks_for(max_total)
        if needed > self.pool.total:
            raise NeverFits(needed, self.pool.total, self.pool.block_tokens)

    def add(self, sequences: list[Sequence], *, extra: int = 0, reserved: bool = False) -> None:
        """Queue all ``sequences`` or none.

        ``extra`` more will follow with ``reserved`` set: their places are checked now and not again.

        Raises:
            NeverFits: one of them could never run.
            QueueFull: the queue has not that many places.
        """
        if not reserved:
            for sequence in sequences:
                self.check_fits(sequence.max_total)
            idle_slots = max(0, self._max_num_seqs - len(self._running) - len(self._waiting))
            if len(self._waiting) + len(sequences) + extra > self._max_waiting + idle_slots:
                raise QueueFull
        for sequence in sequences:
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        """Put ``sequence`` where its arrival belongs."""
        position = len(self._waiting)
        while position and self._waiting[position - 1].arrival > sequence.arrival:
            position -= 1
        self._waiting.insert(position, sequence)

    def schedule(self, *, admit: bool = True) -> StepPlan:
        """Plan the next step; with ``admit`` false nothing that waits gets a slot.

        When nothing runs, one waiting sequence is admitted all the same: a closed gate may slow work, never stop it.
        """
        budget = self._budget
        preempted: list[Sequence] = []
        granted: dict[int, int] = {}
        order = sorted(self._running, key=lambda seq: (seq.num_missing > 1, seq.arrival))
        for sequence in order:
            if budget == 0 or sequence.state is not SequenceState.RUNNING:
                continue
            count = min(sequence.num_missing, budget)
            if self._grow(sequence, sequence.num_computed + count, preempted):
                granted[sequence.id] = count
                budget -= count
        for victim in preempted:
            budget += granted.pop(victim.id, 0)
        admitted = self._admit(budget, granted, open_gate=admit) if not preempted else []
        work = tuple(self._work(seq, granted[seq.id]) for seq in self._running if seq.id in granted)
        return StepPlan(work, tuple(admitted), tuple(preempted))

    def _work(self, sequence: Sequence, count: int) -> Work:
        samples = count == sequence.num_missing
        return Work(sequence, sequence.num_computed, count, samples, sequence.blocks)

    def _grow(self, sequence: Sequence, tokens: int, preempted: list[Sequence]) -> bool:
        """Give ``sequence`` the blocks for ``tokens`` tokens, preempting newer ones; False when it has to wait."""
        lacking = self.pool.blocks_for(tokens) - len(sequence.blocks)
        while lacking > self.pool.available:
            victim = self._victim()
            if victim is None or (victim is sequence and self._only_preemptible(sequence)):
                return False  # all others hold every block they can need and will finish: wait for that
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        if lacking > 0:
            sequence.blocks.extend(self.pool.take(lacking))
        return True

    def _victim(self) -> Sequence | None:
        """The newest running sequence that may still be preempted."""
        return next((seq for seq in reversed(self._running) if seq.preemptions < MAX_PREEMPTIONS), None)

    def _only_preemptible(self, sequence: Sequence) -> bool:
        """True when others run and none of them may be preempted."""
        others = [seq for seq in self._running if seq is not sequence]
        return bool(others) and all(seq.preemptions >= MAX_PREEMPTIONS for seq in others)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._drop_blocks(sequence)
        sequence.preemptions += 1
        self.preemptions_total += 1
        sequence.state = SequenceState.WAITING
        self._enqueue(sequence)

    def _drop_blocks(self, sequence: Sequence, *, keep: bool = True) -> None:
        self.pool.release(sequence.blocks, keep=keep)
        sequence.blocks, sequence.names = [], []  # new lists: a running step still reads the old ones
        sequence.num_computed = 0

    def preempt_newest(self) -> Sequence | None:
        """Take the newest preemptible sequence out of the running set, but never the last one running."""
        if len(self._running) < 2:
            return None
        victim = self._victim()
        if victim is not None:
            self._preempt(victim)
        return victim

    def _admit(self, budget: int, granted: dict[int, int], *, open_gate: bool) -> list[Sequence]:
        """Move waiting sequences to running, in order, while slots, budget and blocks last."""
        admitted: list[Sequence] = []
        while self._waiting and budget > 0 and len(self._running) < self._max_num_seqs:
            if not open_gate and self._running:
                break
            sequence = self._waiting[0]
            count = self._try_start(sequence, budget)
            if count == 0:
                break  # no newer one overtakes: what waits first is served first
            self._waiting.popleft()
            sequence.state = SequenceState.RUNNING
            self._running.append(sequence)
            self._running.sort(key=lambda seq: seq.arrival)
            granted[sequence.id] = count
            budget -= count
            admitted.append(sequence)
        return admitted

    def _try_start(self, sequence: Sequence, budget: int) -> int:
        """Take the first blocks of ``sequence``; return how many tokens it computes, 0 when it has to wait."""
        # Log-probabilities of the prompt need its hidden states, which a cached prefix does not have.
        wanted = [] if sequence.sampling.prompt_logprobs else sequence.tokens
        blocks, names = self.pool.match(sequence.salt, wanted)
        computed = len(blocks) * self.pool.block_tokens
        count = min(len(sequence.tokens) - computed, budget)
        reserve = sequence.max_total if sequence.preemptions >= MAX_PREEMPTIONS else computed + count
        lacking = self.pool.blocks_for(reserve) - len(blocks)
        if lacking > self.pool.available:
            self.pool.release(blocks)
            return 0
        sequence.blocks = blocks + self.pool.take(lacking)
        sequence.names = names
        sequence.num_computed = computed
        if not sequence.admitted:
            sequence.num_cached = min(computed, sequence.num_prompt)
            sequence.admitted = True
        return count

    def commit(self, plan: StepPlan) -> None:
        """Book the tokens of ``plan`` as computed and publish the blocks they filled."""
        for item in plan.work:
            sequence = item.sequence
            if sequence.state is not SequenceState.RUNNING:
                continue
            sequence.num_computed = item.start + item.count
            sequence.num_seen = max(sequence.num_seen, sequence.num_computed)
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        size = self.pool.block_tokens
        for number in range(len(sequence.names), sequence.num_computed // size):
            parent = sequence.names[-1] if sequence.names else sequence.salt
            tokens = sequence.tokens[number * size : (number + 1) * size]
            sequence.names.append(self.pool.publish(sequence.blocks[number], parent, tokens))

    def append(self, sequence: Sequence, token: int) -> None:
        """Add a sampled token; its keys and values are computed by a later step."""
        sequence.tokens.append(token)

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """End ``sequence`` wherever it is and give its blocks back; twice is harmless.

        ``keep=False`` forgets their content too, for a sequence whose numbers cannot be trusted.
        """
        if sequence.state is SequenceState.FINISHED:
            return
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        elif sequence in self._waiting:  # a choice whose turn to queue has not come is in neither
            self._waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED
        self._drop_blocks(sequence, keep=keep)
