"""The scheduler alone: budgets, order, bounded preemption, no starvation; under random histories."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.scheduler import MAX_PREEMPTIONS, NeverFits, QueueFull, Scheduler, StepPlan
from runtime.engine.causal.sequences import SamplingParams, Sequence, SequenceState

BLOCK = 4


def scheduler(blocks: int = 8, *, seqs: int = 4, budget: int = 16, waiting: int = 100) -> Scheduler:
    pool = BlockPool(blocks, BLOCK)
    return Scheduler(pool, max_num_seqs=seqs, max_num_batched_tokens=budget, max_waiting=waiting)


def sequence(number: int, prompt: int, output: int = 4, first_token: int = 0) -> Sequence:
    tokens = [first_token + number * 1000 + i for i in range(prompt)]
    return Sequence(id=number, arrival=number, tokens=tokens, max_total=prompt + output, sampling=SamplingParams())


def apply(sched: Scheduler, plan: StepPlan) -> None:
    """What the engine does with a step, with a made-up token."""
    sched.commit(plan)
    for item in plan.work:
        if item.sequence.state is not SequenceState.RUNNING or not item.samples:
            continue
        sched.append(item.sequence, 7)
        if item.sequence.is_full():
            sched.finish(item.sequence)


def run(sched: Scheduler, check: Callable[[StepPlan], None] = lambda _plan: None, limit: int = 2000) -> list[StepPlan]:
    plans = []
    while sched.num_running or sched.num_waiting:
        plan = sched.schedule()
        check(plan)
        apply(sched, plan)
        plans.append(plan)
        assert len(plans) < limit, "no end in sight"
    return plans


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=12),
    blocks=st.integers(8, 12),
    seqs=st.integers(1, 5),
    budget=st.integers(1, 24),
    cancels=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 11)), max_size=4),
)
def test_every_history_ends_and_the_books_balance(
    sizes: list[tuple[int, int]], blocks: int, seqs: int, budget: int, cancels: list[tuple[int, int]]
) -> None:
    sched = scheduler(blocks, seqs=seqs, budget=budget)
    sequences = [sequence(n, prompt, output, first_token=n % 3) for n, (prompt, output) in enumerate(sizes)]
    sched.add(sequences)
    steps = 0

    def check(plan: StepPlan) -> None:
        nonlocal steps
        steps += 1
        pool = sched.pool
        assert pool.free + pool.used + pool.cached == pool.total
        assert plan.num_tokens <= max(budget, seqs)
        assert len({item.sequence.id for item in plan.work}) == len(plan.work) <= seqs
        for item in plan.work:
            assert item.count >= 1
            assert item.start + item.count <= len(item.sequence.blocks) * BLOCK
        for at, victim in cancels:
            if at == steps and victim < len(sequences):
                sched.finish(sequences[victim])

    run(sched, check)
    assert all(seq.state is SequenceState.FINISHED for seq in sequences)
    assert all(seq.preemptions <= MAX_PREEMPTIONS for seq in sequences)
    assert sched.pool.used == 0
    cancelled = {victim for _, victim in cancels}
    assert all(seq.is_full() for n, seq in enumerate(sequences) if n not in cancelled)


def test_the_same_history_gives_the_same_plans() -> None:
    def play() -> list[list[tuple[int, int, int]]]:
        sched = scheduler(6)
        sched.add([sequence(n, 7, 6) for n in range(5)])
        return [[(w.sequence.id, w.start, w.count) for w in plan.work] for plan in run(sched)]

    assert play() == play()


def test_one_token_catches_come_before_a_long_prompt() -> None:
    sched = scheduler(64, budget=8)
    sched.add([sequence(0, 4, 20)])
    apply(sched, sched.schedule())
    sched.add([sequence(1, 40)])
    for _ in range(5):
        plan = sched.schedule()
        assert plan.work[0].sequence.id == 0
        assert plan.work[0].count == 1
        assert plan.work[1].count == 7
        apply(sched, plan)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    sched = scheduler(4)
    with pytest.raises(NeverFits, match="20 tokens, the engine has 16"):
        sched.add([sequence(0, 10, 7)])
    assert sched.num_waiting == 0


def test_a_full_queue_takes_all_or_nothing() -> None:
    sched = scheduler(64, seqs=1, waiting=2)
    sched.add([sequence(n, 2) for n in range(3)])
    with pytest.raises(QueueFull):
        sched.add([sequence(3, 2)])
    with pytest.raises(QueueFull):
        scheduler(64, seqs=1, waiting=2).add([sequence(0, 2)], extra=3)
    assert sched.num_waiting == 3


def test_the_newest_gives_way_and_the_oldest_finishes_first() -> None:
    sched = scheduler(6, seqs=3)
    old, new = sequence(0, 8, 12), sequence(1, 8, 12)
    sched.add([old, new])
    while old.state is not SequenceState.FINISHED:
        apply(sched, sched.schedule())
    assert old.preemptions == 0
    assert new.preemptions >= 1
    run(sched)
    assert new.num_output == 12


def test_cancelled_while_waiting_running_or_computing_frees_everything() -> None:
    sched = scheduler(8, seqs=1)
    running, waiting = sequence(0, 8, 8), sequence(1, 8, 8)
    sched.add([running, waiting])
    plan = sched.schedule()
    sched.finish(running)  # while its step runs
    sched.finish(waiting)
    sched.finish(waiting)
    assert (sched.num_running, sched.num_waiting, sched.pool.used) == (0, 0, 0)
    apply(sched, plan)
    assert sched.pool.used == 0
    assert running.num_output == 0


def test_a_closed_gate_holds_admission_but_never_the_last_work() -> None:
    sched = scheduler(64, seqs=4)
    sched.add([sequence(0, 4), sequence(1, 4)])
    assert [item.sequence.id for item in sched.schedule(admit=False).work] == [0]
    assert [item.sequence.id for item in sched.schedule(admit=False).work] == [0]
    assert [item.sequence.id for item in sched.schedule(admit=True).work] == [0, 1]


def test_a_sequence_that_was_preempted_too_often_gets_all_its_blocks_at_once() -> None:
    sched = scheduler(8, seqs=4)
    unlucky = sequence(0, 4, 20)
    unlucky.preemptions = MAX_PREEMPTIONS
    sched.add([unlucky])
    sched.schedule()
    assert len(unlucky.blocks) == 6


def test_the_prefix_cache_serves_the_same_salt_only() -> None:
    sched = scheduler(32, budget=64)
    first = sequence(0, 12)
    sched.add([first])
    run(sched)
    for number, (salt, want) in enumerate([(b"", 8), (b"other", 0)], start=1):
        again = Sequence(
            id=number,
            arrival=number,
            tokens=list(first.tokens[:12]),
            max_total=14,
            sampling=SamplingParams(),
            salt=salt,
        )
        sched.add([again])
        run(sched)
        assert again.num_cached == want
