"""What a step costs beyond its matrix products, and what int8 costs in quality. Run by ``tests.benchmarks.engine``."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.engine.causal import attention, loader
from runtime.engine.causal import measure as sizes
from runtime.engine.causal.linear import PackedLinear
from runtime.engine.causal.model import Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.formats.kinds import guess_format
from runtime.engine.formats.opening import open_model
from runtime.engine.formats.source import ModelSource
from runtime.engine.kernels import library

BATCHES = (1, 8, 32)
CONTEXT = 160  # the middle of 128 tokens in and 64 out
ROUNDS = 40
BLOCK_TOKENS = 16
TEXT = Path(__file__).parent / "perplexity.txt"


def measure(path: Path) -> dict[str, Any]:
    """Milliseconds of steps and of their products alone (float32), and both perplexities."""
    found: dict[str, Any] = {}
    for name in ("fp32", "int8"):
        source = open_model(path, guess_format(path))
        model = loader.load(
            source,
            dtype=torch.float32,
            device=torch.device("cpu"),
            quantization="int8" if name == "int8" else "none",
            progress=lambda _share: None,
        )
        model.rope.resize(1024)
        found[f"perplexity_{name}"] = perplexity(model, source, TEXT.read_text())
        if name == "fp32":
            found |= _steps(model, source)
    return found


def _steps(model: Decoder, source: ModelSource) -> dict[str, float]:
    """Step and products in turn, so that all see the same machine; the least of each counts.

    Products are measured twice: by the model's own kernels, and of the same shapes by oneDNN, the library's best.
    """
    found = {}
    packed = _packed_products(model)
    for batch in BATCHES:
        blocks_each = -(-(CONTEXT + 1) // BLOCK_TOKENS)
        cache = sizes.new_pool(model, batch * blocks_each, BLOCK_TOKENS)
        runner = Runner(model, cache, BLOCK_TOKENS, source.eos_ids)
        plan = StepPlan(tuple(_work(number, blocks_each) for number in range(batch)))
        products = model.products(batch)
        runner.run(plan)
        step_ms, products_ms, packed_ms = [], [], []
        for _ in range(ROUNDS):
            step_ms.append(_timed(lambda: runner.run(plan)))  # noqa: B023 - called at once
            products_ms.append(_timed(products))
            packed_ms.append(_timed(lambda: packed(batch)))  # noqa: B023 - called at once
        found[f"step_c{batch}_ms"], found[f"products_c{batch}_ms"] = min(step_ms), min(products_ms)
        found[f"onednn_products_c{batch}_ms"] = min(packed_ms)
        found[f"attention_c{batch}_ms"] = min(_attention_ms(model, runner, plan) for _ in range(ROUNDS))
    return found


def _packed_products(model: Decoder) -> Callable[[int], None]:
    """The products of one step by oneDNN, in its own layout of the weights (float32)."""
    cfg = model.config
    attended, keys = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    of_layer = (
        (attended + 2 * keys, cfg.hidden_size),
        (cfg.hidden_size, attended),
        (2 * cfg.intermediate_size, cfg.hidden_size),
        (cfg.hidden_size, cfg.intermediate_size),
    )
    shapes = [shape for _ in range(cfg.num_layers) for shape in of_layer] + [(cfg.vocab_size, cfg.hidden_size)]
    linears = [PackedLinear(torch.randn(shape) * 0.02, None) for shape in shapes]

    def run(rows: int) -> None:
        inputs = {width: torch.zeros((rows, width)) for width in {width for _, width in shapes}}
        with torch.inference_mode():
            for linear, (_, width) in zip(linears, shapes, strict=True):
                linear(inputs[width])

    return run


def _attention_ms(model: Decoder, runner: Runner, plan: StepPlan) -> float:
    """What attention takes of a step; 0 where the step is no program of the kernels."""
    if model.program is None:
        return 0.0
    work = [(item.sequence.tokens[item.start :], item.start, item.blocks) for item in plan.work]
    batch = attention.layout(work, range(len(work)), block_tokens=BLOCK_TOKENS)
    return model.program.times(batch, runner.cache)[library.ATTEND] / 1e6


def _work(number: int, blocks_each: int) -> Work:
    tokens = [(17 * number + 31 * at) % 1000 for at in range(CONTEXT + 1)]
    sampling = SamplingParams(temperature=0.0)
    sequence = Sequence(id=number, arrival=number, tokens=tokens, max_total=CONTEXT + 2, sampling=sampling)
    blocks = list(range(number * blocks_each, (number + 1) * blocks_each))
    return Work(sequence, CONTEXT, 1, samples=True, blocks=blocks)


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def perplexity(model: Decoder, source: ModelSource, text: str, window: int = 512) -> float:
    """e to the mean negative log-likelihood per token of ``text``, read in windows of their own."""
    tokens = source.tokenizer.encode(text, special=True)
    total, count = 0.0, 0
    for first in range(0, len(tokens) - 1, window):
        piece = tokens[first : first + window + 1]
        rows = len(piece) - 1
        blocks = list(range(-(-rows // BLOCK_TOKENS)))
        cache = sizes.new_cache(model, len(blocks) * BLOCK_TOKENS)
        batch = attention.layout([(piece[:-1], 0, blocks)], range(rows), block_tokens=BLOCK_TOKENS)
        with torch.inference_mode():
            logits = model.logits(model.forward(batch, cache))
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(piece[1:]), reduction="sum")
        total, count = total + float(losses), count + rows
    return float(np.exp(total / count))
