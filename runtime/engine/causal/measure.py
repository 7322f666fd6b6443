"""Finding out before the first request: what the largest step takes, and that the engine answers."""

import threading
from typing import TYPE_CHECKING, Final

from runtime.engine import errors
from runtime.engine.causal import attention, ledger, sdpa, workspace
from runtime.engine.causal.device_cache import DeviceKvCache
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.graphs import CudaRecorder, DecodeGraphs
from runtime.engine.causal.jobs import Event, GenerationRequest, Job, JobEnded
from runtime.engine.causal.model import Cache, Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.formats.source import ModelSource
from runtime.engine.ranks import orders
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec

if TYPE_CHECKING:
    from runtime.engine.ranks.team import Team

# Attention over a long context turns its boolean mask into numbers: one byte and one float per query and key.
_MASK_BYTES: Final = 5
# Of a recorded step's buffer: where a token of context lies.
_PLACE_BYTES: Final = 4
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


def new_pool(model: Decoder, blocks: int, block_tokens: int) -> Cache:
    """Cache storage for a pool of ``blocks`` blocks, and the one before them that is nobody's."""
    blocks += attention.FIRST_BLOCK
    if model.device.type == "cpu" and model.flash is None:
        return new_cache(model, blocks * block_tokens)
    return DeviceKvCache(
        layers=model.config.num_layers,
        kv_heads=model.config.num_kv_heads,
        blocks=blocks,
        block_tokens=block_tokens,
        head_dim=model.config.head_dim,
        form=model.kv,
        device=model.device,
    )


def new_graphs(model: Decoder, cache: Cache, max_rows: int, max_len: int) -> DecodeGraphs | None:
    """What records the steps of ``model`` over ``cache``; ``None`` where they cannot be recorded."""
    if not (model.recordable and isinstance(cache, DeviceKvCache) and model.device.type == "cuda"):
        return None
    most = cache.blocks * cache.block_tokens
    return DecodeGraphs(model, cache, CudaRecorder(), max_rows=max_rows, max_len=max_len, most_tokens=most)


def new_runner(
    model: Decoder, blocks: int, block_tokens: int, eos_ids: frozenset[int], team: "Team | None" = None
) -> Runner:
    """A runner over a pool of ``blocks`` blocks, of which every rank has its part."""
    if team is not None:
        team.do(orders.Pool(blocks))
    runner = Runner(model, new_pool(model, blocks, block_tokens), block_tokens, eos_ids)
    if team is None:
        return runner
    from runtime.engine.ranks.team import TeamRunner

    return TeamRunner(team, runner)


def resize(model: Decoder, team: "Team | None", positions: int) -> None:
    """Make the rotary tables for so many positions, in every rank."""
    if team is not None:
        team.do(orders.Positions(positions))
    model.resize_positions(positions)


def fixed_costs(
    spec: EngineSpec,
    source: ModelSource,
    model: Decoder,
    probe: ledger.DeviceProbe,
    context: int,
    team: "Team | None" = None,
) -> ledger.FixedCosts:
    """What the largest step that the limits allow takes beyond what is held: remembered, or measured by running it."""
    config = spec.config
    budget = max(config.max_num_batched_tokens, config.max_num_seqs)
    longest = min(config.max_model_len or source.config.max_positions, source.config.max_positions)
    prefill = min(budget, longest)
    entry = workspace.name(model, config, prefill)
    peak = workspace.recall(entry)
    if peak is None:
        peak = _peak(model, probe, config, prefill, source.eos_ids, team)
        workspace.remember(entry, peak)
    token_bytes = model.kv.token_bytes(model.config)
    # the kernels read pages where they are; neither they nor the variable-length one needs masks
    masks = 0 if model.program is not None or model.flash is not None else budget * longest * _MASK_BYTES
    tables = 2 * 4 * longest * source.config.rotary_dim * (2 if source.config.local_rope else 1)
    nobodys = attention.FIRST_BLOCK * token_bytes * config.kv_block_tokens
    return ledger.FixedCosts(
        total_bytes=spec.memory_bytes,
        context_bytes=context,
        weights_bytes=model.weights_bytes,
        workspace_bytes=peak + masks + tables + nobodys + _scores(model, longest),
        gather_share=_gathered(model) / token_bytes,
        block_bytes=token_bytes * config.kv_block_tokens,
        block_tokens=config.kv_block_tokens,
    )


def _peak(
    model: Decoder,
    probe: ledger.DeviceProbe,
    config: EngineConfig,
    prefill: int,
    eos_ids: frozenset[int],
    team: "Team | None",
) -> int:
    """Bytes that a step of one prompt and a step of single tokens take at most, beyond what is held."""
    resize(model, team, max(prefill, 2))
    blocks_each = -(-prefill // config.kv_block_tokens)
    scratch = new_runner(model, blocks_each + config.max_num_seqs, config.kv_block_tokens, eos_ids, team)
    scratch.graphs = new_graphs(model, scratch.cache, config.max_num_seqs, config.kv_block_tokens)
    before = probe.held_bytes()
    probe.start_peak()
    scratch.run(_prefill_plan(prefill, blocks_each))
    scratch.run(_decode_plan(config.max_num_seqs, blocks_each))
    scratch.record()
    peak = max(0, probe.peak_bytes() - before - scratch.cache.num_bytes)
    del scratch
    if team is not None:
        team.do(orders.Pool(0))
    probe.give_back()
    return peak


def _gathered(model: Decoder) -> float:
    """Bytes per token of the pool that attention's copy of one layer takes: as it is held, and as it is computed."""
    if model.program is not None or (model.flash is not None and model.flash.paged):
        return 0.0
    config = model.config
    copied = config.kv_bytes_per_token(model.dtype.itemsize)
    if model.kv.quantized:
        copied += model.kv.token_bytes(config)
    # groups are padded; what is copied without padding is copied by recorded steps into memory of their own
    copies = sdpa.PADDING if model.flash is None else 1 + model.recordable
    return copies * copied / config.num_layers + (_PLACE_BYTES if model.recordable else 0)


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
