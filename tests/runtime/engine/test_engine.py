"""The causal engine with a real tiny model: mixes of requests, tenants, faults."""

import dataclasses
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.base.clock import FakeClock
from runtime.engine import errors
from runtime.engine.causal.probes import HostProbe
from runtime.engine.causal.scheduler import StepPlan
from runtime.engine.causal.sequences import FinishReason, SamplingParams
from runtime.engine.causal.steps import OutOfMemory, StepResult
from runtime.engine.ended import EndedBook
from runtime.wire.inference import PRIORITIES, PROBE_TENANT, Usage
from tests.build.engines import GREEDY, LocalEngine, Pending, request, wait_for

pytestmark = pytest.mark.engine

PROMPTS = [[10 + n, 60, 70 + n, 80, 90 + 2 * n][: 2 + n % 4] * (1 + n % 3) for n in range(12)]


def test_batch_mates_change_nothing(local: LocalEngine) -> None:
    hot = SamplingParams(temperature=1.5, seed=5)
    mixes = [GREEDY, hot, SamplingParams(temperature=0.8, top_p=0.7, top_k=20, seed=9)]
    wanted = [
        request(prompt, 12, sampling=mixes[n % 3], seeds=(mixes[n % 3].seed,)) for n, prompt in enumerate(PROMPTS)
    ]
    together = [Pending(local.engine, item) for item in wanted]
    crowd = [pending.tokens() for pending in together]
    alone = [Pending(local.engine, dataclasses.replace(item, request_id=f"alone-{n}")) for n, item in enumerate(wanted)]
    for n, pending in enumerate(alone):
        assert pending.tokens() == crowd[n]


def test_seeds_repeat_and_differ(local: LocalEngine) -> None:
    def draw(seed: int) -> list[int]:
        sampling = SamplingParams(temperature=1.2)
        return local.generate([5, 6, 7], 16, sampling=sampling, seeds=(seed,))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_choices_of_one_prompt_share_its_prefix(local: LocalEngine) -> None:
    prompt = list(range(100, 120))
    pending = local.submit(prompt, 6, n=3, sampling=SamplingParams(temperature=1.0)).wait()
    first, *others = [choice.sequence for choice in pending.job.choices]
    assert first.num_cached == 0
    assert [other.num_cached for other in others] == [16, 16]
    usage = pending.job.usage()
    assert (usage.prompt_tokens, usage.completion_tokens) == (20, 18)
    assert len({tuple(pending.tokens(index)) for index in range(3)}) == 3


def test_prefixes_are_shared_inside_a_tenant_only(local: LocalEngine) -> None:
    prompt = list(range(130, 150))
    first = local.submit(prompt, salt=b"a").wait()
    again = local.submit(prompt, salt=b"a").wait()
    foreign = local.submit(prompt, salt=b"b").wait()
    assert [p.job.usage().cached_tokens for p in (first, again, foreign)] == [0, 16, 0]
    assert first.tokens() == again.tokens() == foreign.tokens()


def test_stop_strings_and_ends_of_text(local: LocalEngine) -> None:
    free = local.submit([40, 41, 42], 24)
    text = free.text()
    stop = text[8:11]
    stopped = local.submit([40, 41, 42], 24, stops=(stop,))
    assert stopped.text() == text[: text.index(stop)]
    assert stopped.outputs[-1].finish is FinishReason.STOP
    token = free.tokens()[5]
    at = free.tokens().index(token)
    ended = local.submit([40, 41, 42], 24, sampling=SamplingParams(temperature=0.0, stop_token_ids=frozenset({token})))
    assert ended.tokens() == free.tokens()[: at + 1]


