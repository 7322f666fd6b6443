"""Sleep and wake: memory really given back, the same answers afterwards, and no request lost to it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch

from runtime.base.clock import Clock
from runtime.engine import errors
from runtime.engine.causal.sleep import Sleeper
from runtime.engine.causal.steps import OutOfMemory
from runtime.engine.causal.storages import storages_of
from runtime.engine.slumber import Slumber
from runtime.wire.assignments import EngineConfig
from runtime.wire.reports import Phase
from tests.build.engines import DEFAULT_SPEC, EngineHandle, LocalEngine, engine_process, wait_for

pytestmark = pytest.mark.engine

KV_BYTES = 96 << 20
BODY: dict[str, Any] = {"model": "tiny", "prompt": "the mill stands", "max_tokens": 30, "temperature": 0}


@pytest.fixture(scope="module")
def sleepy(llama_folder: Path) -> Iterator[EngineHandle]:
    """An engine with a KV pool that shows in the process's memory."""
    config = EngineConfig(kv_cache_bytes=KV_BYTES, num_threads=1, max_num_batched_tokens=512, max_num_seqs=64)
    with engine_process(llama_folder, config=config) as handle:
        yield handle.wait_ready()


def rss(handle: EngineHandle) -> int:
    return int(psutil.Process(handle.process.pid).memory_info().rss)


def complete(handle: EngineHandle, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any]:
    status, data = handle.call("POST", "/v1/completions", {**BODY, **fields}, headers)
    return status, json.loads(data)


def test_what_a_sleeping_engine_gives_back_and_how_it_comes_again(sleepy: EngineHandle) -> None:
    # fill the prefix cache: pages of the pool are touched, and stay
    prompts = [[(5 * number + place) % 300 for place in range(480)] for number in range(32)]
    before = complete(sleepy)[1]["choices"][0]["text"]
    assert complete(sleepy, prompt=prompts, max_tokens=1)[0] == 200
    state = sleepy.state()
    assert state.ledger is not None
    held, touched = rss(sleepy), state.ledger.kv_cached_bytes
    assert touched > 6 << 20
    status, data = sleepy.call("POST", "/internal/v1/sleep")
    assert (status, json.loads(data)["phase"]) == (200, "asleep")
    state = sleepy.state()
    assert state.phase is Phase.ASLEEP
    assert state.ledger is not None
    assert (state.ledger.kv_total_bytes, state.ledger.kv_cached_bytes, state.ledger.kv_blocks_used) == (0, 0, 0)
    assert state.ledger.weights_bytes > 0  # on a CPU they have nowhere else to go
    assert held - rss(sleepy) > 0.75 * touched
    assert sleepy.call("GET", "/health")[0] == 200
    assert sleepy.call("GET", "/v1/models")[0] == 200
    assert sleepy.state().phase is Phase.ASLEEP  # looking does not wake it
    after = complete(sleepy)[1]
    assert after["choices"][0]["text"] == before
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    state = sleepy.state()
    assert (state.phase, state.stats.sleeps_total, state.stats.wakes_total) == (Phase.READY, 1, 1)
    assert state.stats.last_wake_ms is not None
    assert state.ledger is not None
    assert state.ledger.kv_total_bytes > 0
    assert b"millpond_engine_last_wake_seconds" in sleepy.call("GET", "/metrics")[1]


