"""MIG layouts on this node: compare what is wanted with what exists, change idle GPUs alone, put back what failed.

Nothing is remembered beyond the assignments: after a restart of agent or machine the GPU is read again, and what a
reset has undone is made anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from runtime.agent.devices.port import GpuInstance, MigDriver, MigError
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.wire.devices import (
    DeviceKind,
    DeviceReport,
    MigLayout,
    MigLayoutPhase,
    MigLayoutReport,
    MigPlacement,
)

log = logs.get(__name__)
RETRY_SECONDS: Final = 60.0
MESSAGE_CHARS: Final = 500


def difference(
    existing: Sequence[GpuInstance], wanted: Sequence[MigPlacement]
) -> tuple[list[GpuInstance], list[MigPlacement]]:
    """(instances to remove, placements to make); what is already as wanted is left alone."""
    open_ = list(wanted)
    surplus: list[GpuInstance] = []
    for item in existing:
        place = MigPlacement(profile_id=item.profile_id, start=item.start)
        if place in open_:
            open_.remove(place)
        else:
            surplus.append(item)
    return surplus, open_


def carry_out(driver: MigDriver, layout: MigLayout) -> None:
    """Cut the GPU as wanted; blocks as long as the driver does. On a fault the former layout is put back.

    Raises:
        MigError: it was refused; the message says whether the former layout is there again.
    """
    uuid, wanted_on = layout.device_uuid, bool(layout.placements)
    was_on = driver.enabled(uuid)
    before = driver.instances(uuid) if was_on else []
    surplus, missing = difference(before, layout.placements)
    try:
        for item in surplus:
            driver.destroy(uuid, item.id)
        if wanted_on != was_on or driver.pending(uuid) != wanted_on:  # a switch that waits for a reset is taken back
            driver.enable(uuid, wanted_on)
        for place in missing:
            driver.create(uuid, place.profile_id, place.start)
    except MigError as exc:
        raise MigError(exc.reason, f"{exc.message}; {_put_back(driver, uuid, was_on, before)}") from exc


def _put_back(driver: MigDriver, uuid: str, was_on: bool, before: Sequence[GpuInstance]) -> str:
    """Return to the former layout; says how that went."""
    wanted = [MigPlacement(profile_id=item.profile_id, start=item.start) for item in before]
    try:
        is_on = driver.enabled(uuid)
        surplus, missing = difference(driver.instances(uuid) if is_on else [], wanted)
        for item in surplus:
            driver.destroy(uuid, item.id)
        if is_on != was_on:
            driver.enable(uuid, was_on)
        for place in missing:
            driver.create(uuid, place.profile_id, place.start)
    except MigError as exc:
        return f"the former layout could not be put back: {exc.message}"
    return "the former layout is there again"


def satisfied(layout: MigLayout, device: DeviceReport) -> bool:
    """True when the device was last seen cut exactly as wanted, every instance usable."""
    facts = device.mig
    wanted_on = bool(layout.placements)
    if facts is None or facts.enabled != wanted_on or facts.pending != wanted_on:
        return False
    seen = sorted((item.profile_id, item.start) for item in facts.instances if item.uuid)
    return len(seen) == len(facts.instances) and seen == sorted((p.profile_id, p.start) for p in layout.placements)


class MigKeeper:
    """Follows the layouts. ``rescan`` (set by whoever owns the devices) reads them again; ``wake`` asks for a round."""

    def __init__(
        self,
        drivers: Mapping[DeviceKind, MigDriver],
        *,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._drivers = drivers
        self._clock = clock
        self.rescan: Callable[[], Awaitable[None]] | None = None
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}
        self._reports: dict[str, MigLayoutReport] = {}

    @property
    def reports(self) -> list[MigLayoutReport]:
        """What became of each wanted layout."""
        return list(self._reports.values())

    def changing(self, uuid: str) -> bool:
        """True while the GPU is being cut: nothing may be started on it."""
        return uuid in self._tasks

    def round(
        self, layouts: Sequence[MigLayout], devices: Mapping[str, DeviceReport], users: Mapping[str, str]
    ) -> bool:
        """Look at every layout and start what can be done; ``users`` says per device which replica is on it.

        Returns True when something that is reported has changed.
        """
        before = dict(self._reports)
        wanted = {layout.device_uuid: layout for layout in layouts}
        for uuid in [uuid for uuid in self._reports if uuid not in wanted and uuid not in self._tasks]:
            del self._reports[uuid]
            self._retry_at.pop(uuid, None)
        for uuid, layout in wanted.items():
            if uuid not in self._tasks:
                self._one(layout, devices.get(uuid), users.get(uuid, ""))
        return self._reports != before

    async def close(self) -> None:
        """Wait for changes under way: half a layout must not be left behind."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=30.0)

    def _one(self, layout: MigLayout, device: DeviceReport | None, user: str) -> None:
        uuid = layout.device_uuid
        if device is None:
            self._say(layout, MigLayoutPhase.FAILED, "DeviceMissing", "the GPU is not on this node")
            return
        if satisfied(layout, device):
            self._retry_at.pop(uuid, None)
            self._say(layout, MigLayoutPhase.APPLIED)
            return
        driver = self._drivers.get(device.kind)
        if driver is None or device.mig is None:
            self._say(layout, MigLayoutPhase.FAILED, "MigUnsupported", "this device cannot be cut: it has no MIG")
            return
        if device.problem:
            self._say(layout, MigLayoutPhase.WAITING, "DeviceSick", device.problem)
            return
        unknown = [text for text in device.unreadable if text.startswith(("mig: ", "processes: "))]
        if unknown:
            said = f"how the GPU is cut and who uses it cannot be read ({', '.join(unknown)})"
            self._say(layout, MigLayoutPhase.WAITING, "DeviceUnreadable", said)
            return
        if user or device.processes:
            who = f"replica {user}" if user else f"process {device.processes[0].pid}"
            self._say(layout, MigLayoutPhase.WAITING, "DeviceInUse", f"{who} uses the GPU")
            return
        last = self._reports.get(uuid)
        failed = last is not None and last.generation == layout.generation and last.phase is MigLayoutPhase.FAILED
        if failed and self._clock.monotonic() < self._retry_at.get(uuid, 0.0):
            return
        self._say(layout, MigLayoutPhase.APPLYING)
        self._tasks[uuid] = asyncio.create_task(self._apply(driver, layout))

    async def _apply(self, driver: MigDriver, layout: MigLayout) -> None:
        uuid = layout.device_uuid
        try:
            await asyncio.to_thread(carry_out, driver, layout)
        except MigError as exc:
            log.warning("mig_layout_failed", uuid=uuid, generation=layout.generation, reason=exc.reason)
            self._retry_at[uuid] = self._clock.monotonic() + RETRY_SECONDS
            self._say(layout, MigLayoutPhase.FAILED, exc.reason, exc.message)
        except Exception as exc:  # boundary: recorded on the report, and tried again
            log.exception("mig_layout_broke", uuid=uuid)
            self._retry_at[uuid] = self._clock.monotonic() + RETRY_SECONDS
            self._say(layout, MigLayoutPhase.FAILED, "AgentError", f"the agent failed at this layout: {exc}")
        else:
            log.info("mig_layout_applied", uuid=uuid, generation=layout.generation, instances=len(layout.placements))
        finally:
            if self.rescan is not None:  # what is reported next is what is there
                await self.rescan()
            self._tasks.pop(uuid, None)
            self._wake()

    def _say(self, layout: MigLayout, phase: MigLayoutPhase, reason: str = "", message: str = "") -> None:
        self._reports[layout.device_uuid] = MigLayoutReport(
            device_uuid=layout.device_uuid,
            generation=layout.generation,
            phase=phase,
            reason=reason,
            message=message[:MESSAGE_CHARS],
        )
