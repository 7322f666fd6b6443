"""Memory planning and the watermark gate: pure arithmetic."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine import errors
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.gate import WatermarkGate, effective_marks
from runtime.engine.causal.ledger import (
    FixedCosts,
    MemoryBook,
    check_weights_fit,
    idle_level,
    longest_sequence,
    plan_pool,
)
from runtime.engine.causal.pressure import CALM_SECONDS, MemoryWatch
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.wire.memory import Watermarks
from tests.build.engines import QuietProbe

MIB = 1 << 20
MARKS = Watermarks()


def costs(total: int, *, weights: int = 100, gather: float = 0.1) -> FixedCosts:
    """Sizes in MiB."""
    return FixedCosts(
        total_bytes=total * MIB,
        context_bytes=50 * MIB,
        weights_bytes=weights * MIB,
        workspace_bytes=20 * MIB,
        gather_share=gather,
        block_bytes=MIB // 4,
        block_tokens=16,
    )


@given(total=st.integers(200, 4000), weights=st.integers(1, 150), gather=st.floats(0, 2))
def test_a_full_pool_never_passes_the_critical_mark(total: int, weights: int, gather: float) -> None:
    fixed = costs(total, weights=weights, gather=gather)
    try:
        plan = plan_pool(fixed, marks=MARKS, wanted_kv_bytes=0, wanted_len=0, max_positions=2048)
    except errors.StartError:
        return
    pool = BlockPool(plan.blocks, fixed.block_tokens)
    book = MemoryBook(fixed, plan, pool, QuietProbe(), MARKS)
    pool.take(plan.blocks)
    ledger = book.ledger()
    assert ledger.level <= MARKS.critical
    assert ledger.kv_used_bytes == ledger.kv_total_bytes
    assert plan.max_model_len <= plan.blocks * 16


def test_wishes_are_met_or_refused_with_numbers() -> None:
    plan = plan_pool(costs(1000), marks=MARKS, wanted_kv_bytes=10 * MIB, wanted_len=512, max_positions=2048)
    assert (plan.blocks, plan.max_model_len) == (40, 512)
    with pytest.raises(errors.StartError, match="900 MiB"):
        plan_pool(costs(1000), marks=MARKS, wanted_kv_bytes=900 * MIB, wanted_len=0, max_positions=2048)
    with pytest.raises(errors.StartError, match="4096 tokens"):
        plan_pool(costs(200), marks=MARKS, wanted_kv_bytes=0, wanted_len=4096, max_positions=8192)
    with pytest.raises(errors.StartError, match="2048 positions"):
        plan_pool(costs(1000), marks=MARKS, wanted_kv_bytes=0, wanted_len=4096, max_positions=2048)
    with pytest.raises(errors.StartError, match="100 MiB"):
        check_weights_fit(total_bytes=100 * MIB, context_bytes=0, weights_bytes=99 * MIB, marks=MARKS)


def test_a_ceiling_for_tenants_shortens_the_longest_sequence_or_is_refused() -> None:
    plan = plan_pool(costs(1000), marks=MARKS, wanted_kv_bytes=10 * MIB, wanted_len=0, max_positions=2048)
    assert plan.max_model_len == 640
    assert longest_sequence(plan, block_tokens=16, tenant_kv_share=1.0, wanted_len=0) == 640
    assert longest_sequence(plan, block_tokens=16, tenant_kv_share=0.5, wanted_len=0) == 320
    with pytest.raises(errors.StartError, match="320 tokens"):
        longest_sequence(plan, block_tokens=16, tenant_kv_share=0.5, wanted_len=512)


def test_the_level_leaves_out_what_is_only_cached() -> None:
    fixed = costs(1000)
    plan = plan_pool(fixed, marks=MARKS, wanted_kv_bytes=0, wanted_len=0, max_positions=2048)
    pool = BlockPool(plan.blocks, fixed.block_tokens)
    probe = QuietProbe()
    book = MemoryBook(fixed, plan, pool, probe, MARKS)
    idle = book.level()
    assert idle == pytest.approx(idle_level(fixed, plan))
    blocks = pool.take(4)
    assert book.level() > idle
    pool.publish(blocks[0], b"", list(range(16)))
    pool.release(blocks)
    assert pool.cached == 1
    assert book.level() == idle
    probe.unaccounted = 100 * MIB
    book.observe_device()
    assert book.level() == pytest.approx(idle + 0.1)


def test_the_gate_closes_at_high_and_opens_below_low() -> None:
    gate = WatermarkGate(MARKS)
    seen = [gate.observe(level) for level in (0.5, 0.87, 0.88, 0.8, 0.76, 0.74, 0.87, 0.9)]
    assert seen == [True, True, False, False, False, True, True, False]
    assert not gate.critical(0.95)
    assert gate.critical(0.951)


@given(idle=st.floats(0, 0.949))
def test_marks_stand_above_what_an_idle_engine_holds(idle: float) -> None:
    marks = effective_marks(MARKS, idle)
    assert idle < marks.low <= marks.high <= marks.critical == MARKS.critical
    gate = WatermarkGate(marks)
    gate.observe(1.0)
    assert gate.observe(idle)


class Giving:
    """What a runner does when memory is given back; ``possible`` false is a pool in one piece."""

    def __init__(self, probe: QuietProbe, *, possible: bool = True) -> None:
        self.probe = probe
        self.possible = possible
        self.blocks = 0

    compacts = False

    def give_back(self, blocks: list[int], moves: dict[int, int]) -> int:
        assert not moves
        if not self.possible:
            return 0
        self.blocks += len(blocks)
        return len(blocks) * MIB // 4


class Watched:
    """A scheduler with a memory of 1000 MiB and a watch over it."""

    def __init__(self, *, possible: bool = True) -> None:
        fixed = costs(1000, gather=0.0)
        plan = plan_pool(fixed, marks=MARKS, wanted_kv_bytes=0, wanted_len=0, max_positions=2048)
        self.pool = BlockPool(plan.blocks, fixed.block_tokens)
        self.scheduler = Scheduler(self.pool, max_num_seqs=8, max_num_batched_tokens=4096, max_waiting=64)
        self.probe = QuietProbe()
        self.book = MemoryBook(fixed, plan, self.pool, self.probe, MARKS)
        self.gate = WatermarkGate(MARKS)
        self.giving = Giving(self.probe, possible=possible)
        self.watch = MemoryWatch(self.book, self.gate, self.scheduler, self.giving)
        self.now = 0.0

    def others_take(self, mib: int, seconds: float = 1.0) -> None:
        self.probe.unaccounted = mib * MIB
        self.now += seconds
        self.watch.look(self.now)

    def start(self, count: int, tenant: str = "t", **fields: Any) -> list[Sequence]:
        fields |= {"tenant": tenant, "salt": tenant.encode()}
        first = 100 * len(self.scheduler.running)
        found = [
            Sequence(
                id=first + n, arrival=first + n, tokens=[n] * 256, max_total=300, sampling=SamplingParams(), **fields
            )
            for n in range(count)
        ]
        self.scheduler.add(found)
        self.scheduler.commit(self.scheduler.schedule())
        return found


def test_above_critical_sequences_give_way_in_order_and_the_pool_shrinks_to_what_fits() -> None:
    world = Watched()
    keep = world.start(2, tenant="a", priority=2)
    shed = world.start(3, tenant="b", priority=0)
    world.others_take(770)  # with context, weights and workspace 940 of the 950 that are allowed; each sequence has 4
    assert world.book.level() == pytest.approx(0.948)
    assert world.scheduler.running == tuple(keep)
    assert [seq.preemptions for seq in shed + keep] == [1, 1, 1, 0, 0]
    assert world.pool.total == world.book.blocks_that_fit() == 40
    assert world.pool.used == 32
    assert world.giving.blocks == world.pool.withdrawn > 0
    assert world.watch.shrinks_total == 1
    assert world.pool.free + world.pool.used + world.pool.cached == world.pool.total
    assert not world.gate.open


def test_the_pool_grows_again_when_the_level_has_been_low_for_a_while() -> None:
    world = Watched()
    world.start(1)
    world.others_take(900)
    small = world.pool.total
    assert small < world.pool.capacity
    world.others_take(0)
    assert world.gate.open
    world.others_take(0, CALM_SECONDS - 1)
    assert world.pool.total == small
    world.others_take(700)  # not calm any more: it has to begin again
    world.others_take(0)
    world.others_take(0, CALM_SECONDS)
    assert world.pool.total == world.pool.capacity
    assert world.pool.withdrawn == 0


def test_it_grows_only_as_far_as_it_fits_beside_the_others() -> None:
    world = Watched()
    world.others_take(900)
    assert world.pool.total == 1
    world.others_take(500)
    world.others_take(500, CALM_SECONDS)
    assert world.pool.total == world.book.blocks_that_fit() == (950 - 500 - 170) * 4


def test_a_pool_in_one_piece_keeps_its_size() -> None:
    world = Watched(possible=False)
    running = world.start(3)
    world.others_take(900)
    assert world.pool.total == world.pool.capacity
    assert world.scheduler.num_running == 1
    assert running[0] in world.scheduler.running
    assert world.watch.shrinks_total == 0


def test_what_is_only_cached_neither_closes_admission_nor_preempts() -> None:
    world = Watched()
    for sequence in world.start(4):
        world.scheduler.finish(sequence)
    assert world.pool.cached == 64
    level = world.book.level()
    world.others_take(0)
    assert world.book.level() == level == pytest.approx(0.17)
    assert world.gate.open
