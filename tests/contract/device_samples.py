"""Samples of what a node is made of: devices, their layouts, links and health."""

from typing import Final

from runtime.wire import devices

DEVICE: Final = "GPU-6c1b2f7e-0000-1111-2222-333344445555"


MIG: Final = "MIG-6c1b2f7e-4444-5555-6666-777788889999"


LAYOUT: Final = devices.MigLayout(
    device_uuid=DEVICE, generation=3, placements=[devices.MigPlacement(profile_id=9, start=4)]
)


MIG_PROFILE: Final = devices.MigProfile(
    id=9,
    name="3g.71gb",
    compute_slices=3,
    memory_slices=4,
    memory_bytes=74_625_056_768,
    starts=[0, 4],
    max_instances=2,
    multiprocessors=60,
    media=True,
)


MIG_INSTANCE: Final = devices.MigInstance(
    uuid=MIG,
    gpu_instance_id=2,
    profile_id=9,
    profile="3g.71gb",
    start=4,
    memory_slices=4,
    compute_slices=3,
    compute_instance_id=1,
    memory_bytes=74_625_056_768,
    memory_used_bytes=1_000_000,
    hbm_bandwidth_used=0.25,
)


MIG_FACTS: Final = devices.MigFacts(enabled=True, pending=True, instances=[MIG_INSTANCE], profiles=[MIG_PROFILE])


PATH: Final = devices.DevicePath(uuid="GPU-other", pcie="NODE", nvlinks=18)


NVLINK: Final = devices.NvLinkFacts(
    links=18,
    active=17,
    version="4.0",
    switched=True,
    fabric_state="completed",
    fabric_healthy=False,
    cluster_uuid="cluster",
    clique_id=7,
)


ECC: Final = devices.EccFacts(
    enabled=True,
    pending=True,
    corrected_volatile=1,
    uncorrected_volatile=2,
    corrected_aggregate=3,
    uncorrected_aggregate=4,
)


REMAP: Final = devices.RemapFacts(corrected=1, uncorrected=2, pending=True, failed=True)


CLOCKS: Final = devices.ClockFacts(sm_mhz=1_980, memory_mhz=3_201, sm_max_mhz=1_981, memory_max_mhz=3_202)


PCIE: Final = devices.PcieFacts(
    generation=4,
    width=8,
    max_generation=5,
    max_width=16,
    tx_bytes_per_second=1_000.5,
    rx_bytes_per_second=2_000.5,
    replays=3,
)


REPLICA: Final = "01970000-0000-7000-8000-000000000007"
PROCESS: Final = devices.GpuProcess(
    pid=4711, memory_bytes=17_000_000_000, name="python3", replica_id=REPLICA, gpu_instance_id=2
)


RAIL: Final = devices.RdmaRail(
    name="mlx5_3",
    port=2,
    link_layer="InfiniBand",
    active=True,
    rate_gbps=400.0,
    numa_node=1,
    pci_bus_id="0000:5e:00.0",
    interface="ens3np0",
)


WALL: Final = devices.Wall(name="cgroup", used=True, detail="memory, cpu and pids are limited")


HEALTH: Final = devices.HealthFact(
    sequence=17,
    code=devices.HealthCode.XID,
    at=1_764_000_000.5,
    device_uuid=DEVICE,
    message="Xid 94: contained memory error",
    xid=94,
    count=2,
    active=False,
    gpu_instance_id=2,
)


LAYOUT_REPORT: Final = devices.MigLayoutReport(
    device_uuid=DEVICE,
    generation=3,
    phase=devices.MigLayoutPhase.WAITING,
    reason="DeviceInUse",
    message="two processes use the GPU",
)


DEVICE_REPORT: Final = devices.DeviceReport(
    uuid=DEVICE,
    kind=devices.DeviceKind.CUDA,
    product="NVIDIA H200",
    memory_bytes=150_000_000_000,
    memory_used_bytes=1_000_000,
    compute_capability="9.0",
    driver_version="580.95.05",
    pci_bus_id="0000:1b:00.0",
    utilization=0.5,
    temperature_c=41.0,
    power_w=120.5,
    power_limit_w=700.0,
    problem="one sentence",
    architecture="hopper",
    serial="1650000000000",
    numa_node=1,
    memory_temperature_c=55.0,
    hbm_bandwidth_used=0.625,
    mig=MIG_FACTS,
    nvlink=NVLINK,
    paths=[PATH],
    ecc=ECC,
    remap=REMAP,
    clocks=CLOCKS,
    pcie=PCIE,
    throttle=["hw_thermal"],
    recovery_action="reset",
    processes=[PROCESS],
    unreadable=["power: Unknown"],
    stand_in=True,
)


HOST: Final = devices.HostReport(
    hostname="mill-1",
    os="Debian GNU/Linux 12",
    cpus=16,
    memory_bytes=137_438_953_472,
    memory_available_bytes=100_000_000_000,
    disk_free_bytes=50_000_000_000,
    cpu_used=0.25,
    numa_nodes=2,
    rails=[RAIL],
    walls=[WALL],
)
