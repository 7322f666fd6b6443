"""Looking: engine processes through the kernel, engines through their state, logs through their size.

A round never waits for an engine. Probes run beside it and wake it; what they found is in the slot by then.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from runtime.agent import enginelog, files
from runtime.agent.probe import Prober
from runtime.agent.replicas import Running, Slot, bounded_text
from runtime.agent.views import ReplicaView
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.wire.inference import EngineAddress
from runtime.wire.reports import Phase

log = logs.get(__name__)
PROBE_EVERY: Final = 1.0
PROBE_STARTING: Final = 0.25  # an engine on its way is looked at more often, so that it serves as soon as it can
_STARTING: Final = frozenset({Phase.LOADING, Phase.WARMING, Phase.DRAINING})
BOUND_LOG_EVERY: Final = 5.0


class Observer:
    """Watches the engines of all slots."""

    def __init__(self, *, clock: Clock, prober: Prober, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._prober = prober
        self._wake = wake
        self._probed: dict[str, float] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._bounded_at = 0.0

    def observe(self, slots: Mapping[str, Slot]) -> list[ReplicaView]:
        """Return the view of every slot and start the probes that are due."""
        now = self._clock.monotonic()
        for slot in slots.values():
            pause = PROBE_STARTING if slot.phase in _STARTING else PROBE_EVERY
            if slot.running is not None and now - self._probed.get(slot.id, now - pause) >= pause:
                self._start(slot, slot.running, now)
        if now - self._bounded_at >= BOUND_LOG_EVERY:
            self._bounded_at = now
            for slot in slots.values():
                enginelog.bound(slot.folder.log)
        for gone in [replica_id for replica_id in self._probed if replica_id not in slots]:
            del self._probed[gone]
        return [slot.view() for slot in slots.values()]

    def _start(self, slot: Slot, run: Running, now: float) -> None:
        if slot.id in self._probes:
            return
        self._probed[slot.id] = now
        task = asyncio.create_task(self.probe(slot, run))
        self._probes[slot.id] = task
        task.add_done_callback(lambda _: self._probes.pop(slot.id, None))

    async def probe(self, slot: Slot, run: Running) -> None:
        """Ask the engine ``run`` of ``slot`` for its state and note the answer, or the silence."""
        if not run.url:
            run.url = read_address(slot, run)
        if not run.url:
            return
        answer = await self._prober.state(run.url, run.token, replica_id=slot.id, generation=run.record.generation)
        if slot.running is not run:
            return  # it was replaced while we asked
        now = self._clock.monotonic()
        if isinstance(answer, str):
            if slot.silent_since is None:
                slot.silent_since = now
                log.info("engine_silent", replica=slot.id, message=answer)
        else:
            # Bounded here, so that what is compared, kept and reported later is the same text.
            bounded = msgspec.structs.replace(answer, reason=answer.reason[:64], message=bounded_text(answer.message))
            slot.engine, slot.engine_at, slot.silent_since = bounded, now, None
        self._wake()

    async def close(self) -> None:
        """Stop probing."""
        tasks = list(self._probes.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def read_address(slot: Slot, run: Running) -> str:
    """Where the engine says it listens; "" until it has said so, or when another process wrote the file."""
    address = files.read_foreign(slot.folder.address, EngineAddress)
    if address is None:
        return ""
    try:
        ours = address.pid == run.process.pid or os.getsid(address.pid) == run.process.pid
    except OSError:
        ours = False
    return address.url.rstrip("/") if ours else ""