def test_what_a_request_came_to_is_remembered_and_a_trial_is_nobodys(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder)
    whole, cut = engine.submit([1, 2, 3], 5), engine.submit([4, 5], 200).started()
    whole.tokens()
    usage = cut.cancel()
    engine.submit([6, 7], 3, tenant=PROBE_TENANT).tokens()
    ends = [engine.engine.ended(pending.job.request.request_id) for pending in (whole, cut)]
    assert ends == [Usage(prompt_tokens=3, completion_tokens=5), usage]
    assert engine.engine.ended("never here") is None
    engine.engine.stop()
    stats = engine.engine.stats()
    assert stats.prompt_tokens_total == sum(end.prompt_tokens for end in ends)
    assert stats.completion_tokens_total == sum(end.completion_tokens for end in ends)


def test_the_oldest_ends_are_forgotten_first() -> None:
    book = EndedBook(most=2)
    for number in range(3):
        book.note(str(number), Usage(completion_tokens=number))
    assert [book.find(str(number)) is None for number in range(3)] == [True, False, False]


@pytest.mark.parametrize("moment", ["queue", "running"])
def test_cancel_frees_slot_and_blocks_at_once(llama_folder: Path, moment: str) -> None:
    engine = LocalEngine(llama_folder, max_num_seqs=1)
    busy = engine.submit([1, 2, 3], 200).started()
    victim = busy if moment == "running" else engine.submit([4, 5, 6], 100)
    usage = victim.cancel()
    assert victim.wait().error.code == "cancelled"
    if moment == "running":
        assert usage.prompt_tokens == 3
        assert usage.completion_tokens >= 1
        assert (engine.scheduler.num_running, engine.pool.used) == (0, 0)
    else:
        assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)
        assert engine.scheduler.num_waiting == 0
        busy.cancel()
    assert victim.cancel() is None
    engine.engine.stop()
    stats = engine.engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 0)


def test_a_cancel_in_the_middle_of_a_prompt_frees_everything_before_the_step_ends(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, budget=8)
    run, seen = engine.runner.run, []
    victim = engine.submit([5] * 100, 4)

    def cancel_later(plan: StepPlan) -> StepResult:
        if plan.work[0].start >= 16 and not seen:
            usage = victim.cancel()
            seen.append((usage.prompt_tokens, engine.scheduler.num_running, engine.pool.used))
        return run(plan)

    engine.runner.run = cancel_later  # type: ignore[method-assign]
    assert victim.wait().error.code == "cancelled"
    assert seen == [(16, 0, 0)]
    assert len(engine.generate([1, 2], 3)) == 3
    assert engine.pool.used == 0
    engine.engine.stop()


def test_a_cancel_between_planning_and_running_hurts_nobody(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder)
    run, cancelled = engine.runner.run, []
    victim = engine.submit([1, 2, 3, 4, 5], 40)

    def cancel_first(plan: StepPlan) -> StepResult:
        if len(plan.work) == 2 and not cancelled:
            cancelled.append(victim.cancel())
        return run(plan)

    engine.runner.run = cancel_first  # type: ignore[method-assign]
    mate = engine.submit([9, 8, 7], 20)
    assert len(mate.tokens()) == 20
    assert victim.wait().error.code == "cancelled"
    assert cancelled
    assert engine.engine.figures.counters.failed_steps == 0
    assert engine.pool.used == 0
    engine.engine.stop()


def test_many_users_who_come_and_go_leave_nothing_behind(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, blocks=20, max_num_seqs=5, max_waiting=200)
    rng = random.Random(1)
    pending = []
    for _ in range(60):
        prompt = [rng.randrange(300) for _ in range(rng.randrange(1, 30))]
        pending.append(
            engine.submit(prompt, rng.randrange(1, 20), n=rng.choice([1, 1, 2]), salt=rng.choice([b"a", b"b"]))
        )
        if rng.random() < 0.4:
            rng.choice(pending).cancel()
    for item in pending:
        item.wait()
        assert item.error is None or item.error.code == "cancelled"
    stats = engine.engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting, engine.engine.num_jobs) == (0, 0, 0)
    assert engine.pool.used == 0
    assert engine.engine.figures.counters.failed_steps == 0
    assert stats.requests_total == 60
    engine.engine.stop()


