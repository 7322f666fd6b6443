"""A replica of several ranks computes what one computes, lives and dies as one, and refuses what it cannot divide."""

import json
import queue
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from runtime.engine import errors
from runtime.engine.causal import attention, loader, measure
from runtime.engine.causal.model import Decoder
from runtime.engine.formats.opening import open_model
from runtime.engine.ranks import orders, split
from runtime.wire.assignments import EngineConfig, World
from runtime.wire.reports import Phase
from tests.build.engines import engine_process, wait_for
from tests.build.models import ARCHITECTURES, tiny_gguf, tiny_llama

pytestmark = pytest.mark.engine

BLOCK_TOKENS = 4
WORLD = World(size=4, ranks=[0, 1, 2, 3], leader="", tensor=2, pipeline=2)


class Hall:
    """Ranks of one test, each a thread: the sums and messages of :class:`Peers` without processes."""

    def __init__(self, size: int, tensor: int) -> None:
        self.barriers = [threading.Barrier(tensor, timeout=30) for _ in range(size // tensor)]
        self.parts: list[dict[int, torch.Tensor]] = [{} for _ in self.barriers]
        self.posts: dict[tuple[int, int], queue.Queue[torch.Tensor]] = {
            (source, target): queue.Queue() for source in range(size) for target in range(size)
        }


class ThreadPeers:
    def __init__(self, hall: Hall, mine: split.Split) -> None:
        self.hall, self.mine = hall, mine

    def total(self, part: torch.Tensor) -> torch.Tensor:
        parts, barrier = self.hall.parts[self.mine.stage], self.hall.barriers[self.mine.stage]
        parts[self.mine.index] = part.clone()
        barrier.wait()
        part.copy_(torch.stack([parts[index] for index in range(self.mine.tensor)]).sum(0))
        barrier.wait()
        return part

    def pass_on(self, hidden: torch.Tensor) -> None:
        self.hall.posts[self.mine.rank, self.mine.rank + self.mine.tensor].put(hidden.clone())

    def take(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return self._post(self.mine.rank - self.mine.tensor, (rows, width))

    def return_picks(self, hidden: torch.Tensor) -> None:
        self.hall.posts[self.mine.rank, 0].put(hidden.clone())

    def take_picks(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return self._post(self.mine.size - self.mine.tensor, (rows, width))

    def _post(self, source: int, shape: tuple[int, int]) -> torch.Tensor:
        found = self.hall.posts[source, self.mine.rank].get(timeout=30)
        assert found.shape == shape
        return found


def loaded(path: Path, kind: str = "huggingface", mine: split.Split = split.WHOLE, **options: Any) -> Decoder:
    model = loader.load(
        open_model(path, kind),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=lambda _share: None,
        split=mine,
        **options,
    )
    model.resize_positions(64)
    return model


def computed(model: Decoder, found: list[torch.Tensor]) -> None:
    """Logits of a prompt in two chunks and a token after it; the first chunk wants none."""
    cache = measure.new_pool(model, 8, BLOCK_TOKENS)
    tokens = [(7 * number) % 90 + 3 for number in range(20)]
    for first, last, picks in ((0, 11, []), (11, 19, [7]), (19, 20, [0])):
        batch = attention.layout(
            [(tokens[first:last], first, [1, 2, 3, 4, 5])], picks, block_tokens=BLOCK_TOKENS, first_block=1
        )
        batch = orders.unpacked(orders.packed(batch))
        with torch.inference_mode():
            hidden = model.forward(batch, cache)
            if picks and model.split.leads:
                found.append(model.logits(hidden).clone())


def together(path: Path, kind: str, tensor: int, stages: int, **options: Any) -> torch.Tensor:
    size, found = tensor * stages, []
    hall = Hall(size, tensor)
    models = []
    for rank in range(size):
        mine = split.Split(rank=rank, tensor=tensor, stages=stages)
        model = loaded(path, kind, mine, **options)
        model.peers = ThreadPeers(hall, mine)  # type: ignore[assignment]
        models.append(model)
    threads = [threading.Thread(target=computed, args=(model, found)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return torch.cat(found)


def alone(path: Path, kind: str = "huggingface", **options: Any) -> torch.Tensor:
    found: list[torch.Tensor] = []
    computed(loaded(path, kind, **options), found)
    return torch.cat(found)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_divides_and_computes_the_same(architecture: str, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", architecture=architecture)
    want = alone(folder)
    for tensor, stages in ((2, 1), (1, 2), (2, 2)):
        got = together(folder, "huggingface", tensor, stages)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_fewer_key_heads_than_ranks_and_biases_and_a_gguf_file(tmp_path: Path) -> None:
    biased = tiny_llama(
        tmp_path / "model", num_key_value_heads=2, attention_bias=True, mlp_bias=True, tie_word_embeddings=False
    )
    torch.testing.assert_close(together(biased, "huggingface", 4, 1), alone(biased), rtol=1e-4, atol=1e-4)
    gguf = tiny_gguf(tmp_path / "tiny.gguf")
    torch.testing.assert_close(together(gguf, "gguf", 2, 2), alone(gguf, "gguf"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int8_weight_only"])
def test_quantized_parts_are_as_near_as_the_quantized_whole(quantization: str, llama_folder: Path) -> None:
    exact, want = alone(llama_folder), alone(llama_folder, quantization=quantization)
    got = together(llama_folder, "huggingface", 2, 1, quantization=quantization)
    assert (got - exact).abs().max() <= 2 * (want - exact).abs().max()


def test_ranks_hold_their_part_and_no_more(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", tie_word_embeddings=False, num_hidden_layers=5)
    whole = loaded(folder)
    parts = [loaded(folder, mine=split.Split(rank=rank, tensor=2, stages=2)) for rank in range(4)]
    assert [part.config.num_layers for part in parts] == [2, 2, 3, 3]
    ends = whole.config.vocab_size * whole.config.hidden_size * 4
    norms = 4 * whole.config.hidden_size
    layer = (whole.weights_bytes - 2 * ends - norms) // 5
    halves = [part.weights_bytes - norms for part in parts]
    assert halves[0] - halves[1] == ends  # the leader has the output projection, and both the embedding
    assert halves[2] == halves[3] < 3 * layer * 0.51
    assert halves[1] - ends < 2 * layer * 0.51


@pytest.mark.parametrize(
    ("world", "want"),
    [
        (World(size=3, ranks=[0, 1, 2], leader="", tensor=3), "4 attention heads"),
        (World(size=3, ranks=[0, 1, 2], leader="", pipeline=3), "2 layers are fewer than 3 stages"),
        (World(size=2, ranks=[0, 1], leader="", expert=2), "does not spread experts"),
        (World(size=4, ranks=[0, 1], leader="", tensor=4), "2 of 4 ranks are on this node, and '' is no address"),
        (World(size=4, ranks=[1, 0], leader="a:1", tensor=4), "There are no ranks .* of 4"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_numbers(world: World, want: str, llama_folder: Path) -> None:
    with pytest.raises(errors.StartError, match=want) as caught:
        split.check(open_model(llama_folder, "huggingface").config, split.of_world(world))
    assert caught.value.reason == "UnsupportedPlacement"


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(kv_cache_bytes=1 << 20, num_threads=1, max_num_batched_tokens=64, **fields)


def completion(handle: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "hello there, how are you", "max_tokens": 24, "temperature": 0, **fields}
    status, answer = handle.call("POST", "/v1/completions", body)
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def others(handle: Any) -> list[psutil.Process]:
    children = psutil.Process(handle.process.pid).children(recursive=True)
    return [child for child in children if "runtime.engine.ranks.rank" in child.cmdline()]


def test_four_processes_answer_as_one_sleep_as_one_and_fail_as_one(llama_folder: Path, served: Any) -> None:
    want = completion(served)["choices"][0]["text"]
    with engine_process(llama_folder, world=WORLD, config=config()) as handle:
        handle.wait_ready()
        members = others(handle)
        assert len(members) == 3
        assert completion(handle)["choices"][0]["text"] == want
        pair = completion(handle, prompt=["hello there, how are you", "the mill stands"])
        assert pair["choices"][0]["text"] == want
        assert handle.call("POST", "/internal/v1/sleep")[0] < 300
        wait_for(lambda: handle.state().phase is Phase.ASLEEP, 10)
        assert completion(handle)["choices"][0]["text"] == want  # which wakes it
        members[-1].kill()
        wait_for(lambda: handle.state().phase is Phase.FAILED, 15)
        assert "of this replica ended with exit code -9" in handle.state().message
        assert handle.process.wait(30) == errors.EXIT_START_FAILED
        wait_for(lambda: not any(member.is_running() for member in members), 10)


def test_ranks_are_drained_with_their_leader(llama_folder: Path) -> None:
    world = World(size=2, ranks=[0, 1], leader="", tensor=2)
    with engine_process(llama_folder, world=world, config=config()) as handle:
        handle.wait_ready()
        members = [*others(handle), psutil.Process(handle.process.pid)]
        for member in members:  # as an agent does: the signal goes to the group
            member.send_signal(signal.SIGTERM)
        assert handle.process.wait(30) == 0
        wait_for(lambda: not members[0].is_running(), 10)
