"""What the engine does on a device with memory of its own: pages, recorded steps, a pool that is cut. The logic alone:
kernel and recorder are stand-ins that keep the documented promises of the real ones.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.clock import SystemClock
from runtime.engine.causal import attention, flash, graphs, linear, measure, sdpa
from runtime.engine.causal.device_cache import DeviceKvCache
from runtime.engine.causal.graphs import DecodeGraphs, Shape
from runtime.engine.causal.jobs import Output
from runtime.engine.causal.pressure import CALM_SECONDS
from runtime.engine.causal.sequences import SamplingParams
from runtime.engine.formats.opening import open_model
from tests.build.device import GATHERED, PAGED, Recorder, Recording
from tests.build.engines import LocalEngine
from tests.build.models import ARCHITECTURES, tiny_llama
from tests.build.quantized import held as model_of

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], list(range(3, 30)), [9, 8], list(range(40, 51)), [4] * 19]
KERNELS = {"gathered": GATHERED, "paged": PAGED}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are computed with torch."""
    monkeypatch.setattr(linear.library, "load", lambda: None)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, plain: None, monkeypatch: pytest.MonkeyPatch) -> flash.Kernel:
    """Models are computed as on CUDA, with such a kernel."""
    chosen = KERNELS[request.param]
    monkeypatch.setattr(flash, "kernel_for", lambda config, *_: None if config.score_cap else chosen)
    return chosen


@pytest.fixture(scope="module")
def expected(local: LocalEngine) -> list[list[int]]:
    """What the C kernels (or torch where there are none) answer."""
    return [local.generate(prompt, 24) for prompt in PROMPTS]


def recording(engine: LocalEngine, recorder: Recorder, *, max_rows: int = 8, most_tokens: int = 2048) -> DecodeGraphs:
    """Let ``engine`` record its steps."""
    cache = engine.runner.cache
    assert isinstance(cache, DeviceKvCache)
    engine.runner.graphs = DecodeGraphs(
        engine.model,
        cache,
        recorder,
        max_rows=max_rows,
        max_len=engine.engine.max_model_len,
        most_tokens=most_tokens,
    )
    return engine.runner.graphs


@pytest.fixture
def engine(kernel: flash.Kernel, llama_folder: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(llama_folder)
    assert isinstance(made.runner.cache, DeviceKvCache)
    yield made
    made.engine.stop()


def test_a_step_in_one_call_computes_what_the_others_do(engine: LocalEngine, expected: list[list[int]]) -> None:
    pending = [engine.submit(prompt, 24) for prompt in PROMPTS]
    assert [item.tokens() for item in pending] == expected


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "LlamaForCausalLM"])
def test_every_architecture_computes_the_same(
    architecture: str, plain: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tiny_llama(tmp_path / architecture, architecture=architecture)
    reference = LocalEngine(path)
    want = [reference.generate(prompt, 12) for prompt in PROMPTS]
    reference.engine.stop()
    monkeypatch.setattr(flash, "kernel_for", lambda config, *_: None if config.score_cap else PAGED)
    engine = LocalEngine(path)
    pending = [engine.submit(prompt, 12) for prompt in PROMPTS]
    assert [item.tokens() for item in pending] == want
    assert (engine.model.flash is None) == (architecture == "Gemma2ForCausalLM")
    engine.engine.stop()


def test_recorded_steps_give_the_same_tokens(engine: LocalEngine, expected: list[list[int]]) -> None:
    recorder = Recorder()
    found = recording(engine, recorder)
    pending = [engine.submit(prompt, 24) for prompt in PROMPTS]
    assert [item.tokens() for item in pending] == expected
    assert found.replays >= 20
    assert 0 < recorder.recorded == found.num_recorded <= len(found.shapes)
    again = [engine.submit(prompt, 24) for prompt in PROMPTS]
    assert [item.tokens() for item in again] == expected, "also from prefixes that are known"


def test_rows_that_only_pad_write_nowhere(engine: LocalEngine) -> None:
    """Three rows are padded to four: every block but that of nobody has what an unpadded step writes."""
    found = recording(engine, Recorder())
    cache = engine.runner.cache
    assert isinstance(cache, DeviceKvCache)
    blocks = [[1, 2], [3], [4, 5]]
    work = [([7], 5, blocks[0]), ([8], 2, blocks[1]), ([9], 6, blocks[2])]
    batch = attention.layout(work, [0, 1, 2], block_tokens=4)
    with torch.inference_mode():
        for tensor in cache._tensors():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)))
        before = [tensor.clone() for tensor in cache._tensors()]
        want = engine.model.logits(engine.model.forward(batch, cache))
        after = [tensor.clone() for tensor in cache._tensors()]
        assert found.run(batch) is None, "a shape that came once is not recorded"
        for tensor, held in zip(cache._tensors(), before, strict=True):
            tensor.copy_(held)
        got = found.run(batch)
    assert got is not None
    torch.testing.assert_close(got[0], want, rtol=1e-5, atol=1e-5)
    assert got[1] == (want.argmax(-1).tolist(), [True] * 3)
    own = {int(slot) for slot in batch.slots}
    for tensor, eager, old in zip(cache._tensors(), after, before, strict=True):
        changed = {slot for slot in range(tensor.shape[0]) if not torch.equal(tensor[slot], old[slot])}
        assert changed - {0} == own, "slot 0 is nobody's"
        torch.testing.assert_close(tensor[1:], eager[1:], rtol=1e-5, atol=1e-5)


