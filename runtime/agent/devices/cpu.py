"""The CPU as a device: its memory is a budget that the operator grants."""

import platform
from collections.abc import Callable
from pathlib import Path

from runtime.wire.devices import DeviceKind, DeviceReport


class CpuSource:
    """One device. ``used`` gives the resident bytes of the engines on it, ``load`` the fraction of CPU in use."""

    name = "cpu"

    def __init__(
        self,
        uuid: str,
        budget_bytes: int,
        *,
        used: Callable[[], int] = lambda: 0,
        load: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._uuid = uuid
        self._budget = budget_bytes
        self._used = used
        self._load = load
        self._product = _product()

    def scan(self) -> list[DeviceReport]:
        return [
            DeviceReport(
                uuid=self._uuid,
                kind=DeviceKind.CPU,
                product=self._product,
                memory_bytes=self._budget,
                memory_used_bytes=self._used(),
                utilization=self._load(),
            )
        ]


def _product() -> str:
    """The processor's name as the kernel gives it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or platform.machine()
    except OSError:
        pass  # no /proc on this system
    return platform.processor() or platform.machine()
