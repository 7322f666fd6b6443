"""Groups of facts about one GPU, each read by itself so that one that fails leaves the others. Units are the wire's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from runtime.agent.devices.nvml_calls import Reader
from runtime.agent.devices.nvml_rates import Moved
from runtime.wire.devices import ClockFacts, EccFacts, GpuProcess, PcieFacts, RemapFacts

MAX_UNREADABLE: Final = 16
MAX_PROCESSES: Final = 64
_NO_INSTANCE: Final = 0xFFFFFFFF
_MEMORY_TEMP: Final = 82  # NVML_FI_DEV_MEMORY_TEMP
_RECOVERY: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RECOVERY_ACTIONS: Final = {
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex",
    6: "bus_reset",
    7: "system_reboot",
}
_ARCHITECTURES: Final = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing",
    7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin",
}  # fmt: skip
# Bits that hold clocks down against the load; idle, application clocks and display settings are no throttling.
THROTTLE_BITS: Final = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}


def memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """(bytes that processes may get, bytes they have); the driver's reserve counts as neither."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return info.total - info.reserved, info.used
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, nvml.NVMLError_ArgumentVersionMismatch):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)  # drivers before the second version of this call
        return info.total, info.used


def pci_bus_id(reader: Reader) -> str:
    """Like ``00000000:1A:00.0``; "" when it cannot be read."""
    pci = reader.get("pci", "nvmlDeviceGetPciInfo")
    return str(pci.busId) if pci else ""


def identity(reader: Reader) -> dict[str, Any]:
    """What never changes while the device is there."""
    capability = reader.get("compute_capability", "nvmlDeviceGetCudaComputeCapability")
    architecture = reader.get("architecture", "nvmlDeviceGetArchitecture")
    return {
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "architecture": _ARCHITECTURES.get(architecture, "") if architecture else "",
        "serial": reader.get("serial", "nvmlDeviceGetSerial") or "",
    }


def numbers(reader: Reader) -> dict[str, Any]:
    """Utilization, temperatures, power, and what the driver asks for."""
    rates = reader.get("utilization", "nvmlDeviceGetUtilizationRates")
    power = reader.get("power", "nvmlDeviceGetPowerUsage")
    limit = reader.get("power_limit", "nvmlDeviceGetEnforcedPowerLimit")
    memory_temperature = reader.fields("memory_temperature", [_MEMORY_TEMP]).get(_MEMORY_TEMP)
    recovery = reader.fields("recovery_action", [_RECOVERY]).get(_RECOVERY, 0)
    return {
        "utilization": rates.gpu / 100 if rates else None,
        "temperature_c": _temperature(reader),
        "memory_temperature_c": float(memory_temperature) if memory_temperature else None,  # 0: no such sensor
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "recovery_action": RECOVERY_ACTIONS.get(int(recovery), ""),
    }


def _temperature(reader: Reader) -> float | None:
    sensor = reader.nvml.NVML_TEMPERATURE_GPU
    value = reader.get("temperature", "nvmlDeviceGetTemperatureV", sensor)
    if value is None:  # drivers before the versioned call
        value = reader.get("temperature", "nvmlDeviceGetTemperature", sensor)
    return None if value is None else float(value)


def clocks(reader: Reader) -> ClockFacts | None:
    """Current and highest clocks."""
    sm, memory_clock = reader.nvml.NVML_CLOCK_SM, reader.nvml.NVML_CLOCK_MEM
    facts = ClockFacts(
        sm_mhz=reader.get("clocks", "nvmlDeviceGetClockInfo", sm),
        memory_mhz=reader.get("clocks", "nvmlDeviceGetClockInfo", memory_clock),
        sm_max_mhz=reader.get("clocks", "nvmlDeviceGetMaxClockInfo", sm),
        memory_max_mhz=reader.get("clocks", "nvmlDeviceGetMaxClockInfo", memory_clock),
    )
    return None if facts == ClockFacts() else facts


def throttle(reader: Reader) -> list[str]:
    """Why clocks are held down now."""
    mask = reader.get("throttle", "nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:  # the name before driver 535
        mask = reader.get("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return [name for bit, name in THROTTLE_BITS.items() if (mask or 0) & bit]


def pcie(reader: Reader, moved: Moved) -> PcieFacts | None:
    """The link, and what was moved since the last look."""
    facts = PcieFacts(
        generation=reader.get("pcie", "nvmlDeviceGetCurrPcieLinkGeneration"),
        width=reader.get("pcie", "nvmlDeviceGetCurrPcieLinkWidth"),
        max_generation=reader.get("pcie", "nvmlDeviceGetMaxPcieLinkGeneration"),
        max_width=reader.get("pcie", "nvmlDeviceGetMaxPcieLinkWidth"),
        tx_bytes_per_second=moved.tx,
        rx_bytes_per_second=moved.rx,
        replays=reader.get("pcie", "nvmlDeviceGetPcieReplayCounter"),
    )
    return None if facts == PcieFacts() else facts


def ecc(reader: Reader) -> EccFacts | None:
    """Error counts; ``None`` on devices without ECC."""
    mode = reader.get("ecc", "nvmlDeviceGetEccMode")
    if mode is None:
        return None
    nvml = reader.nvml
    corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile, aggregate = nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC

    def count(kind: int, counter: int) -> int:
        return reader.get("ecc", "nvmlDeviceGetTotalEccErrors", kind, counter) or 0

    facts = EccFacts(
        enabled=bool(mode[0]),
        pending=bool(mode[1]),
        corrected_volatile=count(corrected, volatile),
        uncorrected_volatile=count(uncorrected, volatile),
        corrected_aggregate=count(corrected, aggregate),
        uncorrected_aggregate=count(uncorrected, aggregate),
    )
    return None if reader.failed("ecc") else facts  # a count that is not known is not 0: the next one would be news


def remap(reader: Reader) -> RemapFacts | None:
    """Row remapping; ``None`` before Ampere and while MIG instances are active."""
    rows = reader.get("remap", "nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    return RemapFacts(corrected=rows[0], uncorrected=rows[1], pending=bool(rows[2]), failed=bool(rows[3]))


def processes(reader: Reader, instances: Sequence[Any]) -> list[GpuProcess]:
    """Who holds memory: plain clients, MPS clients, and the clients of each MIG instance; each pid once."""
    found: dict[tuple[int, int | None], GpuProcess] = {}
    readers = [reader, *(reader.of(handle) for handle in instances)]
    for one in readers:
        for call in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
            for item in one.get("processes", call) or ():
                instance = getattr(item, "gpuInstanceId", _NO_INSTANCE)
                instance = None if instance in (None, _NO_INSTANCE) else int(instance)
                found[item.pid, instance] = GpuProcess(
                    pid=item.pid, memory_bytes=item.usedGpuMemory, name=_name(item.pid), gpu_instance_id=instance
                )
    return list(found.values())[:MAX_PROCESSES]


def _name(pid: int) -> str:
    """The program's short name: its arguments may hold what is nobody's business."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