def test_a_small_pool_gives_the_same_tokens_with_preemptions(llama_folder: Path, local: LocalEngine) -> None:
    small = LocalEngine(llama_folder, blocks=14, prefix_cache=False)
    pending = [small.submit(prompt, 30) for prompt in PROMPTS]
    got = [item.tokens() for item in pending]
    assert small.scheduler.preemptions_total > 0
    assert got == [local.generate(prompt, 30) for prompt in PROMPTS]
    assert small.pool.used == 0
    small.engine.stop()


def test_what_never_fits_is_refused_and_small_ones_run(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, blocks=8)
    with pytest.raises(errors.InvalidRequest, match=r"36 tokens, the engine has 32"):
        engine.submit([1] * 20, 16)
    assert len(engine.generate([1, 2], 4)) == 4
    engine.engine.stop()


def test_a_full_queue_refuses_with_a_time_to_come_back(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, max_num_seqs=1, max_waiting=1)
    running = engine.submit([1, 2, 3], 250).started()
    waiting = engine.submit([1, 2, 3], 4)
    with pytest.raises(errors.Overloaded) as refused:
        engine.submit([1, 2, 3], 4)
    assert refused.value.retry_after
    running.cancel()
    assert len(waiting.tokens()) == 4
    engine.engine.stop()


def test_a_deadline_ends_a_request_wherever_it_is(llama_folder: Path) -> None:
    clock = FakeClock()
    engine = LocalEngine(llama_folder, max_num_seqs=1, clock=clock)
    running = engine.submit([1, 2, 3], 250, deadline=clock.monotonic() + 5).started()
    waiting = engine.submit([1, 2, 3], 4, deadline=clock.monotonic() + 3)
    clock.advance(4)
    assert waiting.wait().error.code == "deadline_exceeded"
    assert running.error is None
    clock.advance(2)
    assert running.wait().error.code == "deadline_exceeded"
    assert engine.pool.used == 0
    engine.engine.stop()


def test_a_request_that_waits_too_long_for_a_slot_is_ended(llama_folder: Path) -> None:
    clock = FakeClock()
    engine = LocalEngine(llama_folder, max_num_seqs=1, clock=clock, queue_timeout=5.0)
    running = engine.submit([1, 2, 3], 250).started()
    waiting = engine.submit([1, 2, 3], 4)
    clock.advance(4.9)
    assert engine.engine.load().oldest_waiting_ms == pytest.approx(4900)
    clock.advance(0.1)
    assert waiting.wait().error.code == "queue_timeout"
    assert waiting.error.retry_after
    assert running.error is None  # it had its slot in time, and may take as long as it wants
    running.cancel()
    assert engine.engine.figures.counters.queue_timeouts == 1
    engine.engine.stop()


def test_a_token_that_comes_after_the_deadline_is_not_given(llama_folder: Path) -> None:
    clock = FakeClock()
    engine = LocalEngine(llama_folder, clock=clock)
    run = engine.runner.run

    def slow(plan: StepPlan) -> StepResult:
        clock.advance(3)
        return run(plan)

    engine.runner.run = slow  # type: ignore[method-assign]
    late = engine.submit([1, 2, 3], 8, deadline=clock.monotonic() + 7).wait()
    assert late.error.code == "deadline_exceeded"
    assert late.job.usage().completion_tokens == 2
    assert engine.pool.used == 0
    engine.engine.stop()


def test_a_flood_does_not_keep_others_out_of_the_queue(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, max_num_seqs=1, max_waiting=3)
    busy = engine.submit([1, 2, 3], 250, tenant="flood").started()
    flood = [engine.submit([1, 2, 3], 2, tenant="flood") for _ in range(3)]
    quiet = engine.submit([4, 5], 2, tenant="quiet")
    assert flood[2].wait().error.code == "queue_full"
    with pytest.raises(errors.Overloaded):
        engine.submit([1, 2, 3], 2, tenant="flood")
    busy.cancel()
    assert len(quiet.tokens()) == 2
    assert [len(item.tokens()) for item in flood[:2]] == [2, 2]
    assert engine.engine.figures.counters.displaced == 1
    engine.engine.stop()


