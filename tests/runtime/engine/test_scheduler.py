"""The scheduler alone: budgets, order, bounded preemption, no starvation; under random histories."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.scheduler import MAX_PREEMPTIONS, NeverFits, QueueFull, Scheduler, StepPlan
from runtime.engine.causal.sequences import SamplingParams, Sequence, SequenceState

BLOCK = 4


def scheduler(
    blocks: int = 8, *, seqs: int = 4, budget: int = 16, waiting: int = 100, share: float = 1.0, headroom: int = 0
) -> Scheduler:
    return Scheduler(
        BlockPool(blocks, BLOCK),
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_waiting=waiting,
        tenant_kv_share=share,
        headroom_tokens=headroom,
    )


def sequence(number: int, prompt: int, output: int = 4, first_token: int = 0, **fields: Any) -> Sequence:
    tokens = [first_token + number * 1000 + i for i in range(prompt)]
    sampling = SamplingParams()
    fields.setdefault("salt", fields.get("tenant", "").encode())
    return Sequence(id=number, arrival=number, tokens=tokens, max_total=prompt + output, sampling=sampling, **fields)


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


REQUESTS = st.tuples(st.integers(1, 20), st.integers(1, 12), st.sampled_from("abc"), st.integers(0, 2))


@settings(max_examples=120, deadline=None)
@given(
    sizes=st.lists(REQUESTS, min_size=1, max_size=14),
    blocks=st.integers(8, 14),
    seqs=st.integers(1, 6),
    budget=st.integers(1, 24),
    share=st.sampled_from([1.0, 1.0, 0.7]),
    headroom=st.sampled_from([0, 0, 6]),
    events=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["cancel", "shrink", "grow", "preempt"]), st.integers(0, 13)),
        max_size=8,
    ),
)
def test_every_history_ends_and_the_books_balance(
    sizes: list[tuple[int, int, str, int]],
    blocks: int,
    seqs: int,
    budget: int,
    share: float,
    headroom: int,
    events: list[tuple[int, str, int]],
) -> None:
    sched = scheduler(blocks, seqs=seqs, budget=budget, share=share, headroom=headroom)
    room = sched.ceiling_blocks * BLOCK
    sequences = [
        sequence(n, min(prompt, room - 1), min(output, room - min(prompt, room - 1)), tenant=tenant, priority=priority)
        for n, (prompt, output, tenant, priority) in enumerate(sizes)
    ]
    sched.add(sequences)
    steps, gone = 0, set()

    def check(plan: StepPlan) -> None:
        nonlocal steps
        steps += 1
        pool = sched.pool
        assert pool.free + pool.used + pool.cached == pool.total
        assert pool.total + pool.withdrawn == pool.capacity == blocks
        held: dict[str, set[int]] = {}
        for item in sched.running:
            held.setdefault(item.tenant, set()).update(item.blocks)
        assert pool.holders == {tenant: len(found) for tenant, found in held.items() if found}
        assert all(len(found) <= sched.ceiling_blocks for found in held.values())
        assert plan.num_tokens <= max(budget, seqs)
        assert len({item.sequence.id for item in plan.work}) == len(plan.work) <= seqs
        for item in plan.work:
            assert item.count >= 1
            assert item.start + item.count <= len(item.sequence.blocks) * BLOCK
        for at, what, number in events:
            if at != steps:
                continue
            if what == "cancel" and number < len(sequences):
                sched.finish(sequences[number])
                gone.add(number)
            elif what == "shrink":
                pool.withdraw(number)
            elif what == "grow":
                pool.restore(number)
            elif what == "preempt":
                sched.preempt_one()

    run(sched, check)
    assert all(seq.state is SequenceState.FINISHED for seq in sequences)
    assert all(seq.preemptions <= MAX_PREEMPTIONS for seq in sequences)
    assert sched.pool.used == 0
    assert all(seq.is_full() for n, seq in enumerate(sequences) if n not in gone)


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


def test_of_one_tenant_the_newest_gives_way() -> None:
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


def test_the_tenant_that_holds_most_for_its_weight_gives_way() -> None:
    sched = scheduler(12, seqs=4, budget=32)
    light = sequence(2, 4, 24, tenant="light")
    sched.add([sequence(0, 12, 20, tenant="heavy"), sequence(1, 8, 20, tenant="heavy"), light])
    while not sched.preemptions_total:
        apply(sched, sched.schedule())
    assert light.state is SequenceState.RUNNING
    assert [seq.preemptions for seq in sched.waiting] == [1]
    assert sched.waiting[0].tenant == "heavy"
    weighted = scheduler(12, seqs=4, budget=32)
    paying = [sequence(n, 8, 20, tenant="paying", weight=9.0) for n in range(2)]
    weighted.add([*paying, sequence(2, 4, 24, tenant="light")])
    while not weighted.preemptions_total:
        apply(weighted, weighted.schedule())
    assert [seq.tenant for seq in weighted.waiting] == ["light"]


def test_the_lowest_class_gives_way_before_anybody_else() -> None:
    sched = scheduler(8, seqs=4, budget=32)
    sched.add([sequence(0, 8, 20, priority=0, tenant="a"), sequence(1, 12, 12, priority=1, tenant="b")])
    sched.add([sequence(2, 8, 12, priority=2, tenant="b")])
    while not sched.preemptions_total:
        apply(sched, sched.schedule())
    assert [seq.id for seq in sched.waiting] == [0]
    run(sched)


def test_a_higher_class_is_served_first_and_takes_a_slot_from_a_lower_one() -> None:
    sched = scheduler(64, seqs=2, budget=32)
    shed = [sequence(n, 4, 20, priority=0, tenant="a") for n in range(4)]
    sched.add(shed)
    apply(sched, sched.schedule())
    urgent = [sequence(10 + n, 4, 4, priority=2, tenant="a") for n in range(2)]
    sched.add(urgent)
    plan = sched.schedule()
    assert [item.sequence.id for item in plan.work] == [10, 11]
    assert [seq.id for seq in plan.preempted] == [1, 0]
    apply(sched, plan)
    assert sched.schedule().preempted == ()
    run(sched)
    assert all(seq.is_full() for seq in shed + urgent)


def test_a_class_takes_nothing_from_its_equals() -> None:
    sched = scheduler(64, seqs=1, budget=32)
    sched.add([sequence(0, 4, 8, priority=2)])
    apply(sched, sched.schedule())
    sched.add([sequence(1, 4, 8, priority=2, tenant="other")])
    assert sched.schedule().preempted == ()


def test_a_tenant_at_its_ceiling_is_passed_over_and_others_run() -> None:
    sched = scheduler(16, seqs=8, budget=64, share=0.5)
    sched.add([sequence(n, 16, 4, tenant="greedy") for n in range(3)])
    sched.add([sequence(9, 16, 4, tenant="modest")])
    plan = sched.schedule()
    assert sorted(item.sequence.id for item in plan.work) == [0, 1, 9]
    assert sched.pool.held_by("greedy") == 8
    apply(sched, plan)
    plan = sched.schedule()  # each of the two wants a fifth block: one of them gives way, the other tenant does not
    assert [seq.id for seq in plan.preempted] == [1]
    run(sched)


def test_more_than_one_tenant_may_hold_is_refused_with_the_numbers() -> None:
    with pytest.raises(NeverFits, match="24 tokens, one tenant may hold 16"):
        scheduler(8, share=0.5).add([sequence(0, 20, 2)])


def test_a_block_that_choices_share_counts_once_towards_the_ceiling() -> None:
    sched = scheduler(16, seqs=8, budget=64, share=0.5)
    first = sequence(0, 24, 6)
    sched.add([first])
    apply(sched, sched.schedule())
    sched.add(
        [
            Sequence(id=n, arrival=n, tokens=list(first.tokens[:24]), max_total=26, sampling=first.sampling)
            for n in (1, 2)
        ]
    )
    sched.schedule()
    assert sched.num_running >= 2
    assert sched.pool.held_by("") <= 8


def test_a_pool_that_shrank_gives_the_last_one_back_what_it_needs() -> None:
    sched = scheduler(8, seqs=2, budget=64)
    long = sequence(0, 4, 28)
    sched.add([long])
    apply(sched, sched.schedule())
    assert len(sched.pool.withdraw(8)) == 7
    run(sched)
    assert long.num_output == 28
    sched.pool.withdraw(8)
    sched.add([sequence(1, 30, 2)])  # accepted, because the pool can have its size back
    run(sched)


def test_whoever_is_next_is_not_overtaken_because_it_is_big() -> None:
    sched = scheduler(8, seqs=4, budget=64)
    sched.add([sequence(0, 12, 8)])
    apply(sched, sched.schedule())
    sched.add([sequence(1, 24, 4, tenant="big")])
    sched.add([sequence(2, 2, 4, tenant="small")])
    assert [item.sequence.id for item in sched.schedule().work] == [0]
    run(sched)


def test_who_starts_leaves_room_for_those_who_run() -> None:
    sched = scheduler(8, seqs=4, budget=64, headroom=16)
    sched.add([sequence(0, 8, 16)])
    apply(sched, sched.schedule())
    sched.add([sequence(1, 12, 2)])  # three blocks, six are free, and four of them may be needed
    assert sched.schedule().admitted == ()
    run(sched)
    assert sched.preemptions_total == 0


def test_charges_follow_what_is_computed() -> None:
    sched = scheduler(32, budget=4)
    first = sequence(0, 12, 4, tenant="a")
    sched.add([first])
    apply(sched, sched.schedule())
    assert sched.order.rank("a") == 12
    sched.finish(first)  # after 4 of 12 prompt tokens
    assert sched.order.rank("a") == 4
    again = sequence(0, 12, 4, tenant="a")
    sched.add([again])
    run(sched)
    assert again.num_cached == 4
    assert sched.order.rank("a") == 4 + (12 - 4) + 2 * 4


def test_a_full_queue_makes_room_for_whoever_has_less_in_it() -> None:
    sched = scheduler(64, seqs=1, waiting=4)
    sched.add([sequence(n, 2, tenant="flood") for n in range(5)])
    apply(sched, sched.schedule())
    sched.add([sequence(5, 2, tenant="flood")], reserved=True)
    newcomer = sequence(6, 2, tenant="quiet")
    with pytest.raises(QueueFull):
        sched.add([newcomer])
    crowder = sched.crowder(newcomer, 1)
    assert crowder is not None
    assert crowder.id == 5
    assert sched.crowder(sequence(7, 2, tenant="flood"), 1) is None
    assert sched.crowder(newcomer, 5) is None  # it would then have as many itself
    assert sched.crowder(sequence(8, 2, tenant="flood", priority=2), 1) is crowder
