"""NVIDIA GPUs through NVML (``nvidia-ml-py``, imported as ``pynvml``).

Handles are ctypes pointers that neither compare nor hash, and indices move between boots: everything here is keyed by
UUID, and a handle lives no longer than one scan. A call that fails on one device must not hide the others: identity
failures leave that device out (or keep it by its last known facts, with a problem), telemetry failures leave a field
empty and are named in ``unreadable``.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml

from runtime.agent.devices import kernel_log, nvml_facts, nvml_links, sysfs
from runtime.agent.devices.nvml_calls import Reader
from runtime.agent.devices.nvml_links import Links
from runtime.agent.devices.nvml_mig import MigReader
from runtime.agent.devices.nvml_rates import Rates
from runtime.agent.devices.port import UNLISTED, UNOPENED, Observed
from runtime.base import logs
from runtime.wire.devices import OFF_THE_BUS, DeviceKind, DeviceReport, HealthCode, MigInstance

log = logs.get(__name__)
REOPEN_SECONDS: Final = 10.0
#: Facts that something is decided by, by the label of the calls that read them: while those fail, what the driver told
#: last still stands. A condition that cannot be seen is not over, and a GPU that does not tell its name has kept it.
_STANDING: Final = {
    "product": ("product",),
    "serial": ("serial",),
    "architecture": ("architecture",),
    "compute_capability": ("compute_capability",),
    "pci": ("pci_bus_id", "numa_node"),
    "nvlink": ("nvlink",),
    "fabric": ("nvlink",),
    "ecc": ("ecc",),
    "remap": ("remap",),
    "throttle": ("throttle",),
    "recovery_action": ("recovery_action",),
}
MAX_DEVICES: Final = 64
_DRIVER: Final = "the NVIDIA driver does not answer"


class NvmlSource:
    """Every GPU of the driver. Call :meth:`open` first; ``scan`` may block as long as the driver does.

    ``sysfs_root`` is where the kernel shows its devices; ``monotonic`` gives seconds.
    """

    name = "nvml"

    def __init__(
        self,
        binding: Any = pynvml,
        *,
        sysfs_root: Path = sysfs.ROOT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = binding
        self._sysfs = sysfs_root
        self._monotonic = monotonic
        self._opened_at: float | None = None
        self._ready = False
        self._failure = 0  # why the last opening failed, as NVML's code
        self._known: dict[str, DeviceReport] = {}
        self._warned: set[str] = set()
        self._events: list[Observed] = []
        self._links = Links(binding)
        self._mig = MigReader(binding)
        self._rates = Rates(binding, monotonic)

    def open(self) -> bool:
        """Initialise the library; False where there is no driver library at all: then there is nothing to watch.

        A driver that is there and does not start is tried again by later scans, and said in :meth:`take`.
        """
        try:
            self._init()
        except self._nvml.NVMLError_LibraryNotFound:
            log.info("nvml_unavailable")
            return False
        except self._nvml.NVMLError as exc:
            self._driver_fault(exc)
        return True

    def close(self) -> None:
        """Give the library back."""
        if self._ready:
            self._ready = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as exc:
                log.warning("nvml_shutdown_failed", error=str(exc))

    def take(self) -> list[Observed]:
        """What happened to the driver as a whole since the last call."""
        taken, self._events = self._events, []
        return taken

    def uuid_at(self, place: str) -> str:
        """UUID of the GPU at this place on the bus (see :func:`kernel_log.place`), "" when none was seen there."""
        known = list(self._known.values())  # a scan may go on in its thread
        return next((one.uuid for one in known if one.pci_bus_id and kernel_log.place(one.pci_bus_id) == place), "")

    def scan(self) -> list[DeviceReport]:
        try:
            count = min(self._count(), MAX_DEVICES)
        except self._nvml.NVMLError as exc:
            return self._missing(set(), self._driver_fault(exc))
        self._warned = {key for key in self._warned if not key.startswith(_DRIVER)}
        driver = Reader(self._nvml, None).get("driver_version", "nvmlSystemGetDriverVersion") or ""
        handles: dict[str, Any] = {}
        lost = UNLISTED
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                handles[self._nvml.nvmlDeviceGetUUID(handle)] = handle
            except (self._nvml.NVMLError, UnicodeDecodeError) as exc:
                lost = f"{UNOPENED}: {exc}"
                self._unopened(index, exc)
        seen = {uuid: self._describe(handle, uuid, driver) for uuid, handle in handles.items()}
        paths = self._links.paths(handles, {uuid: report.pci_bus_id for uuid, report in seen.items()})
        seen = {uuid: msgspec.structs.replace(item, paths=paths.get(uuid, [])) for uuid, item in seen.items()}
        parts = {each.uuid for report in seen.values() if report.mig for each in report.mig.instances}
        self._rates.forget_others(seen.keys() | parts)
        self._known.update(seen)
        return list(seen.values()) + [self._off_the_bus(report) for report in self._missing(set(seen), lost)]

    # Opening

    def _init(self) -> None:
        self._opened_at = self._monotonic()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as exc:
            self._failure = exc.value
            raise
        self._ready = True

    def _count(self) -> int:
        if not self._ready:
            if self._opened_at is not None and self._monotonic() - self._opened_at < REOPEN_SECONDS:
                raise self._nvml.NVMLError(self._failure)
            self._init()
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except (self._nvml.NVMLError_Uninitialized, self._nvml.NVMLError_DriverNotLoaded):
            self._ready = False  # the driver was unloaded beneath us: open it again, now or later
            self._init()
            return int(self._nvml.nvmlDeviceGetCount())

    def _driver_fault(self, exc: Exception) -> str:
        """Tell it once; returns the sentence."""
        message = f"{_DRIVER}: {exc}"
        self._say(message, Observed(code=HealthCode.DRIVER, message=message))
        return message

    def _unopened(self, index: int, exc: Exception) -> None:
        """A GPU that cannot be opened. One known from before is told by its UUID when it goes missing."""
        if not self._known:
            message = f"the GPU at index {index} cannot be opened: {exc}"
            self._say(f"{index} {exc}", Observed(code=HealthCode.LOST, message=message))
        log.debug("gpu_unreadable", index=index, error=str(exc))

    def _say(self, key: str, event: Observed) -> None:
        """Once per condition: it is the same fault until it has another text."""
        if key not in self._warned and len(self._warned) < 256:
            self._warned.add(key)
            self._events.append(event)
            log.warning("nvml_fault", message=event.message)

    def _missing(self, seen: set[str], problem: str) -> list[DeviceReport]:
        """Devices known from earlier scans that did not answer this time."""
        return [
            msgspec.structs.replace(report, problem=problem) for uuid, report in self._known.items() if uuid not in seen
        ]

    def _off_the_bus(self, report: DeviceReport) -> DeviceReport:
        """A missing device; asked for by its place, the driver says of one that fell off the bus that it did."""
        try:
            self._nvml.nvmlDeviceGetHandleByPciBusId(report.pci_bus_id)
        except self._nvml.NVMLError_GpuIsLost:
            return msgspec.structs.replace(report, problem=OFF_THE_BUS)
        except self._nvml.NVMLError as exc:
            log.debug("gpu_missing", uuid=report.uuid, error=str(exc))
        return report

    # One device

    def _describe(self, handle: Any, uuid: str, driver: str) -> DeviceReport:
        reader = Reader(self._nvml, handle)
        known = self._known.get(uuid)
        problem = ""
        total, used = 0, 0
        try:
            total, used = nvml_facts.memory(self._nvml, handle)
        except self._nvml.NVMLError as exc:
            lost = isinstance(exc, self._nvml.NVMLError_GpuIsLost)
            problem = OFF_THE_BUS if lost else f"memory cannot be read: {exc}"
            total = known.memory_bytes if known else 0
            reader.reset_required = isinstance(exc, self._nvml.NVMLError_ResetRequired)
        mig = self._mig.read(reader, uuid, driver)
        if known is not None and reader.failed("mig"):
            mig = known.mig
        if mig is not None:
            mig = msgspec.structs.replace(mig, instances=[self._busy(reader, uuid, each) for each in mig.instances])
        bus = nvml_facts.pci_bus_id(reader)
        numbers = nvml_facts.numbers(reader)
        moved = self._rates.pcie(reader, uuid)
        report = DeviceReport(
            uuid=uuid,
            kind=DeviceKind.CUDA,
            product=reader.get("product", "nvmlDeviceGetName") or "NVIDIA GPU",
            memory_bytes=total,
            memory_used_bytes=used,
            driver_version=driver,
            pci_bus_id=bus,
            problem=problem,
            numa_node=sysfs.numa_node(bus, self._sysfs),
            hbm_bandwidth_used=None if mig and mig.enabled else self._rates.hbm_bandwidth(reader, uuid),
            mig=mig,
            nvlink=self._links.facts(reader),
            ecc=nvml_facts.ecc(reader),
            remap=nvml_facts.remap(reader),
            clocks=nvml_facts.clocks(reader),
            pcie=nvml_facts.pcie(reader, moved),
            throttle=nvml_facts.throttle(reader),
            processes=nvml_facts.processes(reader, self._mig.handles(reader) if mig else []),
            **nvml_facts.identity(reader),
            **numbers,
        )
        if not problem and (waits := nvml_links.not_started(report.nvlink)):
            report = msgspec.structs.replace(report, problem=waits)
        stands = self._standing(reader, report, known)
        if reader.reset_required and not report.recovery_action:
            stands["recovery_action"] = "reset"
        return msgspec.structs.replace(report, unreadable=reader.unreadable[: nvml_facts.MAX_UNREADABLE], **stands)

    def _busy(self, reader: Reader, uuid: str, instance: MigInstance) -> MigInstance:
        used = self._rates.hbm_bandwidth(reader, uuid, instance) if instance.uuid else None
        return msgspec.structs.replace(instance, hbm_bandwidth_used=used)

    def _standing(self, reader: Reader, report: DeviceReport, known: DeviceReport | None) -> dict[str, Any]:
        """What was told last in place of what cannot be read now."""
        if known is None:
            return {}
        names = {name for label, each in _STANDING.items() if reader.failed(label) for name in each}
        if report.remap is None:  # a GPU that is cut tells nothing of its rows
            names.add("remap")
        return {name: getattr(known, name) for name in names}
