"""What a node says about itself, free of any wire format: dispatch translates into these."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One device of a report. Bytes, degrees Celsius, watts; ``problem`` is a sentence, "" when all is well."""

    uuid: str
    kind: str
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine around the devices; bytes."""

    hostname: str
    os: str
    cpus: int
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int
    cpu_used: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A whole report but its replicas. ``sequence`` rises within one ``agent_id``."""

    agent_version: str
    boot_id: str
    agent_id: str
    sequence: int
    data_address: str
    applied_generation: int
    host: HostFacts
    devices: tuple[DeviceFacts, ...]
    stored_sha256: frozenset[str]
