"""Which tokens are computed in the next step. No torch, no clock, no randomness: same history, same plans.

Every step has one budget of tokens. Sequences that miss one token (they are decoding) come first, so that a long
prompt never delays a stream by more than the step it shares; what is left of the budget goes to longer catches, cut
into chunks, and then to whoever is next in the waiting queue (``waiting``, ``fairness``).

When the pool runs dry, or a tenant is at its ceiling, a sequence gives its blocks back and recomputes later
(``victims`` says which). After ``MAX_PREEMPTIONS`` of those it is admitted only with all the blocks it can ever need,
and is never preempted again: so somebody can always go on. Whoever is next is never overtaken because it is big; only
tenants that are at their ceiling are passed over.
"""

import dataclasses
from typing import Final

from runtime.engine.causal import victims
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.fairness import INPUT_COST, OUTPUT_COST, TenantOrder, VirtualTokenCounters
from runtime.engine.causal.sequences import Sequence, SequenceState
from runtime.engine.causal.victims import MAX_PREEMPTIONS
from runtime.engine.causal.waiting import WaitingQueue

__all__ = ["MAX_PREEMPTIONS", "NeverFits", "QueueFull", "Scheduler", "StepPlan", "Work"]

# Whoever starts beside others leaves each of them room for this many tokens: otherwise the next ones to grow would
# throw it out again. On a replayed trace 32 made preemptions rare and throughput highest; more only keeps slots empty.
HEADROOM_TOKENS: Final = 32


class NeverFits(Exception):
    """The sequence needs more blocks than there are for its tenant."""

    def __init__(self, needed_blocks: int, total_blocks: int, block_tokens: int, *, ceiling: bool = False) -> None:
        whose = "one tenant may hold" if ceiling else "the engine has"
        super().__init__(
            f"needs KV cache for {needed_blocks * block_tokens} tokens, {whose} {total_blocks * block_tokens}"
        )
        self.limit_tokens = total_blocks * block_tokens


class QueueFull(Exception):
    """The waiting queue has no place left."""


@dataclasses.dataclass(slots=True)  # not frozen: one per sequence and step, and freezing costs three times as much
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
        return sum([item.count for item in self.work])


