"""Facts about the machine around the devices."""

import platform
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from runtime.agent.devices import sysfs
from runtime.wire.devices import HostReport, Wall


class Host:
    """Reads the host; ``cpu_used`` is the fraction of all CPUs in use between the last two reports.

    ``walls`` gives the isolation that is used here (set again once all of it is known); ``shown`` may replace facts (a
    simulated machine).
    """

    def __init__(
        self,
        folder: Path,
        *,
        walls: Callable[[], Sequence[Wall]] = list,
        sysfs_root: Path = sysfs.ROOT,
    ) -> None:
        self._folder = folder
        self.walls = walls
        self._sysfs = sysfs_root
        self.shown: Callable[[HostReport], HostReport] = lambda report: report
        self._times = psutil.cpu_times()
        self.cpu_used: float | None = None

    def report(self) -> HostReport:
        """Return the host now; takes well under a millisecond."""
        memory = psutil.virtual_memory()
        self._measure()
        report = HostReport(
            hostname=socket.gethostname(),
            os=f"{platform.system()} {platform.release()}",
            cpus=psutil.cpu_count() or 1,
            memory_bytes=memory.total,
            memory_available_bytes=memory.available,
            disk_free_bytes=psutil.disk_usage(str(self._folder)).free,
            cpu_used=self.cpu_used,
            numa_nodes=sysfs.numa_nodes(self._sysfs),
            rails=sysfs.rails(self._sysfs),
            walls=list(self.walls()),
        )
        return self.shown(report)

    def _measure(self) -> None:
        now = psutil.cpu_times()
        passed = sum(now) - sum(self._times)
        idle = now.idle - self._times.idle + getattr(now, "iowait", 0.0) - getattr(self._times, "iowait", 0.0)
        if passed > 0:
            self.cpu_used = round(min(1.0, max(0.0, 1 - idle / passed)), 4)
            self._times = now
