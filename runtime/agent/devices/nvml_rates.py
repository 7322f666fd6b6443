"""Figures that need two looks: bytes over PCIe and the use of memory bandwidth. Kept per UUID between scans."""

import ctypes
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from runtime.agent.devices.nvml_calls import Reader
from runtime.wire.devices import MigInstance

SAMPLE_GAP: Final = 0.1  # seconds that two GPM samples must lie apart
_TX_BYTES, _RX_BYTES = 197, 198  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES
_TX, _RX = 0, 1  # NVML_PCIE_UTIL_*
_DRAM_BW: Final = 10  # NVML_GPM_METRIC_DRAM_BW_UTIL, percent


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes per second in each direction; ``None`` until they are known."""

    tx: float | None = None
    rx: float | None = None


class Rates:
    """Keeps the last counters and samples of each device."""

    def __init__(self, binding: Any, monotonic: Callable[[], float]) -> None:
        self._nvml = binding
        self._monotonic = monotonic
        self._counters: dict[str, tuple[float, float, float]] = {}
        self._samples: dict[str, tuple[float, Any]] = {}
        self._without_gpm: set[str] = set()

    def pcie(self, reader: Reader, uuid: str) -> Moved:
        """By cumulative counters where the driver has them; the older call measures for 20 ms in each direction."""
        values = reader.fields("pcie", [_TX_BYTES, _RX_BYTES])
        if _TX_BYTES in values and _RX_BYTES in values:
            return self._between(uuid, values[_TX_BYTES], values[_RX_BYTES])
        tx = reader.get("pcie", "nvmlDeviceGetPcieThroughput", _TX)
        rx = reader.get("pcie", "nvmlDeviceGetPcieThroughput", _RX)
        return Moved(None if tx is None else tx * 1024.0, None if rx is None else rx * 1024.0)

    def _between(self, uuid: str, tx: float, rx: float) -> Moved:
        now = self._monotonic()
        before = self._counters.get(uuid)
        self._counters[uuid] = (now, tx, rx)
        if before is None or now <= before[0] or tx < before[1] or rx < before[2]:
            return Moved()  # the first look, or the counters began anew
        seconds = now - before[0]
        return Moved((tx - before[1]) / seconds, (rx - before[2]) / seconds)

    def hbm_bandwidth(self, reader: Reader, uuid: str, instance: MigInstance | None = None) -> float | None:
        """Fraction of the memory bandwidth used since the last scan, by GPM (Hopper and later); of one ``instance`` of
        a GPU that is cut, which tells none as a whole."""
        if uuid in self._without_gpm:
            return None
        support = reader.get("gpm", "nvmlGpmQueryDeviceSupport")
        if not support or not support.isSupportedDevice:
            if not reader.failed("gpm"):
                self._without_gpm.add(uuid)
            return None
        sample = self._sample(reader, instance)
        key = uuid if instance is None else instance.uuid
        before = self._samples.get(key)
        now = self._monotonic()
        if sample is None:
            return None
        if before is None:
            self._samples[key] = (now, sample)
            return None
        if now - before[0] < SAMPLE_GAP:
            self._free(sample)
            return None
        self._samples[key] = (now, sample)
        value = self._metric(before[1], sample)
        self._free(before[1])
        return value

    def forget_others(self, seen: Collection[str]) -> None:
        """Drop what belongs to devices that are gone."""
        for uuid in [uuid for uuid in self._samples if uuid not in seen]:
            self._free(self._samples.pop(uuid)[1])
        for uuid in [uuid for uuid in self._counters if uuid not in seen]:
            del self._counters[uuid]

    def _sample(self, reader: Reader, instance: MigInstance | None) -> Any:
        try:
            sample = self._nvml.nvmlGpmSampleAlloc()
        except self._nvml.NVMLError:
            return None
        if instance is None:
            got = reader.get("gpm", "nvmlGpmSampleGet", sample)
        else:
            got = reader.get("gpm", "nvmlGpmMigSampleGet", instance.gpu_instance_id, sample)
        if got is None:
            self._free(sample)
            return None
        return sample

    def _metric(self, first: Any, second: Any) -> float | None:
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = 1
        asked.sample1, asked.sample2 = first, second
        asked.metrics[0].metricId = _DRAM_BW
        try:
            self._nvml.nvmlGpmMetricsGet(asked)
        except self._nvml.NVMLError:
            return None
        metric = asked.metrics[0]
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return min(1.0, max(0.0, ctypes.c_double(metric.value).value / 100))

    def _free(self, sample: Any) -> None:
        try:
            self._nvml.nvmlGpmSampleFree(sample)
        except self._nvml.NVMLError:
            return  # the driver went away with it
