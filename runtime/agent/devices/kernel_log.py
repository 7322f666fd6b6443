"""Xids from the kernel's log: the second source, for devices whose events NVML does not deliver.

The kernel writes ``NVRM: Xid (PCI:0000:1a:00): 79, pid=…`` with a bus id that lacks the function. Reading needs the
right to (root, usually); without it nothing is heard here, which the log says once.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.agent.devices.port import Observed
from runtime.base import logs
from runtime.wire.devices import HealthCode

log = logs.get(__name__)
KMSG: Final = Path("/dev/kmsg")
MAX_RECORDS: Final = 1024  # read in one go
RECORD_BYTES: Final = 8192
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


class KernelLog:
    """``uuid_at`` gives the device at a bus id, "" when it is not known; ``heard`` whether NVML tells of the device."""

    def __init__(self, *, uuid_at: Callable[[str], str], heard: Callable[[str], bool], path: Path = KMSG) -> None:
        self._uuid_at = uuid_at
        self._heard = heard
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)  # only what happens from now on
        except OSError as exc:
            log.info("kernel_log_unavailable", error=str(exc))

    def take(self) -> list[Observed]:
        found: list[Observed] = []
        for text in self._records():
            for bus, number in _XID.findall(text):
                uuid = self._uuid_at(place(bus))
                if uuid and not self._heard(uuid):
                    message = f"the kernel's log has Xid {number} of this GPU"
                    found.append(Observed(code=HealthCode.XID, device_uuid=uuid, xid=int(number), message=message))
        return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _records(self) -> list[str]:
        """What was written since the last look; each read of the device is one record."""
        found: list[str] = []
        for _ in range(MAX_RECORDS if self._fd >= 0 else 0):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as exc:  # EPIPE: records were overwritten before they were read
                log.debug("kernel_log_gap", error=str(exc))
                continue
            if not data:
                break
            found.append(data.decode(errors="replace"))
        return found


def place(bus_id: str) -> str:
    """Comparable form of a bus id with or without function: ``0000:1a:00``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"
