"""Work that gets nowhere is seen, said, and ended."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from runtime.base.clock import FakeClock
from runtime.engine.causal.scheduler import StepPlan
from runtime.engine.causal.steps import StepResult
from runtime.engine.lifecycle import Loaded
from runtime.engine.process import EngineProcess
from runtime.wire.inference import EngineSpec, EngineState
from runtime.wire.reports import EngineStats, Phase
from tests.build.engines import DEFAULT_SPEC, LocalEngine

pytestmark = pytest.mark.engine


def test_work_without_progress_is_seen(llama_folder: Path) -> None:
    """While nothing is computed after five seconds; a step may take longer."""
    clock = FakeClock()
    engine = LocalEngine(llama_folder, clock=clock)
    run, going, entered = engine.runner.run, threading.Event(), threading.Event()

    def hang(plan: StepPlan) -> StepResult:
        entered.set()
        assert going.wait(30)
        return run(plan)

    engine.runner.run = hang  # type: ignore[method-assign]
    pending = engine.submit([1, 2, 3], 4)
    assert entered.wait(30)
    clock.advance(29)
    assert not engine.engine.stalled()
    clock.advance(2)
    assert engine.engine.stalled()
    assert engine.engine.stuck_seconds() == pytest.approx(31, abs=1)
    going.set()
    assert len(pending.tokens()) == 4
    assert not engine.engine.stalled()
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda **_: StepPlan(())  # type: ignore[method-assign]
    stuck = engine.submit([1, 2, 3], 4)
    clock.advance(4)
    assert not engine.engine.stalled()
    clock.advance(2)
    assert engine.engine.stalled()
    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    assert len(stuck.tokens()) == 4
    assert engine.engine.stuck_seconds() == 0.0
    engine.engine.stop()


async def test_an_engine_that_gets_nowhere_ends_by_itself(tmp_path: Path) -> None:
    """A step that never ends: the process says that it has failed, so that it is started again."""
    clock = FakeClock()
    process = EngineProcess(
        EngineSpec(
            **{**DEFAULT_SPEC, "model_path": "", "format": "gguf", "address_file": str(tmp_path / "address.json")}
        ),
        clock=clock,
        linger_seconds=0.0,
    )
    stuck = [0.0]
    engine = SimpleNamespace(
        stuck_seconds=lambda: stuck[0],
        stalled=lambda: stuck[0] > 30,
        ledger=lambda: None,
        stats=EngineStats,
        max_model_len=512,
    )
    slumber = SimpleNamespace(asleep=False, sleeps=0, wakes=0, last_wake_ms=0.0)
    process.lifecycle.ready(Loaded(engine=engine, renderer=None, grammars=None, slumber=slumber))  # type: ignore[arg-type]
    guard = asyncio.create_task(process._guard(asyncio.create_task(asyncio.sleep(0))))  # type: ignore[arg-type]
    for seconds in (0.0, 100.0, 179.0, 181.0):
        assert process.lifecycle.phase is not Phase.FAILED
        stuck[0] = seconds
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(2.5)
        for _ in range(20):
            await asyncio.sleep(0)
    clock.advance(1)
    await asyncio.wait_for(guard, 10)
    failure = msgspec.json.decode((tmp_path / "failure.json").read_bytes(), type=EngineState)
    assert (failure.phase, failure.reason) == (Phase.FAILED, "EngineStuck")
    assert "181 seconds" in failure.message