def test_who_samples_or_breaks_in_a_recorded_step_does_it_alone(engine: LocalEngine, local: LocalEngine) -> None:
    recording(engine, Recorder())
    warm = SamplingParams(temperature=1.0, seed=3, top_logprobs=2)
    want = local.submit(PROMPTS[0], 12, sampling=warm)
    pending = [engine.submit(PROMPTS[0], 12, sampling=warm), engine.submit(PROMPTS[1], 12)]
    assert pending[0].tokens() == want.tokens()
    assert pending[1].tokens() == local.generate(PROMPTS[1], 12)

    def values(outputs: list[Output]) -> list[float]:
        return [piece.logprob for output in outputs for piece in output.pieces]

    assert values(pending[0].outputs) == pytest.approx(values(want.outputs), abs=1e-4)


def test_prompt_probabilities_are_computed_without_a_recording(engine: LocalEngine, local: LocalEngine) -> None:
    found = recording(engine, Recorder())
    asked = SamplingParams(temperature=0.0, prompt_logprobs=True, top_logprobs=1)
    want = local.submit([5, 6], 3, sampling=asked).tokens()
    for _ in range(3):
        assert engine.submit([5, 6], 3, sampling=asked).tokens() == want
    assert found.replays > 0


def test_what_cannot_be_recorded_runs_as_before(engine: LocalEngine, expected: list[list[int]]) -> None:
    recorder = Recorder(broken=True)
    found = recording(engine, recorder)
    assert [engine.generate(prompt, 24) for prompt in PROMPTS] == expected
    assert (found.num_recorded, found.replays) == (0, 0)
    recorder.broken = False
    assert [engine.generate(prompt, 24) for prompt in PROMPTS] == expected
    assert found.replays == 0, "what was refused is not tried again"
    engine.runner.graphs = None
    recording(engine, recorder)
    assert [engine.generate(prompt, 24) for prompt in PROMPTS] == expected


def test_looking_at_a_value_cannot_be_recorded() -> None:
    with pytest.raises(RuntimeError, match="capturing"), Recording():
        torch.ones(3).sum().item()


def test_recordings_are_dropped_with_what_they_refer_to(engine: LocalEngine, expected: list[list[int]]) -> None:
    recorder = Recorder()
    found = recording(engine, recorder)
    engine.runner.record()
    all_sizes = found.num_recorded
    assert all_sizes == recorder.recorded == len([s for s in found.shapes if s.width == found.shapes[0].width])
    engine.engine.sleep().result(20)
    assert (found.num_recorded, recorder.forgotten) == (0, 1)
    engine.engine.wake().result(20)
    assert [engine.generate(prompt, 24) for prompt in PROMPTS] == expected
    assert found.num_recorded > 0
    before = recorder.recorded
    with engine.engine._wake:  # nothing runs: the pool is cut, addresses change
        engine.runner.give_back(*engine.scheduler.shrink(30, compact=True))
    assert [engine.generate(prompt, 24) for prompt in PROMPTS] == expected
    assert recorder.recorded > before


@given(st.integers(1, 300), st.integers(1, 256))
def test_every_number_of_rows_has_a_size(most: int, rows: int) -> None:
    found = graphs.sizes(most)
    assert found == sorted(set(found))
    assert found[-1] == min(most, graphs.MOST_ROWS)
    assert len(found) < 20
    if rows <= found[-1]:
        padded = next(size for size in found if size >= rows)
        assert padded < rows + 32
        assert padded <= 2 * rows


def test_shapes_are_few_and_never_larger_than_the_pool(engine: LocalEngine) -> None:
    shapes = recording(engine, Recorder(), max_rows=64, most_tokens=1000).shapes
    assert len(shapes) == len(set(shapes)) < 20
    assert engine.model.flash is not None
    if not engine.model.flash.paged:
        assert shapes == [Shape(1, 256), Shape(2, 256)]  # four would be more than may be copied


class Hurried(SystemClock):
    """Time is ``ahead`` by some seconds."""

    ahead = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return time.monotonic() + self.ahead


