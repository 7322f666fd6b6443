"""One agent: rounds of observe, diff and apply, and beside them reports, assignments and hints.

The three conversations with the control plane only set events; the truth is always read again. When the control
plane is silent the rounds go on with the last assignments, and engines with them.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from runtime.agent.apply import Applier
from runtime.agent.desired import DesiredKeeper
from runtime.agent.devices import health
from runtime.agent.devices.health import HealthLog
from runtime.agent.devices.inventory import Inventory
from runtime.agent.devices.port import EventSource
from runtime.agent.diff import plan
from runtime.agent.errors import LinkError, Refused, Unreachable
from runtime.agent.host import Host
from runtime.agent.link import ControlPlane, Retrying
from runtime.agent.membership import Membership, is_removed
from runtime.agent.mig import MigKeeper
from runtime.agent.mps import Mps
from runtime.agent.observe import Observer
from runtime.agent.owners import on_devices, shared_devices, with_owners
from runtime.agent.settings import AgentSettings
from runtime.agent.store import ArtifactStore
from runtime.agent.views import Policy
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.base.version import VERSION
from runtime.wire.assignments import NodeAssignments
from runtime.wire.devices import HealthFact
from runtime.wire.reports import NodeReport, Phase, ReplicaReport, ReportReply

log = logs.get(__name__)
ROUND_SECONDS: Final = 0.25
ROUND_GAP: Final = 0.02  # a plan that never settles must not take the processor
REPORT_GAP: Final = 0.2  # between two reports, however much changes
REPORT_PAUSE: Final = 5.0
FIRST_INTERVAL: Final = 5.0
INTERVAL_BOUNDS: Final = (0.2, 60.0)
MAX_DIGESTS: Final = 1000
STOP_ROUNDS: Final = 120
GOODBYE_SECONDS: Final = 3.0


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is made of; put together in :mod:`runtime.agent.main`."""

    settings: AgentSettings
    clock: Clock
    policy: Policy
    boot_id: str
    host: Host
    inventory: Inventory
    events: list[EventSource]
    health: HealthLog
    mig: MigKeeper
    mps: Mps
    store: ArtifactStore
    desired: DesiredKeeper
    applier: Applier
    observer: Observer
    control: ControlPlane
    membership: Membership