def test_a_flood_of_one_tenant_does_not_delay_another(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, max_num_seqs=2)
    ended: list[str] = []
    run = engine.runner.run
    gate = threading.Event()

    def held(plan: StepPlan) -> StepResult:
        gate.wait(30)
        return run(plan)

    engine.runner.run = held  # type: ignore[method-assign]
    flood = [engine.submit([1, 2, n], 4, tenant="flood") for n in range(20)]
    modest = engine.submit([7, 8], 4, tenant="modest")
    for item in [*flood, modest]:
        item.on_end = ended.append
    gate.set()
    for item in [*flood, modest]:
        item.wait()
    assert ended.index("modest") <= 4
    engine.engine.stop()


def test_a_sheddable_request_gives_its_slot_to_a_critical_one_and_ends_well(
    llama_folder: Path, local: LocalEngine
) -> None:
    engine = LocalEngine(llama_folder, max_num_seqs=1)
    shed = engine.submit([1, 2, 3], 200, tenant="a", priority=PRIORITIES.index("sheddable")).started()
    urgent = engine.submit([4, 5, 6], 8, tenant="b", priority=PRIORITIES.index("critical"))
    assert urgent.tokens() == local.generate([4, 5, 6], 8)
    assert shed.tokens() == local.generate([1, 2, 3], 200)
    assert shed.job.choices[0].sequence.preemptions >= 1
    engine.engine.stop()


def test_memory_that_the_pool_gives_back_is_really_free_and_results_stay_right(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, blocks=1024, block_tokens=16)
    first = engine.generate([1, 2, 3], 30)
    total = engine.engine.ledger().total_bytes
    engine.runner.cache.data.fill_(0.5)  # every page is taken now
    before = resident()
    engine.probe.unaccounted = int(total * 0.72)
    wait_for(lambda: engine.pool.withdrawn)
    ledger = engine.engine.ledger()
    assert ledger.kv_blocks_total == 1024 - engine.pool.withdrawn
    gone = engine.pool.withdrawn * engine.runner.cache.data.nbytes // 1024
    assert before - resident() > gone // 2
    engine.runner.cache.data.fill_(0)
    engine.pool.drop_cache()
    assert engine.generate([1, 2, 3], 30) == first
    assert engine.pool.free + engine.pool.used + engine.pool.cached == engine.pool.total
    engine.engine.stop()


def resident() -> int:
    """Bytes of anonymous memory this process holds."""
    return HostProbe().held_bytes()


class Faults:
    """Makes chosen steps of an engine fail: those after ``skip`` others. No step begins before ``go`` is set."""

    def __init__(self, engine: LocalEngine) -> None:
        self.queue: list[Exception] = []
        self.skip = 0
        self.go = threading.Event()
        self.go.set()
        self._run = engine.runner.run
        engine.runner.run = self.run  # type: ignore[method-assign]

    def run(self, plan: StepPlan) -> StepResult:
        assert self.go.wait(30)
        self.skip -= 1
        if self.queue and self.skip < 0:
            raise self.queue.pop(0)
        return self._run(plan)


def test_one_step_without_memory_costs_a_step(llama_folder: Path, local: LocalEngine) -> None:
    engine = LocalEngine(llama_folder)
    faults = Faults(engine)
    faults.queue, faults.skip = [OutOfMemory("no")] * 2, 5
    faults.go.clear()
    pending = [engine.submit(prompt, 20) for prompt in PROMPTS[:4]]
    faults.go.set()
    assert [item.tokens() for item in pending] == [local.generate(prompt, 20) for prompt in PROMPTS[:4]]
    assert engine.engine.figures.counters.out_of_memory == 2
    engine.engine.stop()


