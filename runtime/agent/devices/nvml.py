"""NVIDIA GPUs through NVML (``nvidia-ml-py``, imported as ``pynvml``).

Handles are ctypes pointers that neither compare nor hash, and indices move between boots: everything here is keyed by
UUID, and a handle lives no longer than one scan. A call that fails on one device must not hide the others: identity
failures leave that device out (or keep it by its last known facts, with a problem), telemetry failures leave a field
empty.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml

from runtime.base import logs
from runtime.wire.devices import DeviceKind, DeviceReport

log = logs.get(__name__)
T = TypeVar("T")


class NvmlSource:
    """Every GPU of the driver. Call :meth:`open` first; ``scan`` may block as long as the driver does."""

    name = "nvml"

    def __init__(self, binding: Any = pynvml) -> None:
        self._nvml = binding
        self._known: dict[str, DeviceReport] = {}
        self._warned: set[str] = set()

    def open(self) -> bool:
        """Initialise the library; False where no driver is present or it does not start (which is logged)."""
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as exc:
            log.info("nvml_unavailable", error=str(exc))
            return False
        return True

    def close(self) -> None:
        """Give the library back."""
        self._try(self._nvml.nvmlShutdown)

    def scan(self) -> list[DeviceReport]:
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as exc:
            return self._missing(set(), f"the NVIDIA driver does not answer: {exc}")
        driver = self._try(self._nvml.nvmlSystemGetDriverVersion) or ""
        seen: dict[str, DeviceReport] = {}
        lost = "the driver no longer lists this GPU"
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
            except self._nvml.NVMLError as exc:
                lost = f"the driver cannot open this GPU: {exc}"
                self._warn_once(f"open-{index}-{exc}", "gpu_unreadable", index=index, error=str(exc))
                continue
            seen[uuid] = self._describe(handle, uuid, driver)
        self._known.update(seen)
        return list(seen.values()) + self._missing(set(seen), lost)

    def _missing(self, seen: set[str], problem: str) -> list[DeviceReport]:
        """Devices known from earlier scans that did not answer this time."""
        return [
            msgspec.structs.replace(report, problem=problem) for uuid, report in self._known.items() if uuid not in seen
        ]

    def _describe(self, handle: Any, uuid: str, driver: str) -> DeviceReport:
        nvml = self._nvml
        problem = ""
        total, used = 0, 0
        try:
            total, used = self._memory(handle)
        except nvml.NVMLError as exc:
            problem = f"memory cannot be read: {exc}"
            known = self._known.get(uuid)
            total = known.memory_bytes if known else 0
        capability = self._try(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        pci = self._try(nvml.nvmlDeviceGetPciInfo, handle)
        rates = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = self._try(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._try(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        temperature = self._try(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return DeviceReport(
            uuid=uuid,
            kind=DeviceKind.CUDA,
            product=self._try(nvml.nvmlDeviceGetName, handle) or "NVIDIA GPU",
            memory_bytes=total,
            memory_used_bytes=used,
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
            driver_version=driver,
            pci_bus_id=pci.busId if pci else "",
            utilization=rates.gpu / 100 if rates else None,
            temperature_c=None if temperature is None else float(temperature),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            problem=problem,
        )

    def _memory(self, handle: Any) -> tuple[int, int]:
        """(bytes that processes may get, bytes they have); the driver's reserve counts as neither."""
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
            return info.total - info.reserved, info.used
        except (self._nvml.NVMLError_FunctionNotFound, self._nvml.NVMLError_NotSupported):
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before the second version of this call
            return info.total, info.used

    def _try(self, call: Callable[..., T], *args: Any) -> T | None:
        """Result of ``call``, or ``None`` where this device or driver does not support it."""
        try:
            return call(*args)
        except self._nvml.NVMLError as exc:
            name = getattr(call, "__name__", "call")
            self._warn_once(f"{name}-{exc}", "nvml_call_failed", call=name, error=str(exc))
            return None

    def _warn_once(self, key: str, event: str, **fields: Any) -> None:
        if key not in self._warned and len(self._warned) < 256:
            self._warned.add(key)
            log.warning(event, **fields)
