"""What a node is made of."""

import enum
from typing import Final

import msgspec

#: The problem of a GPU whose driver says that it is lost: nothing on it runs any more. Other problems are not so sure.
OFF_THE_BUS: Final = "the GPU has fallen off the bus"


class DeviceKind(enum.StrEnum):
    """What a device is. ``simulated`` devices are labelled wherever they are shown."""

    CUDA = "cuda"
    CPU = "cpu"
    SIMULATED = "simulated"


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a GPU. ``memory_bytes`` is ``None`` where the driver does not tell.

    ``pid`` is the host's. ``replica_id`` names the replica it belongs to, "" when it is none of this node's.
    ``gpu_instance_id`` is ``None`` outside MIG.
    """

    pid: int
    memory_bytes: int | None = None
    name: str = ""
    replica_id: str = ""
    gpu_instance_id: int | None = None


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A shape that a GPU can be cut into, as its driver states it. ``id`` means different shapes on different products.

    ``starts`` are the legal first memory slices of an instance that is ``memory_slices`` long. ``media`` profiles hold
    the media engines: one such instance per GPU.
    """

    id: int
    name: str
    compute_slices: int
    memory_slices: int
    memory_bytes: int
    starts: list[int] = []
    max_instances: int = 0
    multiprocessors: int = 0
    media: bool = False


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device: a GPU instance with its compute instance. ``uuid`` ("MIG-…") lives as long as the instance.

    ``start`` and ``memory_slices`` say which memory slices of the GPU it occupies. ``uuid`` is "" for a GPU instance
    without a usable compute instance: it occupies slices and nothing can run on it. ``hbm_bandwidth_used`` is the
    fraction of the instance's own memory bandwidth, ``None`` where the device does not tell.
    """

    uuid: str
    gpu_instance_id: int
    profile_id: int
    profile: str = ""
    start: int = 0
    memory_slices: int = 0
    compute_slices: int = 0
    compute_instance_id: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    hbm_bandwidth_used: float | None = None


class MigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """MIG on a device that can do it. ``pending`` differs from ``enabled`` while a reset or reboot is outstanding."""

    enabled: bool = False
    pending: bool = False
    instances: list[MigInstance] = []
    profiles: list[MigProfile] = []


class DevicePath(msgspec.Struct, frozen=True, kw_only=True):
    """How a device reaches another one of its node, best link first known.

    ``pcie`` is the common ancestor as ``nvidia-smi topo -m`` names it: SAME, PIX, PXB, PHB, NODE or SYS ("" unknown).
    ``nvlinks`` counts the active NVLinks that lead there, directly or through switches.
    """

    uuid: str
    pcie: str = ""
    nvlinks: int = 0


class NvLinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """NVLink of one device. ``version`` is like "4.0"; ``switched`` when its links end in NVSwitches.

    ``fabric_state`` is "", not_started, in_progress or completed: on NVSwitch machines CUDA works only once it is
    completed. Devices with the same ``cluster_uuid`` and ``clique_id`` are one NVLink domain, across nodes too.
    """

    links: int = 0
    active: int = 0
    version: str = ""
    switched: bool = False
    fabric_state: str = ""
    fabric_healthy: bool = True
    cluster_uuid: str = ""
    clique_id: int = 0


class EccFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Memory errors. ``volatile`` counts since the driver was loaded, ``aggregate`` over the device's life."""

    enabled: bool = False
    pending: bool = False
    corrected_volatile: int = 0
    uncorrected_volatile: int = 0
    corrected_aggregate: int = 0
    uncorrected_aggregate: int = 0


class RemapFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Row remapping. ``pending``: takes effect at the next reset, running work is safe; ``failed``: no spare row."""

    corrected: int = 0
    uncorrected: int = 0
    pending: bool = False
    failed: bool = False


class ClockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks in MHz; ``None`` where the device does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_max_mhz: int | None = None


class PcieFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link; bytes per second between the last two looks, ``None`` until there were two."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    tx_bytes_per_second: float | None = None
    rx_bytes_per_second: float | None = None
    replays: int | None = None


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One device, identified by UUID and by nothing else.

    A CPU counts as a device whose memory is the configured budget; its UUID is made once per node and kept.
    ``utilization`` and ``hbm_bandwidth_used`` are fractions. ``throttle`` names why clocks are held down now
    (power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake). ``recovery_action`` is what the driver asks for:
    "", reset, reboot, drain_p2p, drain_and_reset, … A field that this device or driver does not support stays empty;
    what it supports and could not be read is named in ``unreadable`` ("power: GpuIsLost"). ``stand_in``: a simulated
    device on which this node runs stand-ins for engines.
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
    architecture: str = ""
    serial: str = ""
    numa_node: int | None = None
    memory_temperature_c: float | None = None
    hbm_bandwidth_used: float | None = None
    mig: MigFacts | None = None
    nvlink: NvLinkFacts | None = None
    paths: list[DevicePath] = []
    ecc: EccFacts | None = None
    remap: RemapFacts | None = None
    clocks: ClockFacts | None = None
    pcie: PcieFacts | None = None
    throttle: list[str] = []
    recovery_action: str = ""
    processes: list[GpuProcess] = []
    unreadable: list[str] = []
    stand_in: bool = False


class RdmaRail(msgspec.Struct, frozen=True, kw_only=True):
    """One port of an RDMA adapter (InfiniBand or RoCE)."""

    name: str  # "mlx5_0"
    port: int = 1
    link_layer: str = ""  # "InfiniBand" or "Ethernet"
    active: bool = False
    rate_gbps: float = 0.0
    numa_node: int | None = None
    pci_bus_id: str = ""
    interface: str = ""  # the network interface of a RoCE port


class Wall(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of isolation around an engine on this host: whether it is used, and in one sentence how or why not."""

    name: str  # process_group, folder, devices, token, user, no_new_privileges, limits, cgroup, network, mps
    used: bool
    detail: str = ""


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around the devices. ``cpu_used`` is a fraction of all CPUs over the last interval."""

    hostname: str
    os: str
    cpus: int
    memory_bytes: int
    memory_available_bytes: int
    disk_free_bytes: int = 0
    cpu_used: float | None = None
    numa_nodes: int = 0
    rails: list[RdmaRail] = []
    walls: list[Wall] = []


class HealthCode(enum.StrEnum):
    """What happened to a device, as observed. What follows from it is the control plane's decision."""

    XID = "xid"
    ECC_CORRECTED = "ecc_corrected"
    ECC_UNCORRECTED = "ecc_uncorrected"
    REMAP_PENDING = "remap_pending"
    REMAP_FAILED = "remap_failed"
    LOST = "lost"
    RETURNED = "returned"
    THERMAL = "thermal"
    POWER = "power"
    RECOVERY_ACTION = "recovery_action"
    NVLINK = "nvlink"
    DRIVER = "driver"


class HealthFact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a device, reported until a report with it was received.

    ``sequence`` rises by one per fact over the life of the node's state folder: what has been seen is not new.
    ``at`` is a Unix time in seconds. ``active`` false: the condition named by ``code`` is over. ``xid`` is the Xid of
    an ``xid`` fact (999: unknown to the driver), else 0. ``count`` is how many more errors there were.
    ``gpu_instance_id`` is set when the driver blames one MIG instance.
    """

    sequence: int
    code: HealthCode
    at: float
    device_uuid: str = ""
    message: str = ""
    xid: int = 0
    count: int = 0
    active: bool = True
    gpu_instance_id: int | None = None


class MigPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """One wanted GPU instance: a profile of the device at a first memory slice."""

    profile_id: int
    start: int


class MigLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU is to be cut. ``generation`` belongs to the device; without ``placements`` MIG is switched off."""

    device_uuid: str
    generation: int
    placements: list[MigPlacement] = []


class MigLayoutPhase(enum.StrEnum):
    """How far a layout is on its node."""

    APPLIED = "applied"
    WAITING = "waiting"  # the GPU is in use
    APPLYING = "applying"
    FAILED = "failed"  # what was there before is there again, unless the message says otherwise


class MigLayoutReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a layout. ``reason`` is PascalCase, ``message`` a sentence."""

    device_uuid: str
    generation: int
    phase: MigLayoutPhase
    reason: str = ""
    message: str = ""
