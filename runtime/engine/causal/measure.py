"""Finding out before the first request: what the largest step takes, and that the engine answers."""

import threading
from typing import Final

from runtime.engine import errors
from runtime.engine.causal import attention, ledger
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.jobs import Event, GenerationRequest, Job, JobEnded
from runtime.engine.causal.model import Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.formats.source import ModelSource
from runtime.wire.inference import EngineSpec

# Attention over a long context turns its boolean mask into numbers: one byte and one float per query and key.
_MASK_BYTES: Final = 5
# Groups of sequences are padded to the longest, which is at most twice the shortest.
_PADDING: Final = 2.0
_WARM_TIMEOUT_SECONDS: Final = 300.0
_WARM_TOKENS: Final = 4


def new_cache(model: Decoder, slots: int) -> attention.KvCache:
    """Cache storage of ``slots`` tokens for ``model``."""
    return attention.KvCache(
        layers=model.config.num_layers,
        kv_heads=model.config.num_kv_heads,
        slots=slots,
        head_dim=model.config.head_dim,
        dtype=model.dtype,
        device=model.device,
    )


def fixed_costs(
    spec: EngineSpec, source: ModelSource, model: Decoder, probe: ledger.DeviceProbe, context: int
) -> ledger.FixedCosts:
    """Run the largest step that the limits allow and see what it takes beyond what is held."""
    config = spec.config
    budget = max(config.max_num_batched_tokens, config.max_num_seqs)
    longest = min(config.max_model_len or source.config.max_positions, source.config.max_positions)
    prefill = min(budget, longest)
    model.rope.resize(max(prefill, 2))
    blocks_each = -(-prefill // config.kv_block_tokens)
    scratch = Runner(
        model,
        new_cache(model, (blocks_each + config.max_num_seqs) * config.kv_block_tokens),
        config.kv_block_tokens,
        source.eos_ids,
    )
    before = probe.held_bytes()
    probe.start_peak()
    scratch.run(_prefill_plan(prefill, blocks_each))
    scratch.run(_decode_plan(config.max_num_seqs, blocks_each))
    peak = max(0, probe.peak_bytes() - before)
    scratch_bytes = scratch.cache.num_bytes
    del scratch
    probe.give_back()
    tables = 2 * 4 * longest * source.config.head_dim
    block_bytes = source.config.kv_bytes_per_token(model.dtype.itemsize) * config.kv_block_tokens
    return ledger.FixedCosts(
        total_bytes=spec.memory_bytes,
        context_bytes=context,
        weights_bytes=model.weights_bytes,
        workspace_bytes=max(0, peak - scratch_bytes) + budget * longest * _MASK_BYTES + tables,
        gather_share=_PADDING / source.config.num_layers,
        block_bytes=block_bytes,
        block_tokens=config.kv_block_tokens,
    )


def _greedy(number: int, tokens: int, blocks: list[int]) -> Work:
    sampling = SamplingParams(temperature=0.0)
    sequence = Sequence(id=number, arrival=number, tokens=[0] * tokens, max_total=tokens + 1, sampling=sampling)
    return Work(sequence, 0, tokens, samples=True, blocks=blocks)


def _prefill_plan(tokens: int, blocks: int) -> StepPlan:
    return StepPlan((_greedy(0, tokens, list(range(blocks))),))


def _decode_plan(sequences: int, first_block: int) -> StepPlan:
    return StepPlan(tuple(_greedy(n, 1, [first_block + n]) for n in range(sequences)))


def warm_up(engine: CausalEngine) -> None:
    """Generate a few tokens through the whole engine: what has not answered is not ready.

    Raises:
        errors.StartError: no answer, or a wrong one.
    """
    ended = threading.Event()
    failure: list[errors.RequestError] = []

    def sink(_job: Job, event: Event) -> None:
        if isinstance(event, JobEnded):
            if event.error is not None:
                failure.append(event.error)
            ended.set()

    prompt = tuple(engine.tokenizer.encode("The", special=True)) or (0,)
    request = GenerationRequest(
        request_id="warm-up",
        prompts=(prompt,),
        n=1,
        max_tokens=min(_WARM_TOKENS, engine.max_model_len - len(prompt)),
        sampling=SamplingParams(temperature=0.0),
        seeds=(0,),
        ignore_eos=True,
    )
    engine.submit(request, sink)
    if not ended.wait(_WARM_TIMEOUT_SECONDS):
        raise errors.StartError("WarmUpFailed", f"No answer within {_WARM_TIMEOUT_SECONDS:.0f} seconds.")
    if failure:
        raise errors.StartError("WarmUpFailed", f"The first inference failed: {failure[0].message}")
    engine.reset_figures()
