"""From a spec to an engine that has answered once: open, load, measure, size the pool, warm up."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import torch

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.engine import errors, settings
from runtime.engine.causal import ledger, loader, measure, precision, probes
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.gate import WatermarkGate, effective_marks
from runtime.engine.causal.model import Cache, Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.steps import OutOfMemory
from runtime.engine.formats.opening import open_model
from runtime.engine.formats.source import ModelSource
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec
from runtime.wire.reports import Phase

_log = logs.get(__name__)

Report = Callable[[Phase, float | None], None]

_SWITCH_SECONDS: Final = 0.001


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What the server needs of a loaded model."""

    engine: CausalEngine
    chat_template: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A model in memory, and how much room is left beside it."""

    source: ModelSource
    model: Decoder
    cache: Cache
    costs: ledger.FixedCosts
    plan: ledger.PoolPlan
    probe: ledger.DeviceProbe


def bring_up(
    spec: EngineSpec,
    *,
    clock: Clock,
    report: Report,
    on_fatal: Callable[[str], None],
    on_opened: Callable[[ModelSource], None] = lambda _source: None,
) -> Started:
    """Load the model of ``spec`` and return a running engine; ``report`` is told phase and progress.

    ``on_opened`` is called when all but the weights is known.

    Raises:
        errors.StartError: it cannot be served here; the reason and the numbers are in it.
    """
    spec = msgspec.structs.replace(spec, config=settings.effective(spec.config))
    device = _device(spec)
    held = precision.chosen(spec.config, device)
    torch.set_num_threads(spec.config.num_threads or _usable_cpus())
    sys.setswitchinterval(_SWITCH_SECONDS)  # the step loop asks for the interpreter hundreds of times a step
    report(Phase.LOADING, 0.0)
    try:
        prepared = _prepare(spec, held, device, report, on_opened)
    except (OutOfMemory, MemoryError, torch.OutOfMemoryError) as exc:
        raise errors.StartError("DoesNotFit", f"The device ran out of memory while loading: {exc}") from exc
    engine = _assemble(spec.config, prepared, clock, on_fatal)
    engine.start()
    report(Phase.WARMING, 0.5)
    measure.warm_up(engine)
    _log.info(
        "engine_ready",
        architecture=prepared.source.config.architecture.name,
        weights_bytes=prepared.costs.weights_bytes,
        context_bytes=prepared.costs.context_bytes,
        workspace_bytes=prepared.plan.workspace_bytes,
        kv_blocks=prepared.plan.blocks,
        max_model_len=prepared.plan.max_model_len,
        threads=torch.get_num_threads(),
        kernels=prepared.model.program is not None,
    )
    return Started(engine=engine, chat_template=prepared.source.chat_template)


def _prepare(
    spec: EngineSpec,
    held: precision.Precision,
    device: torch.device,
    report: Report,
    on_opened: Callable[[ModelSource], None],
) -> _Prepared:
    """Open, load, measure, and take the memory for the KV pool."""
    config = spec.config
    probe = probes.probe_for(device, spec.memory_bytes)
    source = open_model(Path(spec.model_path), spec.format)
    on_opened(source)
    if isinstance(probe, probes.CudaProbe):
        context = probe.context_bytes()
        # others may hold some of what was promised: what is planned is what is there
        spec = msgspec.structs.replace(spec, memory_bytes=probe.reachable_bytes())
    else:
        context = probe.held_bytes()
    ledger.check_weights_fit(
        total_bytes=spec.memory_bytes,
        context_bytes=context,
        weights_bytes=_expected_weight_bytes(source, held),
        marks=config.watermarks,
    )
    model = loader.load(
        source,
        dtype=held.dtype,
        device=device,
        quantization=held.quantization,
        kv=held.kv,
        offload_layers=held.offload_layers,
        progress=lambda share: report(Phase.LOADING, share),
    )
    probe.give_back()
    report(Phase.WARMING, 0.0)
    costs = measure.fixed_costs(spec, source, model, probe, context)
    plan = ledger.plan_pool(
        costs,
        marks=config.watermarks,
        wanted_kv_bytes=config.kv_cache_bytes,
        wanted_len=config.max_model_len,
        max_positions=source.config.max_positions,
    )
    model.resize_positions(plan.max_model_len)
    cache = measure.new_pool(model, plan.blocks, config.kv_block_tokens)
    return _Prepared(source=source, model=model, cache=cache, costs=costs, plan=plan, probe=probe)


def _assemble(config: EngineConfig, prepared: _Prepared, clock: Clock, on_fatal: Callable[[str], None]) -> CausalEngine:
    """Put the parts together."""
    source, costs, plan = prepared.source, prepared.costs, prepared.plan
    pool = BlockPool(plan.blocks, config.kv_block_tokens, prefix_cache=config.enable_prefix_cache)
    marks = effective_marks(config.watermarks, ledger.idle_level(costs, plan))
    longest = ledger.longest_sequence(
        plan,
        block_tokens=config.kv_block_tokens,
        tenant_kv_share=config.tenant_kv_share,
        wanted_len=config.max_model_len,
    )
    graphs = measure.new_graphs(prepared.model, prepared.cache, config.max_num_seqs, plan.max_model_len)
    runner = Runner(prepared.model, prepared.cache, config.kv_block_tokens, source.eos_ids, graphs)
    runner.record()
    return CausalEngine(
        runner=runner,
        scheduler=Scheduler(
            pool,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=config.max_waiting,
            tenant_kv_share=config.tenant_kv_share,
        ),
        tokenizer=source.tokenizer,
        book=ledger.MemoryBook(costs, plan, pool, prepared.probe, marks),
        gate=WatermarkGate(marks),
        clock=clock,
        eos_ids=source.eos_ids,
        max_model_len=longest,
        max_num_seqs=config.max_num_seqs,
        on_fatal=on_fatal,
        queue_timeout=config.queue_timeout_seconds,
    )


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _device(spec: EngineSpec) -> torch.device:
    if spec.device_kind == "cpu":
        return torch.device("cpu")
    if spec.device_kind != "cuda":
        raise errors.StartError("UnsupportedDevice", f"Devices of kind {spec.device_kind!r} cannot run an engine.")
    if not torch.cuda.is_available():
        raise errors.StartError("NoDevice", "torch finds no CUDA device; is the driver there and the device visible?")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.device("cuda", 0)  # the launcher made exactly the granted device visible, by UUID


def _expected_weight_bytes(source: ModelSource, held: precision.Precision) -> int:
    """Bytes the weights will take on the device at least, before any is allocated."""
    # not inside `with torch.device("meta")`: arithmetic on such tensors imports sympy and the compiler, for seconds
    model = Decoder(source.config, dtype=held.dtype, device=torch.device("meta"))
    width = {"none": held.dtype.itemsize, "int4_weight_only": 0.5}.get(held.quantization, 1)
    away = {str(number) for number in range(source.config.num_layers - held.offload_layers, source.config.num_layers)}
    return sum(
        int(tensor.numel() * (width if tensor.ndim > 1 else held.dtype.itemsize))
        for name, tensor in model.destinations().items()
        if model.part(name) not in away
    )
