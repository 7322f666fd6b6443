"""From a spec to an engine that has answered once: open, load, measure, size the pool, warm up."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.engine import errors, settings
from runtime.engine.causal import ledger, loader, measure, precision, probes
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.gate import WatermarkGate, effective_marks
from runtime.engine.causal.model import Decoder
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.steps import OutOfMemory
from runtime.engine.formats.opening import open_model
from runtime.engine.formats.source import ModelSource
from runtime.engine.ranks import orders, split
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec
from runtime.wire.reports import Phase

if TYPE_CHECKING:
    from runtime.engine.ranks.team import Team

_log = logs.get(__name__)

Report = Callable[[Phase, float | None], None]

_SWITCH_SECONDS: Final = 0.001


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What the server needs of a loaded model."""

    engine: CausalEngine
    chat_template: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank has of a model, in memory; the whole of it where there is one rank."""

    spec: EngineSpec
    device: torch.device
    source: ModelSource
    model: Decoder
    probe: ledger.DeviceProbe
    context_bytes: int

    @property
    def held(self) -> orders.Held:
        """The same in bytes."""
        return orders.Held(
            total_bytes=self.spec.memory_bytes,
            context_bytes=self.context_bytes,
            weights_bytes=self.model.weights_bytes,
            token_bytes=self.model.kv.token_bytes(self.model.config),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A model in memory, and how much room is left beside it."""

    part: Part
    runner: Runner
    costs: ledger.FixedCosts
    plan: ledger.PoolPlan


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
    with contextlib.ExitStack() as undone:
        team = _team(spec, on_fatal)
        if team is not None:
            undone.callback(team.close)
        try:
            prepared = _prepare(spec, team, report, on_opened)
        except (OutOfMemory, MemoryError, torch.OutOfMemoryError) as exc:
            raise errors.StartError("DoesNotFit", f"The device ran out of memory while loading: {exc}") from exc
        engine = _assemble(prepared, clock, on_fatal)
        engine.start()
        report(Phase.WARMING, 0.5)
        measure.warm_up(engine)
        if team is not None:
            team.tell(orders.Serving())
        undone.pop_all()
    part = prepared.part
    _log.info(
        "engine_ready",
        architecture=part.source.config.architecture.name,
        weights_bytes=prepared.costs.weights_bytes,
        context_bytes=prepared.costs.context_bytes,
        workspace_bytes=prepared.plan.workspace_bytes,
        kv_blocks=prepared.plan.blocks,
        max_model_len=prepared.plan.max_model_len,
        threads=torch.get_num_threads(),
        kernels=part.model.program is not None,
        ranks=part.model.split.size,
    )
    return Started(engine=engine, chat_template=part.source.chat_template)


def _team(spec: EngineSpec, on_fatal: Callable[[str], None]) -> "Team | None":
    """The other ranks, which begin to load at once or as they come; ``None`` where there are none."""
    mine = split.of_world(spec.world)
    if mine.size == 1:
        return None
    from runtime.engine.ranks.team import Team

    return Team(spec, mine, on_fatal)


