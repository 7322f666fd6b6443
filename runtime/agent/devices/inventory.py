"""All devices of the node in one list, whatever a driver does.

A driver can block inside a call for minutes. Each source is scanned in a thread of its own with a limit on how long
anyone waits; while a scan hangs, its devices are reported by their last facts with a problem, and no second scan is
started into the same driver.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from runtime.agent.devices.port import DeviceSource
from runtime.base import logs
from runtime.wire.devices import DeviceReport

log = logs.get(__name__)
SCAN_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0


class Inventory:
    """Scans every source; remembers the last good answer of each."""

    def __init__(self, sources: Sequence[DeviceSource], *, scan_seconds: float = SCAN_SECONDS) -> None:
        self._sources = list(sources)
        self._limit = scan_seconds
        self._last: dict[str, list[DeviceReport]] = {source.name: [] for source in sources}
        self._running: dict[str, asyncio.Future[list[DeviceReport]]] = {}

    async def scan(self) -> list[DeviceReport]:
        """Return the devices of all sources, each UUID once; never waits longer than the limit."""
        answers = await asyncio.gather(*(self._scan_one(source) for source in self._sources))
        devices = {report.uuid: report for answer in answers for report in answer}
        return list(devices.values())

    async def _scan_one(self, source: DeviceSource) -> list[DeviceReport]:
        running = self._running.get(source.name)
        if running is None or running.done():  # done: whoever waited for it was cancelled
            running = asyncio.ensure_future(asyncio.to_thread(source.scan))
            self._running[source.name] = running
        try:
            answer = await asyncio.wait_for(asyncio.shield(running), self._limit)
        except TimeoutError:
            log.warning("device_scan_hangs", source=source.name, seconds=self._limit)
            return self._stale(source, f"the driver did not answer within {self._limit:g} s")
        except Exception as exc:  # boundary: a source that breaks must not take the others with it; shown as a problem
            self._running.pop(source.name, None)
            log.warning("device_scan_failed", source=source.name, error=str(exc))
            return self._stale(source, f"the devices could not be read: {exc}")
        self._running.pop(source.name, None)  # another caller may have waited for the same scan
        self._last[source.name] = answer
        return answer

    async def close(self) -> bool:
        """Wait a little for scans under way; False when a driver still holds one of our threads."""
        pending = [running for running in self._running.values() if not running.done()]
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_SECONDS)
        return all(running.done() for running in pending)

    def _stale(self, source: DeviceSource, problem: str) -> list[DeviceReport]:
        return [msgspec.structs.replace(report, problem=problem) for report in self._last[source.name]]
