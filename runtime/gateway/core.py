"""The parts of one gateway, put together once and handed to whatever serves a request."""

import itertools
import random

import msgspec

from runtime.base.clock import Clock, SystemClock
from runtime.gateway.control import ControlPlane
from runtime.gateway.journal import Journal
from runtime.gateway.limits import Limiter, LocalLimiter
from runtime.gateway.link import Link
from runtime.gateway.loops import Background
from runtime.gateway.membership import Membership
from runtime.gateway.metrics import Metrics
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.settings import Settings
from runtime.gateway.table import Snapshot, TableKeeper
from runtime.gateway.upstream import Engines


class Draws:
    """Where chance enters: the draw of a variant, and turns among equals."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - spreads traffic, protects nothing
        self._turns = itertools.count()

    def variant(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def turn(self) -> int:
        """The next turn."""
        return next(self._turns)


class Core(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a request needs. ``url`` is where others reach this gateway."""

    settings: Settings
    clock: Clock
    keeper: TableKeeper
    limiter: Limiter
    journal: Journal
    engines: Engines
    metrics: Metrics
    background: Background
    control: ControlPlane
    link: Link
    draws: Draws
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
        self.background.keep("journal", self.journal.keep_synced)
        self.link.start(self.background)

    async def stop(self) -> None:
        """End in order: let requests that were cut say so, finish what was spawned, hand over usage, close."""
        patience = self.settings.cancel_timeout_seconds + 2
        deadline = self.clock.monotonic() + patience
        while self.running and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.02)
        await self.background.finish(patience)
        await self.background.stop()
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
    return Core(
        settings=settings,
        clock=clock,
        keeper=keeper,
        limiter=LocalLimiter(clock),
        journal=journal,
        engines=Engines(settings),
        metrics=Metrics(),
        background=Background(clock),
        control=control,
        link=Link(
            settings,
            control,
            keeper,
            journal,
            Membership(settings, control, keeper),
            url=url,
            in_flight=lambda: len(running),
        ),
        draws=Draws(),
        running=running,
    )