class Scheduler:
    """Owns the waiting queue, the running set and the block pool.

    ``tenant_kv_share`` is the largest fraction of the pool's capacity that one tenant may hold.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_waiting: int,
        order: TenantOrder | None = None,
        tenant_kv_share: float = 1.0,
        headroom_tokens: int = HEADROOM_TOKENS,
    ) -> None:
        self.pool = pool
        self.order = order if order is not None else VirtualTokenCounters()
        self.max_num_seqs = max_num_seqs
        self.max_waiting = max_waiting
        self.ceiling_blocks = max(1, int(pool.capacity * tenant_kv_share))
        self._budget = max(max_num_batched_tokens, max_num_seqs)
        self._headroom_tokens = headroom_tokens
        self._queue = WaitingQueue(self.order)
        self._running: list[Sequence] = []
        self._blocked: tuple[Sequence, int, int] | None = None  # who could not start, and in which situation
        self.preemptions_total = 0

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a slot, blocks or an open gate."""
        return len(self._queue)

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
        """Waiting sequences by class and tenant, as their turns stand now."""
        return tuple(self._queue)

    @property
    def num_tenants_waiting(self) -> int:
        """Tenants that have something waiting."""
        return len(self._queue.tenants)

    def oldest_waiting(self) -> Sequence | None:
        """The waiting sequence that came first."""
        return self._queue.oldest()

    def check_fits(self, max_total: int) -> None:
        """Refuse what could never run. A pool that has shrunk for now is taken at its full size.

        Raises:
            NeverFits: ``max_total`` tokens need more blocks than exist, or than one tenant may hold.
        """
        needed = self.pool.blocks_for(max_total)
        if needed > self.ceiling_blocks:
            limited = self.ceiling_blocks < self.pool.capacity
            raise NeverFits(needed, self.ceiling_blocks, self.pool.block_tokens, ceiling=limited)

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
            idle_slots = max(0, self.max_num_seqs - len(self._running) - len(self._queue))
            if len(self._queue) + len(sequences) + extra > self.max_waiting + idle_slots:
                raise QueueFull
        for sequence in sequences:
            self._queue.push(sequence)

    def crowder(self, newcomer: Sequence, places: int) -> Sequence | None:
        """Who has to leave the full queue for ``newcomer``, which needs ``places``; ``None`` when nobody has to."""
        return self._queue.crowder(newcomer, places)

    def schedule(self, *, admit: bool = True) -> StepPlan:
        """Plan the next step; with ``admit`` false nothing that waits gets a slot.

        When nothing runs, one waiting sequence is admitted all the same: a closed gate may slow work, never stop it.
        """
        budget, size = self._budget, self.pool.block_tokens
        preempted: list[Sequence] = []
        granted: dict[int, int] = {}
        for sequence in self._in_order():
            if budget == 0:
                break
            if sequence.state is not SequenceState.RUNNING:
                continue  # it gave way to one before it
            count = min(len(sequence.tokens) - sequence.num_computed, budget)
            end = sequence.num_computed + count
            if end <= len(sequence.blocks) * size or self._grow(sequence, end, preempted):
                granted[sequence.id] = count
                budget -= count
        for victim in preempted:
            budget += granted.pop(victim.id, 0)
        admitted = (
            self._admit(budget, granted, preempted, open_gate=admit) if len(self._queue) and not preempted else []
        )
        work = tuple([self._work(seq, granted[seq.id]) for seq in self._running if seq.id in granted])
        return StepPlan(work, tuple(admitted), tuple(preempted))

    def _in_order(self) -> list[Sequence]:
        """Running sequences: those that miss one token, oldest first; then the others, highest class first."""
        single = [seq for seq in self._running if len(seq.tokens) - seq.num_computed <= 1]
        if len(single) == len(self._running):
            return single
        longer = [seq for seq in self._running if len(seq.tokens) - seq.num_computed > 1]
        longer.sort(key=lambda seq: (-seq.priority, seq.arrival))
        return single + longer

    def _work(self, sequence: Sequence, count: int) -> Work:
        start = sequence.num_computed
        return Work(sequence, start, count, count == len(sequence.tokens) - start, sequence.blocks)

    def _grow(self, sequence: Sequence, tokens: int, preempted: list[Sequence]) -> bool:
        """Give ``sequence`` the blocks for ``tokens`` tokens, preempting others; False when it has to wait."""
        lacking = self.pool.blocks_for(tokens) - len(sequence.blocks)
        while True:
            above = self.pool.held_by(sequence.tenant) + lacking > self.ceiling_blocks
            if not above and lacking <= self.pool.available:
                sequence.blocks.extend(self.pool.take(lacking, sequence.tenant))
                return True
            rivals = [seq for seq in self._running if seq.tenant == sequence.tenant] if above else self._running
            if len(rivals) == 1:
                if not self.pool.restore(lacking - self.pool.available):
                    return False
                continue  # the last one gets back what the pool had shrunk by
            victim = victims.choose(rivals, self.pool.holders, self.order)
            others_stay = all(seq.preemptions >= MAX_PREEMPTIONS for seq in rivals if seq is not sequence)
            if victim is None or (victim is sequence and others_stay):
                return False  # all others hold every block they can need and will finish: wait for that
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._drop_blocks(sequence)
        sequence.preemptions += 1
        self.preemptions_total += 1
        sequence.state = SequenceState.WAITING
        self._queue.push(sequence)

    def _drop_blocks(self, sequence: Sequence, *, keep: bool = True) -> None:
        self.pool.release(sequence.blocks, keep=keep)
        sequence.blocks = []  # a new list: a running step still reads the old one
        sequence.num_published = sequence.num_computed = 0

    def shrink(self, count: int, *, compact: bool) -> tuple[list[int], dict[int, int]]:
        """Take up to ``count`` blocks out of the pool; with ``compact`` those at its end, whose content moves.

        Returns the blocks and where the moved ones are now. Call between steps.
        """
        if not compact:
            return self.pool.withdraw(count), {}
        gone, moves = self.pool.compact(count)
        for sequence in self._running if moves else ():
            sequence.blocks = [moves.get(block, block) for block in sequence.blocks]
        return gone, moves

    def preempt_one(self) -> Sequence | None:
        """Take one sequence out of the running set, but never the last one running."""
        if len(self._running) < 2:
            return None
        victim = victims.choose(self._running, self.pool.holders, self.order)
        if victim is not None:
            self._preempt(victim)
        return victim

    def _admit(
        self, budget: int, granted: dict[int, int], preempted: list[Sequence], *, open_gate: bool
    ) -> list[Sequence]:
        """Move waiting sequences to running, in turn, while slots, budget and blocks last.

        One of a higher class takes slot and blocks of lower ones; those are added to ``preempted``.
        """
        admitted: list[Sequence] = []
        at_ceiling: set[str] = set()
        while budget > 0 and (open_gate or not self._running) and self._may_get_a_slot():
            sequence = self._queue.next(at_ceiling)
            if sequence is None or sequence in preempted:
                break
            count = self._try_start(sequence, budget) if len(self._running) < self.max_num_seqs else 0
            if count < 0:
                at_ceiling.add(sequence.tenant)
                continue
            if count == 0:
                victim = self._lower_class(sequence, granted, admitted)
                if victim is None:
                    break  # no newer one overtakes: whose turn it is is served first
                budget += granted.pop(victim.id, 0)
                self._preempt(victim)
                preempted.append(victim)
                continue
            self._start(sequence)
            granted[sequence.id] = count
            budget -= count
            admitted.append(sequence)
        return admitted

    def _may_get_a_slot(self) -> bool:
        """False when all slots are taken, and by nobody of a lower class than whoever is next."""
        if len(self._running) < self.max_num_seqs:
            return True
        top = self._queue.top_priority()
        return any(seq.priority < top for seq in self._running)

    def _start(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)
        self.order.served(sequence.tenant)
        sequence.state = SequenceState.RUNNING
        position = len(self._running)
        while position and self._running[position - 1].arrival > sequence.arrival:
            position -= 1
        self._running.insert(position, sequence)

    def _lower_class(self, sequence: Sequence, granted: dict[int, int], admitted: list[Sequence]) -> Sequence | None:
        """Who gives way to ``sequence``, which waits and is of a higher class; ``None`` when that would not help."""
        lower = [seq for seq in self._running if seq.priority < sequence.priority and seq not in admitted]
        lower = [seq for seq in lower if seq.preemptions < MAX_PREEMPTIONS]
        room = self.pool.available + sum(len(seq.blocks) for seq in lower)
        if room < self.pool.blocks_for(len(sequence.tokens)):
            return None
        return victims.choose(lower, self.pool.holders, self.order)

    def _try_start(self, sequence: Sequence, budget: int) -> int:
        """Take the first blocks of ``sequence``; return how many tokens it computes.

        0 when it has to wait, less when it is its tenant's ceiling that it has to wait for.
        """
        pool = self.pool
        if self._running and self._blocked is not None:
            who, releases, available = self._blocked
            if who is sequence and releases == pool.releases and available >= pool.available:
                return 0  # nothing was given back since it last had to wait
        # Log-probabilities of the prompt need its hidden states, which a cached prefix does not have.
        wanted = [] if sequence.sampling.prompt_logprobs else sequence.tokens
        blocks, _ = pool.match(sequence.salt, wanted, sequence.tenant, sequence.chain)
        computed = len(blocks) * pool.block_tokens
        count = min(len(sequence.tokens) - computed, budget)
        reserve = sequence.max_total if sequence.preemptions >= MAX_PREEMPTIONS else computed + count
        lacking = pool.blocks_for(reserve) - len(blocks)
        if pool.held_by(sequence.tenant) + lacking > self.ceiling_blocks:
            pool.release(blocks)
            return -1
        if not self._running and lacking > pool.available:
            pool.restore(lacking - pool.available)
        if lacking + self._headroom() > pool.available:
            pool.release(blocks)
            self._blocked = (sequence, pool.releases, pool.available)
            return 0
        sequence.blocks = blocks + pool.take(lacking, sequence.tenant)
        sequence.num_published = len(blocks)
        sequence.num_computed = computed
        if not sequence.admitted:
            sequence.num_cached = min(computed, sequence.num_prompt)
            sequence.admitted = True
            self.order.charge(sequence.tenant, INPUT_COST * (sequence.num_prompt - sequence.num_cached))
        return count

    def _headroom(self) -> int:
        """Blocks that whoever starts leaves to those who run; their remaining need is known."""
        most = self._headroom_tokens
        tokens = sum([min(most, seq.max_total - len(seq.tokens)) for seq in self._running])
        return self.pool.blocks_for(tokens)

    def commit(self, plan: StepPlan) -> None:
        """Book the tokens of ``plan`` as computed and publish the blocks they filled."""
        size = self.pool.block_tokens
        for item in plan.work:
            sequence = item.sequence
            if sequence.state is not SequenceState.RUNNING:
                continue
            computed = sequence.num_computed = item.start + item.count
            if computed > sequence.num_seen:
                sequence.num_seen = computed
            if computed // size > sequence.num_published and self.pool.prefix_cache:
                self._publish(sequence, computed // size)

    def _publish(self, sequence: Sequence, full: int) -> None:
        """Tell the pool what the first ``full`` blocks of ``sequence`` hold."""
        size, chain = self.pool.block_tokens, sequence.chain
        for number in range(sequence.num_published, full):
            parent = chain[number - 1] if number else sequence.salt
            tokens = sequence.tokens[number * size : (number + 1) * size]
            name = self.pool.publish(
                sequence.blocks[number], parent, tokens, chain[number] if number < len(chain) else None
            )
            if number == len(chain):
                chain.append(name)
        sequence.num_published = full

    def append(self, sequence: Sequence, token: int) -> None:
        """Add a sampled token; its keys and values are computed by a later step."""
        sequence.tokens.append(token)
        self.order.charge(sequence.tenant, OUTPUT_COST)

    def finish(self, sequence: Sequence, *, keep: bool = True) -> None:
        """End ``sequence`` wherever it is and give its blocks back; twice is harmless.

        ``keep=False`` forgets their content too, for a sequence whose numbers cannot be trusted.
        """
        if sequence.state is SequenceState.FINISHED:
            return
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        else:
            self._queue.remove(sequence)  # a choice whose turn to queue has not come is in neither
        sequence.state = SequenceState.FINISHED
        unread = sequence.num_prompt - max(sequence.num_seen, sequence.num_cached)
        if sequence.admitted and unread > 0:
            self.order.charge(sequence.tenant, -INPUT_COST * unread)
        self._drop_blocks(sequence, keep=keep)
