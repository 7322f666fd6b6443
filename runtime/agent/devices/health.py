"""From facts to events: what changed between two scans, and a numbered, bounded log of it all.

Whether a fact is harmless or the end of a GPU is not decided here: the control plane has the policy.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from runtime.agent import files
from runtime.agent.devices.port import UNLISTED, UNOPENED, Observed
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.wire.devices import OFF_THE_BUS, DeviceReport, HealthCode, HealthFact

log = logs.get(__name__)
MAX_FACTS: Final = 256
MESSAGE_CHARS: Final = 300
_THERMAL: Final = frozenset({"sw_thermal", "hw_thermal", "hw_slowdown"})
_AWAY: Final = (OFF_THE_BUS, UNLISTED, UNOPENED)
_POWER: Final = frozenset({"power_brake"})  # a power cap is how a busy GPU works, not a fault


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives an agent: the last number given, what was not received yet, how many were lost to the bound."""

    last: int = 0
    dropped: int = 0
    waiting: list[HealthFact] = []


class HealthLog:
    """Numbers facts and holds them until a report with them was received."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        kept = files.read_struct(path, Kept) or Kept()
        self._last, self.dropped = kept.last, kept.dropped
        self._waiting = list(kept.waiting)

    @property
    def waiting(self) -> list[HealthFact]:
        """Facts that no received report has held yet, oldest first."""
        return list(self._waiting)

    def note(self, observed: Sequence[Observed]) -> None:
        """Give each a number and the time, and keep it."""
        if not observed:
            return
        now = self._clock.now()
        for item in observed:
            self._last += 1
            self._waiting.append(
                HealthFact(
                    sequence=self._last,
                    code=item.code,
                    at=now,
                    device_uuid=item.device_uuid,
                    message=item.message[:MESSAGE_CHARS],
                    xid=item.xid,
                    count=item.count,
                    active=item.active,
                    gpu_instance_id=item.gpu_instance_id,
                )
            )
            log.info("health_fact", uuid=item.device_uuid, code=item.code.value, active=item.active, xid=item.xid)
        if len(self._waiting) > MAX_FACTS:
            self.dropped += len(self._waiting) - MAX_FACTS
            del self._waiting[:-MAX_FACTS]
        self._save()

    def received(self, facts: Sequence[HealthFact]) -> None:
        """The control plane has these."""
        if not facts:
            return
        upto = facts[-1].sequence
        self._waiting = [item for item in self._waiting if item.sequence > upto]
        self._save()

    def _save(self) -> None:
        kept = Kept(last=self._last, dropped=self.dropped, waiting=self._waiting)
        try:
            files.write_struct(self._path, kept)
        except OSError as exc:  # told all the same; after a restart a fact may be told twice or not at all
            log.warning("health_log_not_saved", error=str(exc))


def changes(before: Mapping[str, DeviceReport], after: Mapping[str, DeviceReport]) -> list[Observed]:
    """What happened between two scans of one node, by device. The first scan tells the conditions that hold already."""
    found: list[Observed] = []
    for uuid, now in after.items():
        found += _device(uuid, before.get(uuid), now)
    return found


def _device(uuid: str, before: DeviceReport | None, now: DeviceReport) -> Iterator[Observed]:
    yield from _presence(uuid, before, now)
    if now.problem:
        return  # what a dead device says, or does not say, is no further news
    yield from _ecc(uuid, before, now)
    yield from _flag(
        uuid, HealthCode.REMAP_PENDING, "a row is remapped at the next reset", "no row waits for a reset any more",
        bool(before and before.remap and before.remap.pending), bool(now.remap and now.remap.pending),
    )  # fmt: skip
    yield from _flag(
        uuid, HealthCode.REMAP_FAILED, "a row cannot be remapped: no spare row is left",
        "no row is left that could not be remapped",
        bool(before and before.remap and before.remap.failed), bool(now.remap and now.remap.failed),
    )  # fmt: skip
    for code, names, what, over in (
        (HealthCode.THERMAL, _THERMAL, "clocks are held down because the GPU is too hot",
         "the GPU is cool enough again"),
        (HealthCode.POWER, _POWER, "clocks are held down by the power supply",
         "clocks are not held down by the power supply any more"),
    ):  # fmt: skip
        was = bool(before and names & set(before.throttle))
        message = f"{what} ({', '.join(now.throttle)})"
        yield from _flag(uuid, code, message, over, was, bool(names & set(now.throttle)))
    yield from _recovery(uuid, before, now)
    yield from _links(uuid, before, now)


def _presence(uuid: str, before: DeviceReport | None, now: DeviceReport) -> Iterator[Observed]:
    was = before.problem if before else ""
    if now.problem and (not was or (now.problem == OFF_THE_BUS and was != OFF_THE_BUS)):
        yield Observed(code=HealthCode.LOST, device_uuid=uuid, message=now.problem)
    elif was.startswith(_AWAY) and not now.problem:
        yield Observed(code=HealthCode.RETURNED, device_uuid=uuid, message="the GPU answers again", active=False)
    elif was and not now.problem:  # it was there all the time: no proof that anybody has reset it
        yield Observed(code=HealthCode.LOST, device_uuid=uuid, message="the GPU can be read again", active=False)


def _ecc(uuid: str, before: DeviceReport | None, now: DeviceReport) -> Iterator[Observed]:
    old = before.ecc if before else None
    if now.ecc is None or old is None:
        return  # the counts themselves are in the report; only what is added while somebody looks is an event
    for code, was, count in (
        (HealthCode.ECC_UNCORRECTED, old.uncorrected_volatile, now.ecc.uncorrected_volatile),
        (HealthCode.ECC_CORRECTED, old.corrected_volatile, now.ecc.corrected_volatile),
    ):
        more = count - was
        if more > 0:
            word = "uncorrectable" if code is HealthCode.ECC_UNCORRECTED else "corrected"
            message = f"{more} more {word} memory errors, {count} since the driver was loaded"
            yield Observed(code=code, device_uuid=uuid, message=message, count=more)


def _flag(uuid: str, code: HealthCode, message: str, over: str, was: bool, now: bool) -> Iterator[Observed]:
    if now and not was:
        yield Observed(code=code, device_uuid=uuid, message=message)
    elif was and not now:
        yield Observed(code=code, device_uuid=uuid, message=over, active=False)


def _recovery(uuid: str, before: DeviceReport | None, now: DeviceReport) -> Iterator[Observed]:
    was = before.recovery_action if before else ""
    if now.recovery_action == was:
        return
    wanted = bool(now.recovery_action)
    message = f"the driver asks for: {now.recovery_action}" if wanted else "the driver asks for nothing more"
    yield Observed(code=HealthCode.RECOVERY_ACTION, device_uuid=uuid, message=message, active=wanted)


def _links(uuid: str, before: DeviceReport | None, now: DeviceReport) -> Iterator[Observed]:
    """NVLinks that went down, and fabric that turned unhealthy. Links that were never up are no news."""
    if now.nvlink is None or before is None or before.nvlink is None:
        return
    was, active = before.nvlink.active, now.nvlink.active
    if active < was:
        message = f"{was - active} of {now.nvlink.links} NVLinks went down"
        yield Observed(code=HealthCode.NVLINK, device_uuid=uuid, message=message, count=was - active)
    elif active > was and active == now.nvlink.links:
        yield Observed(code=HealthCode.NVLINK, device_uuid=uuid, message="all NVLinks are up", active=False)
    if before.nvlink.fabric_healthy and not now.nvlink.fabric_healthy:
        yield Observed(code=HealthCode.NVLINK, device_uuid=uuid, message="the NVLink fabric is unhealthy")
    elif now.nvlink.fabric_healthy and not before.nvlink.fabric_healthy and active >= was:
        yield Observed(code=HealthCode.NVLINK, device_uuid=uuid, message="the NVLink fabric is healthy", active=False)
