"""Memory planning and the watermark gate: pure arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine import errors
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.gate import WatermarkGate, effective_marks
from runtime.engine.causal.ledger import FixedCosts, MemoryBook, check_weights_fit, idle_level, plan_pool
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
