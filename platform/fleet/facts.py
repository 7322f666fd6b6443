"""What a node says about itself, free of any wire format: dispatch translates into these."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One device of a report. Bytes, degrees Celsius, watts; ``problem`` is a sentence, "" when all is well.

    A MIG instance has a ``parent_uuid`` and slices of it. ``more`` and ``readings`` are plain JSON that is kept as
    it is; see ``Device.facts`` and ``Device.readings``.
    """

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
    stand_in: bool = False
    parent_uuid: str = ""
    slice_start: int = 0
    slice_count: int = 0
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    readings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HealthFacts:
    """Something that happened to a device, or to the node where ``device_uuid`` is ""; ``at`` in Unix seconds.

    ``code`` is a word of :data:`fleet.faults.FACTS`, "xid" or "recovery_action". ``active`` false: it is over.
    """

    sequence: int
    code: str
    at: float
    device_uuid: str = ""
    message: str = ""
    xid: int = 0
    count: int = 0
    active: bool = True
    gpu_instance_id: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutFacts:
    """How far the layout of a device is on its node."""

    device_uuid: str
    generation: int
    phase: str
    message: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine around the devices; bytes. ``walls`` and ``more`` are plain JSON; see ``Node``."""

    hostname: str
    os: str
    cpus: int
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int
    cpu_used: float | None
    walls: tuple[Mapping[str, Any], ...] = ()
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
    health: tuple[HealthFacts, ...] = ()
    layouts: tuple[LayoutFacts, ...] = ()
    health_dropped: int = 0
    rank_address: str = ""