class Agent:
    """Runs until told to stop. ``wake`` asks for a round now."""

    def __init__(self, parts: Parts, wake: asyncio.Event) -> None:
        self._p = parts
        parts.mig.rescan = self._scan
        self._wake = wake
        self._report_soon = asyncio.Event()
        self._read_assignments = asyncio.Event()
        self._agent_id = str(uuid.uuid4())
        self._sequence = 0
        self._applied = 0  # the generation the last round acted on: a report must not claim more

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; engines go on afterwards unless the settings say otherwise."""
        for slot in self._p.applier.slots.values():
            self._p.applier.hold(slot)
        self._p.store.sweep_partials()
        if self._p.membership.load():
            self._p.desired.load(self._p.membership.node_id)
        await self._scan()
        loops = [self._rounds(), self._reports(), self._assignments(), self._hints()]
        tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(loop) for loop in (stop.wait(), *loops)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # a loop that ended has failed: let the process end with its error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._p.settings.stop_engines:
                await self._stop_engines()
                await self._say_goodbye()
            await self._p.mig.close()
            await self._p.applier.close()
            await self._p.observer.close()

    # Rounds

    async def _rounds(self) -> None:
        while True:
            self._wake.clear()
            try:
                if self._hear():
                    self._report_soon.set()
                self._round(self._p.desired.current)
                self._cut(self._p.desired.current)
            except Exception:  # boundary: recorded, and the next round looks at everything afresh
                log.exception("round_failed")
                await self._p.clock.sleep(1.0)
            if any(slot.reported != slot.mark for slot in self._p.applier.slots.values()):
                self._report_soon.set()
            await self._p.clock.sleep(ROUND_GAP)
            await self._wait(self._wake, ROUND_SECONDS)

    def _round(self, desired: NodeAssignments | None) -> None:
        views = self._p.observer.observe(self._p.applier.slots)
        actions = plan(
            desired,
            views,
            highest=self._p.desired.highest,
            now=self._p.clock.monotonic(),
            policy=self._p.policy,
        )
        self._p.applier.apply(actions)
        self._applied = desired.generation if desired else 0

    def _hear(self) -> bool:
        """Note what drivers said of devices; true when they said something."""
        heard = [event for source in self._p.events for event in source.take()]
        self._p.health.note(heard)
        return bool(heard)

    def _cut(self, desired: NodeAssignments | None) -> None:
        """Follow the MIG layouts."""
        users = on_devices(self._p.applier.slots.values())
        layouts = desired.layouts if desired else []
        if self._p.mig.round(layouts, self._p.applier.devices, users):
            self._report_soon.set()

    async def _stop_engines(self) -> None:
        """End every engine; the records stay, so that the next agent starts what is still assigned."""
        nothing = NodeAssignments(
            node_id=self._p.membership.node_id, generation=self._p.desired.generation, replicas=[]
        )
        for _ in range(STOP_ROUNDS):
            self._round(nothing)
            if all(slot.running is None for slot in self._p.applier.slots.values()):
                return
            await self._p.clock.sleep(ROUND_SECONDS)
        log.error("engines_left_running")

    async def _say_goodbye(self) -> None:
        """Tell the control plane that nothing runs here now; once, since its lease tells it too."""
        if self._p.membership.node_id:
            with contextlib.suppress(LinkError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._report()

    # Reports

    async def _reports(self) -> None:
        # Not longer: a control plane that is back must hear of its nodes well within their lease, and of their engines.
        retrying = Retrying(limit=REPORT_PAUSE)
        interval = FIRST_INTERVAL
        while True:
            node_id = await self._p.membership.ensure()
            self._p.desired.reset(node_id)
            self._report_soon.clear()
            try:
                reply = await self._report()
            except Refused as refusal:
                self._refused(refusal)
                await self._p.clock.sleep(retrying.pause())
            except LinkError as exc:
                log.warning("report_failed", error=str(exc))
                await self._p.clock.sleep(retrying.pause(exc.retry_after))
            else:
                retrying.succeeded()
                interval = min(max(reply.interval_seconds, INTERVAL_BOUNDS[0]), INTERVAL_BOUNDS[1])
                self._heed(reply)
                await self._p.clock.sleep(min(REPORT_GAP, interval))
                await self._wait(self._report_soon, interval)

    async def _report(self) -> ReportReply:
        await self._scan()
        marked = [(slot, slot.mark, slot.report()) for slot in self._p.applier.slots.values()]
        facts = self._p.health.waiting
        self._sequence += 1
        reply = await self._p.control.report(self._node_report([report for _, _, report in marked], facts))
        self._p.health.received(facts)
        for slot, mark, report in marked:
            slot.received(report, mark)
        if any(slot.phase is Phase.STOPPED for slot, _, _ in marked):
            self._wake.set()  # what is stopped and known to be stopped can be forgotten
        return reply

    def _node_report(self, replicas: list[ReplicaReport], facts: list[HealthFact]) -> NodeReport:
        return NodeReport(
            agent_version=VERSION,
            boot_id=self._p.boot_id,
            agent_id=self._agent_id,
            sequence=self._sequence,
            data_address=self._p.settings.data_host,
            rank_address=self._p.settings.rank_address,
            applied_generation=self._applied,
            host=self._p.host.report(),
            devices=list(self._p.applier.devices.values()),
            replicas=replicas,
            stored_sha256=self._p.store.digests()[:MAX_DIGESTS],
            health=facts,
            health_dropped=self._p.health.dropped,
            layouts=self._p.mig.reports,
        )

    async def _scan(self) -> None:
        """Look at the devices, and note what has changed since the last look."""
        scanned = with_owners(await self._p.inventory.scan(), self._p.applier.slots.values())
        after = {device.uuid: device for device in scanned}
        self._hear()  # before what the scan finds: it names the cause, and the first fact is what people are told
        self._p.health.note(health.changes(self._p.applier.devices, after))
        self._p.applier.devices = after
        await self._p.mps.stop_unused(shared_devices(self._p.applier.slots.values()))

    def _heed(self, reply: ReportReply) -> None:
        if reply.generation > self._p.desired.generation or self._p.desired.current is None:
            self._read_assignments.set()
        elif reply.generation < self._p.desired.generation:
            log.warning("control_plane_behind", generation=reply.generation, applied=self._p.desired.generation)

    def _refused(self, refusal: Refused) -> None:
        if self._p.membership.rejected(refusal):
            return
        if is_removed(refusal):
            self._p.desired.want_nothing()
            self._wake.set()

    # Assignments and hints

    async def _assignments(self) -> None:
        retrying = Retrying(limit=10.0)
        while True:
            await self._read_assignments.wait()
            self._read_assignments.clear()
            node_id = await self._p.membership.ensure()
            try:
                offered = await self._p.control.assignments()
            except LinkError as exc:
                log.warning("assignments_unreadable", error=str(exc))
                await self._p.clock.sleep(retrying.pause())
                self._read_assignments.set()
                continue
            retrying.succeeded()
            if self._p.desired.accept(offered, node_id):
                self._wake.set()

    async def _hints(self) -> None:
        retrying = Retrying(first=1.0)
        while True:
            await self._p.membership.ensure()
            try:
                async for hint in self._p.control.hints():
                    retrying.succeeded()
                    if hint.topic == "assignments" and hint.generation > self._p.desired.generation:
                        self._read_assignments.set()
            except Unreachable as exc:
                log.debug("hints_unavailable", error=str(exc))
            await self._p.clock.sleep(retrying.pause())

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return when ``event`` is set or ``seconds`` have passed on the agent's clock."""
        await first_of(event.wait, lambda: self._p.clock.sleep(seconds))


async def first_of(*makers: Callable[[], Awaitable[object]]) -> None:
    """Run all, return when the first is done, cancel the rest."""
    tasks = [asyncio.ensure_future(maker()) for maker in makers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