def test_many_who_come_to_a_sleeping_engine_wake_it_once(sleepy: EngineHandle) -> None:
    assert sleepy.call("POST", "/internal/v1/sleep")[0] == 200
    wakes = sleepy.state().stats.wakes_total
    answers: list[int] = []
    callers = [threading.Thread(target=lambda: answers.append(complete(sleepy)[0])) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [200] * 8
    assert sleepy.state().stats.wakes_total == wakes + 1
    status, data = sleepy.call("POST", "/internal/v1/wake")
    assert (status, json.loads(data)["phase"]) == (200, "ready")
    assert sleepy.state().stats.wakes_total == wakes + 1


def test_an_engine_with_work_refuses_to_sleep(sleepy: EngineHandle) -> None:
    body = {**BODY, "max_tokens": 400, "ignore_eos": True}
    worker = threading.Thread(target=sleepy.call, args=("POST", "/v1/completions", body))
    worker.start()
    wait_for(lambda: sleepy.state().stats.num_requests_running)
    status, data = sleepy.call("POST", "/internal/v1/sleep")
    assert (status, json.loads(data)["error"]["code"]) == (409, "engine_busy")
    worker.join()


def test_an_engine_sleeps_by_itself_after_a_silence_and_drains_asleep(llama_folder: Path) -> None:
    config = msgspec.structs.replace(DEFAULT_SPEC["config"], sleep_after_seconds=0.2)
    with engine_process(llama_folder, config=config) as handle:
        wait_for(lambda: handle.state().phase is Phase.ASLEEP)
        assert complete(handle)[0] == 200
        wait_for(lambda: handle.state().phase is Phase.ASLEEP)
        handle.process.terminate()
        assert handle.process.wait(30) == 0


class _Hands(Clock):
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


async def test_silence_is_counted_from_the_end_of_the_last_request(local: LocalEngine) -> None:
    clock = _Hands()
    slumber = Slumber(local.engine, clock, after_seconds=10.0)
    watching = asyncio.create_task(slumber.watch())
    async with slumber.awake(None):
        for _ in range(100):
            await asyncio.sleep(0)
        assert not slumber.asleep
    ended = clock.time
    for _ in range(30_000):  # the engine's thread answers in its own time
        if slumber.asleep:
            break
        await asyncio.sleep(0.001)
    assert clock.time - ended >= 10.0
    async with slumber.awake(None):
        assert not slumber.asleep
        assert local.generate([3, 4], 4)
    watching.cancel()


async def test_a_request_that_cannot_wait_for_the_waking_ends_at_its_deadline(local: LocalEngine) -> None:
    clock = _Hands()
    slumber = Slumber(local.engine, clock)
    await slumber.sleep()
    with pytest.raises(errors.DeadlineExceeded):
        async with slumber.awake(clock.monotonic() - 1.0):
            pytest.fail("it was not awake in time")
    await slumber.wake()  # the waking went on for those who come later
    assert not slumber.asleep


async def test_a_device_without_room_is_an_honest_refusal_and_tried_again(
    local: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slumber = Slumber(local.engine, _Hands())
    await slumber.sleep()
    with pytest.raises(errors.Unavailable, match="asleep"):
        local.submit([1, 2], 2)  # past the door: refused, not served from nothing

    def full() -> None:
        raise OutOfMemory("somebody else has it")

    with monkeypatch.context() as patched:
        patched.setattr(local.runner, "wake", full)
        with pytest.raises(errors.Unavailable) as caught:
            async with slumber.awake(None):
                pytest.fail("it has no memory")
    assert caught.value.code == "wake_failed"
    assert caught.value.retry_after
    async with slumber.awake(None):
        assert local.generate([3, 4], 4)


class _Held:
    """Stands for what a model refers to."""

    __module__ = "runtime.engine.test"

    def __init__(self) -> None:
        whole = torch.arange(24.0)
        self.view = whole[4:8].view(2, 2)
        self.nested = {"layers": [(whole, torch.zeros(3)), torch.nn.Linear(2, 2)]}
        self.itself = self
        self.number = 5


def test_every_storage_is_found_once() -> None:
    sizes = sorted(storage.nbytes() for storage in storages_of(_Held()))
    assert sizes == [8, 12, 16, 96]  # bias, zeros, weight, and one for all views of the first tensor


def test_weights_leave_a_device_with_memory_of_its_own_and_come_back_as_they_were() -> None:
    """The way of CUDA, on host memory: storages shrink to nothing in place, so views and tied weights stay true."""
    model, cache = _Held(), {"kv": torch.full((1000,), 7.0)}
    model.nested["tied"] = model.nested["layers"][0][0]
    before = [tensor.clone() for tensor in (model.view, model.nested["tied"], model.nested["layers"][1].weight)]
    sleeper = Sleeper(model, cache, moves=True)
    sleeper.sleep()
    assert [storage.nbytes() for held in (model, cache) for storage in storages_of(held)] == []
    assert model.view.untyped_storage().nbytes() == cache["kv"].untyped_storage().nbytes() == 0
    sleeper.wake()
    after = [model.view, model.nested["tied"], model.nested["layers"][1].weight]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)
    assert model.view.untyped_storage().data_ptr() == model.nested["tied"].untyped_storage().data_ptr()
    assert not bool(cache["kv"].any())
    sleeper.sleep()
    sleeper.wake()  # as often as wanted
    torch.testing.assert_close(model.view, before[0], rtol=0, atol=0)


def test_quantized_weights_are_found_inside_their_wrappers() -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
    quantize_(layer, Int8WeightOnlyConfig())
    sizes = {storage.nbytes() for storage in storages_of(layer)}
    assert 64 * 64 in sizes
    assert 64 * 64 * 4 not in sizes


def test_the_cache_reads_as_zeros_after_a_sleep(llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder, blocks=1024)
    engine.generate(list(range(5, 200)), 4)
    data = engine.runner.cache.data
    assert bool(data.any())
    sleeper = Sleeper(engine.model, engine.runner.cache, moves=False)
    sleeper.sleep()
    page = 4096 // data.element_size()
    assert not bool(data.flatten()[page:-page].any())
    sleeper.wake()
    engine.engine.stop()
