"""Looking at a device's memory: the host's, and CUDA's."""

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Final

import psutil
import torch

from runtime.engine.causal.ledger import DeviceProbe

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


class HostProbe:
    """Anonymous memory of this process: file pages can be dropped and read again, so they do not count."""

    def __init__(self) -> None:
        self._peak_base = 0

    def held_bytes(self) -> int:
        return _status_bytes("RssAnon") or psutil.Process().memory_info().rss

    def free_bytes(self) -> int:
        return int(psutil.virtual_memory().available)

    def unaccounted_bytes(self, accounted: int) -> int:
        return max(0, self.held_bytes() - accounted)

    def give_back(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it; others keep less
            ctypes.CDLL(None).malloc_trim(0)

    def start_peak(self) -> None:
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            self._peak_base = 0
            return
        # the kernel keeps the peak of all resident pages: what is file-backed now is taken off again
        self._peak_base = _status_bytes("VmRSS") - self.held_bytes()

    def peak_bytes(self) -> int:
        return max(self.held_bytes(), _status_bytes("VmHWM") - self._peak_base)


class CudaProbe:
    """Memory of one CUDA device (or MIG instance) as the driver and torch's allocator see it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def held_bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self._device))

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[0])

    def unaccounted_bytes(self, accounted: int) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, int(total - free) - accounted)

    def give_back(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device))

    def context_bytes(self) -> int:
        """What the driver took for this process's context, right after CUDA was initialised."""
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, int(total - free) - self.held_bytes())


def probe_for(device: torch.device) -> DeviceProbe:
    """The probe of ``device``."""
    return CudaProbe(device) if device.type == "cuda" else HostProbe()


def _status_bytes(field: str) -> int:
    """A ``kB`` field of this process's status; 0 where the system has none."""
    try:
        text = _STATUS.read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0