def test_a_request_that_never_gets_memory_ends_alone(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder)
    faults = Faults(engine)
    faults.queue = [OutOfMemory("no")]
    assert engine.submit([1, 2, 3], 4).wait().error.code == "out_of_memory"
    assert len(engine.generate([1, 2, 3], 4)) == 4
    engine.engine.stop()


def test_a_broken_step_fails_its_requests_and_the_engine_lives(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder)
    faults = Faults(engine)
    faults.queue = [RuntimeError("a kernel broke")]
    assert engine.submit([1, 2, 3], 4).wait().error.code == "step_failed"
    assert len(engine.generate([1, 2, 3], 4)) == 4
    faults.queue = [RuntimeError("again")] * 3
    for _ in range(3):
        assert engine.submit([1, 2, 3], 4).wait().error is not None
    wait_for(lambda: engine.fatal)
    assert "again" in engine.fatal[0]


def test_numbers_that_are_not_finite_end_one_request_and_spoil_nothing(llama_folder: Path, local: LocalEngine) -> None:
    engine = LocalEngine(llama_folder, prefix_cache=False)
    holder: Any = engine.model.program or engine.model
    name = "greedy" if engine.model.program else "forward"
    compute = getattr(holder, name)

    def break_long(batch, cache):  # type: ignore[no-untyped-def]
        if int(batch.positions.max()) == 10:  # the value before it, which this step reads
            cache.data[:, 1, :, batch.slots[batch.positions == 10] - 1] = float("nan")
        return compute(batch, cache)

    setattr(holder, name, break_long)
    victim = engine.submit([1, 2, 3], 30)
    mate = engine.submit([9, 8], 6)
    assert victim.wait().error.code == "non_finite_logits"
    assert mate.tokens() == local.generate([9, 8], 6)
    assert engine.pool.used == 0
    assert bool(torch.isfinite(engine.runner.cache.data).all())
    engine.engine.stop()


def test_watermarks_close_admission_and_preempt(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, blocks=64)
    total = engine.engine.ledger().total_bytes
    engine.probe.unaccounted = int(total * 0.9)
    pending = [engine.submit(prompt, 30) for prompt in PROMPTS[:4]]
    results = [item.tokens() for item in pending]
    assert all(len(tokens) == 30 for tokens in results)  # one after the other, but all of them
    assert not engine.engine.stats().admission_open
    engine.probe.unaccounted = 0
    wait_for(lambda: engine.engine.stats().admission_open)
    engine.engine.stop()


def test_the_ledger_adds_up_and_idle_means_zero(local: LocalEngine) -> None:
    pending = local.submit([1, 2, 3], 100).started()
    during = local.engine.ledger()
    assert during.kv_used_bytes == during.kv_blocks_used * during.kv_total_bytes // during.kv_blocks_total > 0
    pending.cancel()
    after = local.engine.ledger()
    assert after.kv_blocks_used == 0
    assert after.kv_blocks_cached + local.pool.free == after.kv_blocks_total
    assert after.weights_bytes + after.kv_used_bytes == after.level_bytes
    stats = local.engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 0)


def test_prompt_log_probabilities_match_the_model(local: LocalEngine) -> None:
    prompt = [20, 30, 40, 50, 60, 70]
    sampling = SamplingParams(temperature=0.0, top_logprobs=2, prompt_logprobs=True)
    pending = local.submit(prompt, 0, sampling=sampling).wait()
    scored = pending.job.prompt_logprobs[0]
    assert sorted(scored) == [1, 2, 3, 4, 5]
    follow = local.submit(prompt[:3], 1, sampling=SamplingParams(temperature=0.0, top_logprobs=20)).wait()
    top = dict(follow.outputs[0].pieces[0].top)
    best = scored[3].top[0]
    assert top[best[0]] == pytest.approx(best[1], abs=1e-4)
    assert pending.outputs[-1].finish is FinishReason.LENGTH
    assert pending.tokens() == []