def load_part(
    spec: EngineSpec,
    mine: split.Split,
    report: Report,
    on_opened: Callable[[ModelSource], None] = lambda _source: None,
) -> Part:
    """Load what rank ``mine`` has of the model of ``spec``.

    Raises:
        errors.StartError: it cannot be served here; the reason and the numbers are in it.
    """
    config = settings.effective(spec.config)
    spec = msgspec.structs.replace(spec, config=config)
    device = _device(spec, mine)
    held = precision.chosen(config, device)
    if mine.size > 1 and held.offload_layers:
        raise errors.StartError(split.REASON, "A replica of several ranks keeps no layers in host memory.")
    here = split.here_of(spec.world)
    torch.set_num_threads(config.num_threads or max(1, _usable_cpus() // len(here)))
    sys.setswitchinterval(_SWITCH_SECONDS)  # the step loop asks for the interpreter hundreds of times a step
    report(Phase.LOADING, 0.0)
    if device.type == "cpu":  # all ranks of the node are in the memory of one machine
        spec = msgspec.structs.replace(spec, memory_bytes=spec.memory_bytes // len(here))
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
        weights_bytes=_expected_weight_bytes(source, held, mine),
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
        split=mine,
    )
    probe.give_back()
    return Part(spec=spec, device=device, source=source, model=model, probe=probe, context_bytes=context)


def _prepare(
    spec: EngineSpec, team: "Team | None", report: Report, on_opened: Callable[[ModelSource], None]
) -> _Prepared:
    """Open, load, measure, and take the memory for the KV pool."""
    part = load_part(spec, split.of_world(spec.world), report, on_opened)
    model, config, source = part.model, part.spec.config, part.source
    others: list[orders.Held] = []
    if team is not None:
        others = team.held()
        model.peers = team.meet(part.device)
    report(Phase.WARMING, 0.0)
    costs = measure.fixed_costs(part.spec, source, model, part.probe, part.context_bytes, team)
    # the cache that is asked for is the replica's: each rank has its part of every block
    block_bytes = model.kv.token_bytes(source.config) * config.kv_block_tokens
    blocks = config.kv_cache_bytes // block_bytes
    plans = [_plan(each, config, source, blocks) for each in (costs, *_costs_of(costs, others))]
    plan = min(plans, key=lambda plan: plan.blocks)
    measure.resize(model, team, plan.max_model_len)
    runner = measure.new_runner(model, plan.blocks, config.kv_block_tokens, source.eos_ids, team)
    return _Prepared(part=part, runner=runner, costs=costs, plan=plan)


def _costs_of(costs: ledger.FixedCosts, others: list[orders.Held]) -> list[ledger.FixedCosts]:
    """The costs of the other ranks: a step takes the same beside what each holds."""
    return [
        dataclasses.replace(
            costs,
            total_bytes=held.total_bytes,
            context_bytes=held.context_bytes,
            weights_bytes=held.weights_bytes,
            block_bytes=held.token_bytes * costs.block_tokens,
        )
        for held in others
    ]


def _plan(costs: ledger.FixedCosts, config: EngineConfig, source: ModelSource, blocks: int) -> ledger.PoolPlan:
    return ledger.plan_pool(
        costs,
        marks=config.watermarks,
        wanted_kv_bytes=blocks * costs.block_bytes,
        wanted_len=config.max_model_len,
        max_positions=source.config.max_positions,
    )


def _assemble(prepared: _Prepared, clock: Clock, on_fatal: Callable[[str], None]) -> CausalEngine:
    """Put the parts together."""
    source, costs, plan = prepared.part.source, prepared.costs, prepared.plan
    config, runner = prepared.part.spec.config, prepared.runner
    pool = BlockPool(plan.blocks, config.kv_block_tokens, prefix_cache=config.enable_prefix_cache)
    marks = effective_marks(config.watermarks, ledger.idle_level(costs, plan))
    longest = ledger.longest_sequence(
        plan,
        block_tokens=config.kv_block_tokens,
        tenant_kv_share=config.tenant_kv_share,
        wanted_len=config.max_model_len,
    )
    runner.graphs = measure.new_graphs(runner.model, runner.cache, config.max_num_seqs, plan.max_model_len)
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
        book=ledger.MemoryBook(costs, plan, pool, prepared.part.probe, marks),
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


def _device(spec: EngineSpec, mine: split.Split) -> torch.device:
    if spec.device_kind == "cpu":
        return torch.device("cpu")
    if spec.device_kind != "cuda":
        raise errors.StartError("UnsupportedDevice", f"Devices of kind {spec.device_kind!r} cannot run an engine.")
    if not torch.cuda.is_available():
        raise errors.StartError("NoDevice", "torch finds no CUDA device; is the driver there and the device visible?")
    here = split.here_of(spec.world)
    if torch.cuda.device_count() < len(here):
        visible = torch.cuda.device_count()
        raise errors.StartError("NoDevice", f"{len(here)} ranks need a device each; torch sees {visible}.")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = here.index(mine.rank)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)  # the launcher made exactly the granted devices visible, by UUID, in order


def _expected_weight_bytes(source: ModelSource, held: precision.Precision, mine: split.Split = split.WHOLE) -> int:
    """Bytes the weights will take on the device at least, before any is allocated."""
    # not inside `with torch.device("meta")`: arithmetic on such tensors imports sympy and the compiler, for seconds
    model = Decoder(source.config, dtype=held.dtype, device=torch.device("meta"), split=mine)
    width = {"none": held.dtype.itemsize, "int4_weight_only": 0.5}.get(held.quantization, 1)
    away = {str(number) for number in range(source.config.num_layers - held.offload_layers, source.config.num_layers)}
    return sum(
        int(tensor.numel() * (width if tensor.ndim > 1 else held.dtype.itemsize))
        for name, tensor in model.destinations().items()
        if model.part(name) not in away
    )
