"""What a node is made of."""

import enum

import msgspec


class DeviceKind(enum.StrEnum):
    """What a device is. ``simulated`` devices are labelled wherever they are shown."""

    CUDA = "cuda"
    CPU = "cpu"
    SIMULATED = "simulated"


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One device, identified by UUID and by nothing else.

    A CPU counts as a device whose memory is the configured budget; its UUID is made once per node and kept.
    """

    uuid: str
    kind: DeviceKind
    product: str
    memory_bytes: int
    memory_used_bytes: int = 0
    compute_capability: str = ""
    driver_version: str = ""
    pci_bus_id: str = ""
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    problem: str = ""


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around the devices. ``cpu_used`` is a fraction of all CPUs over the last interval."""

    hostname: str
    os: str
    cpus: int
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int = 0
    cpu_used: float | None = None
