"""Looking at a device's memory: the host's, and CUDA's."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Final

import psutil
import torch

from runtime.engine.causal.ledger import DeviceProbe

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
# A CUDA context with torch's kernels takes no more, where nobody can tell.
_USUAL_CONTEXT: Final = 1 << 30


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
    """Memory of one CUDA device (or MIG instance) as the driver and torch's allocator see it.

    ``cap_bytes`` is what this process may use of it (0: all). Others may use the rest: they count only as far as they
    take from what is promised here.
    """

    def __init__(self, device: torch.device, cap_bytes: int = 0) -> None:
        self._device = device
        self._cap = cap_bytes
        self._context = 0

    def held_bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self._device))

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[0])

    def unaccounted_bytes(self, accounted: int) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        taken = (self._cap or int(total)) - accounted - int(free)
        grown = self.held_bytes() + self._context - accounted
        return max(0, taken, grown)

    def give_back(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._device))

    def context_bytes(self) -> int:
        """What the driver took for this process's context, right after CUDA was initialised; others may be there."""
        free, total = torch.cuda.mem_get_info(self._device)
        used, held = int(total - free), self.held_bytes()
        known = _used_by_this_process(self._device)
        own = min(used, held + _USUAL_CONTEXT if known is None else known)
        self._context = max(0, own - held)
        return self._context

    def reachable_bytes(self) -> int:
        """What this process has and could have: inside its cap, and not in use by others now."""
        reachable = self.held_bytes() + self._context + self.free_bytes()
        return min(self._cap or reachable, reachable)


def _used_by_this_process(device: torch.device) -> int | None:
    """Bytes of the device that NVML books to this process; ``None`` where it cannot tell (MIG, process namespaces)."""
    try:
        import pynvml  # only here, and only where there is a driver
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except (OSError, AttributeError, pynvml.NVMLError):
        return None
    return next((int(one.usedGpuMemory) for one in found if one.pid == os.getpid() and one.usedGpuMemory), None)


def probe_for(device: torch.device, cap_bytes: int = 0) -> DeviceProbe:
    """The probe of ``device``, of which ``cap_bytes`` are ours."""
    return CudaProbe(device, cap_bytes) if device.type == "cuda" else HostProbe()


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