class Crowded:
    """An engine with a pool of 64 blocks on a device with memory of its own, of which others take and give.

    A quarter of the memory is weights, half is the pool.
    """

    def __init__(self, path: Path) -> None:
        self.clock = Hurried()
        self.engine = LocalEngine(path, clock=self.clock)
        cache = self.engine.runner.cache
        assert isinstance(cache, DeviceKvCache)
        self.cache, self.whole = cache, cache.num_bytes
        self.block_bytes = self.whole // (self.engine.pool.capacity + 1)

    def others_take(self, share: float) -> None:
        self.engine.probe.unaccounted = int(self.engine.engine.ledger().total_bytes * share)
        self.clock.ahead += 2.0

    def calm_down(self) -> None:
        """Others have gone; the pool may grow again."""
        self.others_take(0.0)
        for _ in range(3):
            self.engine.generate([1], 1)  # each step looks
            self.clock.ahead += CALM_SECONDS


@pytest.fixture
def crowded(kernel: flash.Kernel, llama_folder: Path) -> Iterator[Crowded]:
    made = Crowded(llama_folder)
    yield made
    made.engine.engine.stop()


LONG = [[number + shift for number in range(60)] for shift in (3, 73, 143)]


def test_a_pool_on_a_device_is_cut_and_what_runs_moves(crowded: Crowded, local: LocalEngine) -> None:
    engine, pool = crowded.engine, crowded.engine.pool
    recording(engine, Recorder())
    engine.generate(list(range(200, 220)), 2)  # takes the first blocks, which then are cached
    pending = [engine.submit(prompt, 24).started() for prompt in LONG]
    crowded.others_take(0.45)  # with 45 blocks in use that is more than there is
    assert [item.tokens() for item in pending] == [local.generate(prompt, 24) for prompt in LONG], "nobody notices"
    assert engine.engine.watch.shrinks_total >= 1
    assert pool.total == engine.engine._book.blocks_that_fit() == 32
    assert crowded.cache.num_bytes == (pool.total + 1) * crowded.block_bytes, "the memory is really given back"
    crowded.calm_down()
    assert pool.total == pool.capacity
    many = [number % 300 for number in range(200)]
    assert engine.generate(many, 24) == local.generate(many, 24), "what is used again has memory again"
    assert crowded.cache.num_bytes >= 50 * crowded.block_bytes


def test_a_layer_without_room_for_its_copy_stays_and_is_tried_again(
    crowded: Crowded, local: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    resized, calls = DeviceKvCache._resized, []

    def full(tensor: torch.Tensor, length: int) -> torch.Tensor:
        calls.append(length)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return resized(tensor, length)

    monkeypatch.setattr(DeviceKvCache, "_resized", staticmethod(full))
    pending = [crowded.engine.submit(prompt, 24).started() for prompt in LONG]
    crowded.others_take(0.45)
    assert [item.tokens() for item in pending] == [local.generate(prompt, 24) for prompt in LONG]
    assert len(calls) == 2
    assert crowded.engine.pool.total == 32
    assert 33 * crowded.block_bytes < crowded.cache.num_bytes < crowded.whole
    monkeypatch.setattr(DeviceKvCache, "_resized", staticmethod(resized))
    pending = [crowded.engine.submit(prompt, 24).started() for prompt in LONG]
    crowded.others_take(0.55)
    assert [item.tokens() for item in pending] == [local.generate(prompt, 24) for prompt in LONG]
    assert crowded.cache.num_bytes == (crowded.engine.pool.total + 1) * crowded.block_bytes < 33 * crowded.block_bytes


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(["same", "int8", "fp8"]))
def test_a_cut_cache_keeps_what_stays(counts: list[int], kv: str) -> None:
    form = attention.KvForm(kv, torch.float32)
    cache = DeviceKvCache(layers=2, kv_heads=3, blocks=10, block_tokens=4, head_dim=16, form=form, device=CPU)
    values = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(1))
    everywhere = torch.arange(40)
    cache.write(1, everywhere, values, -values)
    want = cache.read(1, everywhere)
    least = 10
    for count in counts:
        cache.cut(count)
        least = min(least, count)
        cache.reserve(10, 4)
        assert cache.present == 10
        for got, held in zip(cache.read(1, everywhere), want, strict=True):
            assert torch.equal(got[:, : least * 4], held[:, : least * 4])
            assert not got[:, least * 4 :].any(), "what comes back is empty"


