"""The gateway's side of the control plane: follow the route table, report, hand over usage.

Hints only say "look now". Correctness rests on the re-read every few seconds, so a lost hint costs latency alone.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.base import logs
from runtime.base.version import VERSION
from runtime.gateway.control import ControlError, ControlPlane, ControlRefused
from runtime.gateway.journal import Journal
from runtime.gateway.loops import Background, Backoff, wait_for
from runtime.gateway.membership import Membership
from runtime.gateway.settings import Settings
from runtime.gateway.table import TableKeeper, TableRefused
from runtime.gateway.traffic import Traffic
from runtime.wire.errors import ErrorCode
from runtime.wire.joining import Hint
from runtime.wire.routes import GatewayReport
from runtime.wire.usage import UsageBatch

log = logs.get(__name__)

_MAX_PAUSE: Final = 10.0
_MAX_REPORT_INTERVAL: Final = 60.0
_REPORT_AFTER_SECONDS: Final = 0.5


class Link:
    """Runs the loops. ``in_flight`` is asked for each report; ``url`` is where others reach this gateway."""

    def __init__(
        self,
        settings: Settings,
        control: ControlPlane,
        keeper: TableKeeper,
        journal: Journal,
        membership: Membership,
        *,
        url: str,
        in_flight: Callable[[], int],
        traffic: Traffic,
        limits_shared: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._control = control
        self._keeper = keeper
        self._journal = journal
        self._membership = membership
        self._url = url
        self._in_flight = in_flight
        self._traffic = traffic
        self._limits_shared = limits_shared
        self._look = asyncio.Event()  # the table may have changed
        self._report_now = asyncio.Event()  # a new generation is applied, or a replica ejected: say so
        traffic.pool.on_change = self._report_now.set
        self.connected = False  # the last call to the control plane succeeded

    @property
    def gateway_id(self) -> str:
        """This gateway's id at the control plane, "" before it has joined."""
        return self._membership.id

    def start(self, background: Background) -> None:
        """Start all loops."""
        background.keep("membership", self._membership.keep)
        for name, loop in (
            ("table", self._follow_table),
            ("hints", self._follow_hints),
            ("report", self._report),
            ("usage", self._deliver),
        ):
            background.keep(name, loop)

    # --- the table ---

    async def _follow_table(self) -> None:
        await self._membership.joined.wait()
        while True:
            try:
                table = await self._control.routes(self._keeper.generation)
                if table is None:
                    self._keeper.confirm()
                elif self._keeper.offer(table):
                    await self._acknowledge()
                self.connected = True
                self._membership.accepted()
                await self._keeper.save()
            except TableRefused as exc:
                log.warning("route table refused", error=str(exc))
            except ControlError as exc:
                self._failed("routes", exc)
            await wait_for(self._look, self._settings.reread_seconds)

    async def _acknowledge(self) -> None:
        """Say what is served from now on: on the socket at once, and in a report, which may wait if that went out."""
        if await self._control.acknowledge(self._keeper.generation):
            asyncio.get_running_loop().call_later(_REPORT_AFTER_SECONDS, self._report_now.set)
        else:
            self._report_now.set()

    async def _follow_hints(self) -> None:
        await self._membership.joined.wait()
        backoff = Backoff(_MAX_PAUSE)
        while True:
            try:
                await self._control.listen(self._take_hint)
                backoff.reset()
            except ControlError as exc:
                log.info("no hints; re-reading by time", error=str(exc))
            await asyncio.sleep(backoff.pause())

    def _take_hint(self, hint: Hint) -> None:
        if hint.topic == "routes" and hint.generation > self._keeper.generation:
            self._look.set()

    # --- reports ---

    async def _report(self) -> None:
        await self._membership.joined.wait()
        while True:
            interval = self._settings.reread_seconds
            try:
                reply = await self._control.report(self._present())
                interval = min(max(0.5, reply.interval_seconds), _MAX_REPORT_INTERVAL)
                if reply.generation > self._keeper.generation:
                    self._look.set()
            except ControlError as exc:
                self._failed("report", exc)
            await wait_for(self._report_now, interval)

    def _present(self) -> GatewayReport:
        return GatewayReport(
            gateway_id=self._membership.id,
            version=VERSION,
            url=self._url,
            applied_generation=self._keeper.generation,
            table_age_seconds=self._keeper.age(),
            in_flight=self._in_flight(),
            journal_pending=self._journal.pending,
            ejected=self._traffic.ejections(),
            adaptive=self._traffic.limits(),
            limits_shared=self._limits_shared(),
        )

    # --- usage ---

    async def _deliver(self) -> None:
        await self._membership.joined.wait()
        backoff = Backoff(_MAX_PAUSE)
        size = self._settings.batch_records
        while True:
            await wait_for(self._journal.arrived, _MAX_PAUSE)
            await asyncio.sleep(self._settings.deliver_seconds)  # what arrives meanwhile goes along
            try:
                size = await self.deliver_all(size)
                backoff.reset()
            except ControlError as exc:
                self._failed("usage", exc)
                self._journal.arrived.set()  # what was not booked is still there to deliver
                await asyncio.sleep(backoff.pause())

    async def deliver_all(self, size: int) -> int:
        """Hand over everything pending in batches of up to ``size``; return the size to go on with.

        Raises:
            ControlError: a batch was not booked; it stays in the journal.
        """
        while True:
            batch = self._journal.read(size)
            if batch.records:
                try:
                    await self._control.usage(UsageBatch(gateway_id=self._membership.id, records=batch.records))
                except ControlRefused as exc:
                    if exc.code is not ErrorCode.MALFORMED:
                        raise
                    if len(batch.records) > 1:
                        size = len(batch.records) // 2  # close in on the record that is refused
                        continue
                    self._journal.set_aside(batch.records[0], str(exc))
            await self._journal.commit(batch)
            if not batch.records:
                return size
            size = min(self._settings.batch_records, size * 2)

    async def last_delivery(self) -> None:
        """One try to hand over what is left and to say goodbye; what fails stays in the journal."""
        if not self._membership.joined.is_set():
            return
        try:
            await self.deliver_all(self._settings.batch_records)
            await self._control.report(self._present())
        except ControlError as exc:
            log.info("usage stays in the journal for the next start", pending=self._journal.pending, error=str(exc))

    def _failed(self, call: str, exc: ControlError) -> None:
        self.connected = False
        log.warning("control plane call failed", call=call, error=str(exc))
        if not isinstance(exc, ControlRefused):
            return
        if exc.code is ErrorCode.REMOVED:
            self._keeper.removed = True
            log.error("this gateway was removed; it serves no more")
        if exc.code in (ErrorCode.REMOVED, ErrorCode.UNAUTHENTICATED):
            self._membership.rejected()
