"""The parts of one gateway, put together once and handed to whatever serves a request."""

import msgspec

from runtime.base.clock import Clock, SystemClock
from runtime.gateway.control import ControlPlane
from runtime.gateway.finals import Finals, settle_cut
from runtime.gateway.journal import Journal
from runtime.gateway.limits import Limiter, Options
from runtime.gateway.link import Link
from runtime.gateway.loops import Background
from runtime.gateway.membership import Membership
from runtime.gateway.metrics import Metrics
from runtime.gateway.outbox import Outbox
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.settings import Settings
from runtime.gateway.table import Snapshot, TableKeeper
from runtime.gateway.traffic import Traffic
from runtime.gateway.upstream import Engines
from runtime.gateway.watch import Watch
from runtime.wire.routes import ReplicaRoute


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a request needs. ``url`` is where others reach this gateway."""

    settings: Settings
    clock: Clock
    keeper: TableKeeper
    limiter: Limiter
    journal: Journal
    engines: Engines
    outbox: Outbox
    metrics: Metrics
    background: Background
    control: ControlPlane
    link: Link
    traffic: Traffic
    watch: Watch
    finals: Finals
    running: set[str]  # ids of the requests being served

    def snapshot(self) -> Snapshot:
        """The table to serve from.

        Raises:
            Refusal: 503 when there is none, when it is older than the stated maximum, or when the gateway was removed.
        """
        snapshot = self.keeper.snapshot
        if self.keeper.removed:
            raise Refusal(Reason.REMOVED, 503, "This gateway was removed from the platform. Use another address.")
        if snapshot is None:
            raise Refusal(
                Reason.NO_TABLE, 503, "The gateway has not received its first route table yet.", retry_after=2
            )
        most = self.settings.max_table_age_seconds
        if (age := self.keeper.age()) > most:
            raise Refusal(
                Reason.TABLE_TOO_OLD,
                503,
                f"The gateway has not heard from the control plane for {round(age)} s, longer than the {round(most)} s "
                "for which keys are accepted without it.",
                retry_after=10,
            )
        return snapshot

    async def start(self) -> None:
        """Take what an earlier process left, then start the background loops."""
        self.keeper.load()
        await self.limiter.start()
        self.background.keep("limits", self.limiter.keep)
        self.background.keep("journal", self.journal.keep_synced)
        self.background.spawn(self._settle_cut())
        self.background.keep("traffic", self.traffic.keep_ticking)
        self.watch.start(self.background)
        self.link.start(self.background)

    async def _settle_cut(self) -> None:
        """Wait for a table, then ask the engines in it; without one there is nobody to ask."""
        while self.keeper.snapshot is None:
            await self.clock.sleep(0.1)
        await settle_cut(self.finals, self.journal)

    async def stop(self) -> None:
        """End in order: let requests that were cut say so, finish what was spawned, hand over usage, close."""
        patience = self.settings.cancel_timeout_seconds + 2
        deadline = self.clock.monotonic() + patience
        while self.running and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)
        self.finals.close()  # who has asked in vain leaves it to the next process
        await self.background.finish(patience)
        await self.background.stop()
        await self.limiter.close()
        await self.link.last_delivery()
        await self.engines.close()
        await self.control.close()
        await self.journal.close()


def build(settings: Settings, *, url: str, clock: Clock | None = None) -> Core:
    """Put a gateway together. Opens the journal; starts nothing.

    Raises:
        OSError: the state folder cannot be written.
    """
    clock = clock or SystemClock()
    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    running: set[str] = set()
    keeper = TableKeeper(settings.directory / "routes.json", clock)
    control = ControlPlane(settings.control_url, timeout_seconds=settings.control_timeout_seconds)
    journal = Journal(
        settings.directory / "journal",
        segment_bytes=settings.segment_bytes,
        max_bytes=settings.journal_max_bytes,
        fsync_seconds=settings.fsync_seconds,
        fsync_records=settings.fsync_records,
    )
    membership = Membership(settings, control, keeper)
    outbox = Outbox(journal.write_out)
    engines = Engines(settings, outbox.put)
    metrics = Metrics()
    limiter = Limiter(clock, _limits(settings), on_alert=metrics.budget_alert)
    traffic = Traffic(settings, clock, metrics, lambda: keeper.snapshot)

    def route(replica_id: str) -> ReplicaRoute | None:
        return keeper.snapshot.replicas.get(replica_id) if keeper.snapshot else None

    return Core(
        settings=settings,
        clock=clock,
        keeper=keeper,
        limiter=limiter,
        journal=journal,
        engines=engines,
        outbox=outbox,
        metrics=metrics,
        background=Background(clock),
        control=control,
        link=Link(
            settings,
            control,
            keeper,
            journal,
            membership,
            url=url,
            in_flight=lambda: len(running),
            traffic=traffic,
            limits_shared=lambda: limiter.shared,
        ),
        traffic=traffic,
        finals=Finals(engines, clock, route, seconds=settings.final_usage_seconds),
        watch=Watch(settings, clock, engines, traffic, gateway_id=lambda: membership.id),
        running=running,
    )


def _limits(settings: Settings) -> Options:
    return Options(
        url=settings.limits_url,
        timeout_seconds=settings.limits_timeout_seconds,
        lease_seconds=settings.limits_lease_seconds,
        refuse_when_down=settings.limits_when_down == "refuse",
        gateways=settings.limits_gateways,
        memory=settings.directory / "limits.json",
    )