def test_a_prefix_that_many_share_is_copied_in_parts(kernel: flash.Kernel) -> None:
    """Thirty sequences over one prefix are more context than the pool has: no copy is larger than the pool."""
    work = [([1], 39, list(range(1, 11))) for _ in range(30)]
    batch = attention.layout(work, range(30), block_tokens=4)
    found = flash.prepare(batch, kernel, CPU, most_tokens=100)
    if kernel.paged:
        assert len(found.parts) == 1
    else:
        assert [part.count for part in found.parts] == [2] * 15
        assert all(part.slots is not None and len(part.slots) == 80 for part in found.parts)
    groups = sdpa.prepare(batch, (0,), torch.float32, CPU, 100).groups
    assert [group.count for group in groups] == [2] * 15


def test_one_sequences_broken_numbers_reach_nobody_through_padding(
    plain: None, llama_folder: Path, local: LocalEngine
) -> None:
    """Shorter contexts of a group are padded with a block that nobody writes to."""
    engine = LocalEngine(llama_folder, prefix_cache=False)
    long, short = list(range(3, 40)), [5, 6]
    forward, poisoned = engine.model.forward, []

    def poison(batch: Any, cache: Any) -> torch.Tensor:
        if batch.num_single == 2 and not poisoned:
            poisoned.append(True)
            first = int(batch.tables[batch.spans["table"][1]])  # of the longer one
            cache.data[:, :, :, first * 4 : first * 4 + 4] = float("nan")
        return forward(batch, cache)

    engine.model.forward = poison  # type: ignore[method-assign]
    victim, mate = engine.submit(long, 30), engine.submit(short, 12)
    assert victim.wait().error.code == "non_finite_logits"
    assert mate.tokens() == local.generate(short, 12)
    engine.engine.stop()


@pytest.mark.parametrize("kv", ["same", "int8", "fp8"])
def test_keys_in_fewer_bits_and_float32_are_computed_there_too(kv: str, plain: None, llama_folder: Path) -> None:
    """The kernel of CUDA over gathered pages, and where it does not serve torch's products over the same pages."""
    found = []
    for kernel in (GATHERED, None):
        model = model_of(llama_folder, kv=kv)
        model.flash = kernel
        cache = DeviceKvCache(layers=2, kv_heads=2, blocks=12, block_tokens=4, head_dim=16, form=model.kv, device=CPU)
        with torch.inference_mode():
            for work in ([(list(range(3, 20)), 0, [1, 2, 3, 4, 5])], [([7], 17, [1, 2, 3, 4, 5]), ([5, 6, 7], 0, [8])]):
                batch = attention.layout(work, range(sum(len(item[0]) for item in work)), block_tokens=4)
                found.append(model.logits(model.forward(batch, cache)).clone())
    for got, want in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_believed_only_when_it_computes_right(
    name: str, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, chosen = open_model(llama_folder, "huggingface").config, KERNELS[name]
    assert flash.proven(chosen, config, torch.bfloat16, CPU)
    wrong = flash.Kernel(lambda *args, **fields: chosen.call(*args, **fields) * 1.2, paged=chosen.paged)
    assert not flash.proven(wrong, config, torch.bfloat16, CPU)

    def refuses(*_args: Any, **_fields: Any) -> torch.Tensor:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")

    assert not flash.proven(flash.Kernel(refuses, paged=chosen.paged), config, torch.bfloat16, CPU)


def test_which_kernel_a_device_gets(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that reads pages where it is installed and right, else the one that torch brings, else none."""
    config, cuda = open_model(llama_folder, "huggingface").config, torch.device("cuda", 0)
    generation, good = [(9, 0)], {True, False}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: generation[0])
    monkeypatch.setattr(flash, "_activated", lambda name: name == "FA3")
    monkeypatch.setattr(flash, "proven", lambda kernel, *_: kernel.paged in good)

    def chosen(dtype: torch.dtype = torch.bfloat16) -> bool | None:
        found = flash.kernel_for(config, dtype, cuda)
        return None if found is None else found.paged

    assert chosen() is True
    found = flash.kernel_for(config, torch.bfloat16, cuda, False)
    assert found is not None
    assert not found.paged, "what is held in fewer bits is brought back on the way"
    generation[0] = (8, 6)
    assert chosen() is False
    generation[0] = (7, 5)
    assert chosen() is None
    generation[0] = (9, 0)
    assert chosen(torch.float32) is None
    good.discard(True)
    assert chosen() is False
    good.discard(False)
    assert chosen() is None
    assert flash.kernel_for(config, torch.bfloat16, CPU) is None


def test_what_copies_take_is_planned_for(kernel: flash.Kernel, llama_folder: Path) -> None:
    engine = LocalEngine(llama_folder)
    share = measure._gathered(engine.model)
    layer = engine.model.config.kv_bytes_per_token(4) / engine.model.config.num_layers
    assert share == (0.0 if kernel.paged else 2 * layer + 4)  # for the plain step, and for recorded ones
    engine.engine.stop()
