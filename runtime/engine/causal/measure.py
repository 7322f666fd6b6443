"""Finding out before the first request: what the largest step takes, and that the engine answers."""

import threading
from typing import Final

from runtime.engine import errors
from runtime.engine.causal import attention, ledger, sdpa, workspace
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.jobs import Event, GenerationRequest, Job, JobEnded
from runtime.engine.causal.model import Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.formats.source import ModelSource
from runtime.wire.assignments import EngineConfig
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
        form=model.kv,
        device=model.device,
    )


def fixed_costs(
    spec: EngineSpec, source: ModelSource, model: Decoder, probe: ledger.DeviceProbe, context: int
) -> ledger.FixedCosts:
    """What the largest step that the limits allow takes beyond what is held: remembered, or measured by running it."""
    config = spec.config
    budget = max(config.max_num_batched_tokens, config.max_num_seqs)
    longest = min(config.max_model_len or source.config.max_positions, source.config.max_positions)
    prefill = min(budget, longest)
    entry = workspace.name(model, config, prefill)
    peak = workspace.recall(entry)
    if peak is None:
        peak = _peak(model, probe, config, prefill, source.eos_ids)
        workspace.remember(entry, peak)
    in_place = model.program is not None  # the kernels read pages where they are and need no masks
    masks = 0 if in_place else budget * longest * _MASK_BYTES
    tables = 2 * 4 * longest * source.config.rotary_dim * (2 if source.config.local_rope else 1)
    token_bytes = model.kv.token_bytes(source.config)
    return ledger.FixedCosts(
        total_bytes=spec.memory_bytes,
        context_bytes=context,
        weights_bytes=model.weights_bytes,
        workspace_bytes=peak + masks + tables + _scores(model, longest),
        gather_share=0.0 if in_place else _gathered(model) / token_bytes,
        block_bytes=token_bytes * config.kv_block_tokens,
        block_tokens=config.kv_block_tokens,
    )


def _peak(
    model: Decoder, probe: ledger.DeviceProbe, config: EngineConfig, prefill: int, eos_ids: frozenset[int]
) -> int:
    """Bytes that a step of one prompt and a step of single tokens take at most, beyond what is held."""
    model.resize_positions(max(prefill, 2))
    blocks_each = -(-prefill // config.kv_block_tokens)
    slots = (blocks_each + config.max_num_seqs) * config.kv_block_tokens
    scratch = Runner(model, new_cache(model, slots), config.kv_block_tokens, eos_ids)
    before = probe.held_bytes()
    probe.start_peak()
    scratch.run(_prefill_plan(prefill, blocks_each))
    scratch.run(_decode_plan(config.max_num_seqs, blocks_each))
    peak = max(0, probe.peak_bytes() - before - scratch.cache.num_bytes)
    del scratch
    probe.give_back()
    return peak


def _gathered(model: Decoder) -> float:
    """Bytes per token of the pool that attention's copy of one layer takes: as it is held, and as it is computed."""
    config = model.config
    copied = config.kv_bytes_per_token(model.dtype.itemsize)
    if model.kv.quantized:
        copied += model.kv.token_bytes(config)
    return _PADDING * copied / config.num_layers


def _scores(model: Decoder, longest: int) -> int:
    """Bytes of the scores that are written out where they are bounded: twice as computed, once in float32."""
    if not model.config.score_cap:
        return 0
    return max(sdpa.MOST_SCORES, model.config.num_heads * longest) * (2 * model.dtype.itemsize + 4)


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
