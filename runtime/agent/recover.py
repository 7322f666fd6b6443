"""What a starting agent does with what the last one left: adopt what runs and answers, end what nobody knows.

An engine is adopted when its record, the kernel (boot id, pid, start ticks) and the engine itself (replica and
generation, asked with its token) agree, and it listens where gateways look for this node now. Everything else that was
started from this state folder is ended.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from runtime.agent import files, processes
from runtime.agent.diff import backoff
from runtime.agent.observe import read_address
from runtime.agent.probe import Prober
from runtime.agent.processes import EngineProcess
from runtime.agent.records import ProcessRecord, Records, ReplicaFolder, ReplicaRecord
from runtime.agent.replicas import Running, Slot
from runtime.agent.views import Policy, Work
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.wire.assignments import Desired
from runtime.wire.inference import EngineSpec, EngineState
from runtime.wire.reports import Phase

log = logs.get(__name__)
ORPHAN_LOOKS: Final = 100
ORPHAN_PAUSE: Final = 0.05
_AS_FOUND: Final = frozenset({Phase.READY, Phase.DEGRADED, Phase.ASLEEP})


class Listens(NamedTuple):
    """Where engines of this node listen, and the addresses at which gateways and ranks on other nodes reach them."""

    bind: str
    advertise: str
    ranks: str = ""


async def recover(
    *, records: Records, prober: Prober, clock: Clock, policy: Policy, boot_id: str, listens: Listens
) -> dict[str, Slot]:
    """Return a slot for every record, with its engine where one was adopted; ends orphans."""
    specs = processes.running_specs(records.root)
    slots: dict[str, Slot] = {}
    for replica_id, record in records.load().items():
        folder = records.folder(replica_id)
        slot = Slot(
            assignment=record.assignment,
            folder=folder,
            phase=Phase.FETCHING if record.assignment.desired is Desired.RUN else Phase.STOPPED,
            since=clock.monotonic(),
            restarts=record.restarts,
            crashes=record.crashes,
            uid=record.uid,
        )
        slots[replica_id] = slot
        if record.process is None or record.process.boot_id != boot_id:
            continue
        process = _find(record.process, folder, specs)
        if process is None:
            _lost(slot, record.process, clock.monotonic(), policy)
        else:
            await _adopt(slot, record, process, prober, clock, listens)
    known = {slot.running.process.pid for slot in slots.values() if slot.running}
    for pid in specs:
        if pid not in known:
            await _end_orphan(pid, clock)
    return slots


def _find(record: ProcessRecord, folder: ReplicaFolder, specs: dict[int, Path]) -> EngineProcess | None:
    if record.pid:
        return processes.adopt(record.pid, record.ticks)
    for pid, spec in specs.items():  # the last agent died between starting it and writing that down
        if spec == folder.spec:
            return processes.adopt(pid, processes.start_ticks(pid) or 0)
    return None


def _lost(slot: Slot, process: ProcessRecord, now: float, policy: Policy) -> None:
    """The engine ended while no agent watched. One that ended with its supervisor simply starts again."""
    if slot.assignment.desired is Desired.RUN and not process.tied:
        slot.restarts += 1
        slot.crashes += 1
        slot.phase, slot.reason = Phase.FAILED, "EngineExited"
        slot.message = "the engine ended while the agent was not running"
        slot.retry_at = now + backoff(slot.crashes, policy)
    slot.save()


async def _adopt(
    slot: Slot, record: ReplicaRecord, process: EngineProcess, prober: Prober, clock: Clock, listens: Listens
) -> None:
    spec = files.read_struct(slot.folder.spec, EngineSpec)
    started = record.process
    if spec is None or started is None or spec.generation != started.generation:
        return  # without its token it cannot be spoken to: it is ended as an orphan
    wanted = listens if spec.rank_address else listens._replace(ranks="")
    if Listens(spec.host, spec.advertise_host, spec.rank_address) != wanted:
        # The node has another address: what listens at the old one answers this agent and no gateway. It starts again.
        log.warning("engine_left_behind", replica=slot.id, pid=process.pid, was=spec.advertise_host)
        return
    run = Running(
        process=process,
        record=msgspec.structs.replace(started, pid=process.pid, ticks=process.ticks),
        token=spec.token,
    )
    slot.running = run
    run.url = read_address(slot, run)
    answer: EngineState | str = "it does not listen yet"
    if run.url:
        answer = await prober.state(run.url, run.token, replica_id=slot.id, generation=started.generation)
    now = clock.monotonic()
    slot.verify = Work.DONE if record.verified else Work.NONE
    slot.reason = "Adopted"
    if isinstance(answer, EngineState):
        slot.engine, slot.engine_at = answer, now
        world = record.assignment.world
        slot.phase = _phase(answer, verified=record.verified or (world is not None and not world.leads))
        slot.drain_at = now if slot.phase is Phase.DRAINING else None
    else:
        slot.silent_since = now if run.url else None
        slot.phase = Phase.DEGRADED if record.verified else Phase.LOADING
    slot.save()
    log.info("engine_adopted", replica=slot.id, generation=started.generation, pid=process.pid, phase=slot.phase)


def _phase(engine: EngineState, *, verified: bool) -> Phase:
    """Where an adopted engine is; what it cannot prove it proves again."""
    if engine.phase is Phase.DRAINING:
        return Phase.DRAINING
    if engine.phase in _AS_FOUND:
        return engine.phase if verified else Phase.WARMING
    return Phase.WARMING if engine.phase is Phase.WARMING else Phase.LOADING


async def _end_orphan(pid: int, clock: Clock) -> None:
    """Kill a process group and wait until its leader is gone, so that its memory is free before anything starts."""
    log.warning("orphan_ended", pid=pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(ORPHAN_LOOKS):
        if processes.start_ticks(pid) is None:
            return
        await clock.sleep(ORPHAN_PAUSE)
    log.error("orphan_unkillable", pid=pid)
