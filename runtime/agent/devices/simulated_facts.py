"""A described device as it is reported: pure, from the description and from how MIG has cut it."""

from typing import Final

import msgspec

from runtime.agent.devices.description import Gpu, Machine
from runtime.wire.devices import (
    OFF_THE_BUS,
    ClockFacts,
    DeviceKind,
    DevicePath,
    DeviceReport,
    EccFacts,
    GpuProcess,
    MigFacts,
    MigInstance,
    MigProfile,
    NvLinkFacts,
    PcieFacts,
    RemapFacts,
)

MIB: Final = 1024 * 1024
_RECOVERY: Final = ("", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex", "bus_reset", "system_reboot")


class Cut(msgspec.Struct, kw_only=True):
    """How one simulated GPU is cut: GPU instance number to (profile id, first slice, MIG UUID)."""

    enabled: bool = False
    instances: dict[int, tuple[int, int, str]] = {}


class Cuts(msgspec.Struct, kw_only=True):
    """All of them, by device UUID."""

    devices: dict[str, Cut] = {}


def report(machine: Machine, gpu: Gpu, cut: Cut, *, stand_in: bool) -> DeviceReport:
    """One described device as the wire has it."""
    dead = gpu.lost
    load = gpu.utilization / 100
    power = gpu.power_w
    if power is None:
        power = gpu.idle_power_w + load * (gpu.power_limit_w - gpu.idle_power_w)
    return DeviceReport(
        uuid=gpu.uuid,
        kind=DeviceKind.SIMULATED,
        product=gpu.name,
        memory_bytes=(gpu.memory_mib - gpu.reserved_mib) * MIB,
        memory_used_bytes=gpu.used_mib * MIB,
        compute_capability=gpu.compute_capability,
        driver_version=machine.driver.version,
        pci_bus_id=gpu.pci_bus_id,
        utilization=None if dead or cut.enabled else load,
        temperature_c=None if dead else gpu.temperature_c,
        power_w=None if dead else round(power, 1),
        power_limit_w=gpu.power_limit_w or None,
        problem=gpu.problem or (OFF_THE_BUS if dead else ""),
        architecture=gpu.architecture,
        serial=gpu.serial,
        numa_node=gpu.numa_node,
        memory_temperature_c=None if dead else gpu.memory_temperature_c,
        hbm_bandwidth_used=gpu.hbm_bandwidth / 100 if gpu.gpm and not dead and not cut.enabled else None,
        mig=mig_facts(gpu, cut),
        nvlink=_nvlink(machine, gpu),
        paths=paths(machine, gpu),
        ecc=_ecc(gpu),
        remap=None if cut.enabled else _remap(gpu),
        clocks=ClockFacts(**msgspec.structs.asdict(gpu.clocks)) if gpu.clocks and not dead else None,
        pcie=_pcie(gpu),
        throttle=[] if dead else gpu.throttle,
        recovery_action=_RECOVERY[gpu.recovery_action] if gpu.recovery_action < len(_RECOVERY) else "",
        processes=[
            GpuProcess(pid=one.pid, memory_bytes=None if one.mib is None else one.mib * MIB, name=one.name)
            for one in gpu.processes
        ],
        stand_in=stand_in,
    )


def mig_facts(gpu: Gpu, cut: Cut) -> MigFacts | None:
    """MIG of a described GPU that is cut as ``cut`` says."""
    if gpu.mig is None:
        return None
    rows = {row.id: row for row in gpu.mig.profiles}
    return MigFacts(
        enabled=cut.enabled,
        pending=cut.enabled,
        instances=[
            MigInstance(
                uuid=uuid,
                gpu_instance_id=number,
                profile_id=profile,
                profile=rows[profile].name,
                start=start,
                memory_slices=rows[profile].memory,
                compute_slices=rows[profile].compute,
                memory_bytes=rows[profile].mib * MIB,
                hbm_bandwidth_used=gpu.hbm_bandwidth / 100 if gpu.gpm and not gpu.lost else None,
            )
            for number, (profile, start, uuid) in sorted(cut.instances.items())
            if profile in rows
        ],
        profiles=[
            MigProfile(
                id=row.id,
                name=row.name,
                compute_slices=row.compute,
                memory_slices=row.memory,
                memory_bytes=row.mib * MIB,
                starts=row.starts,
                max_instances=row.max,
                multiprocessors=row.sm,
                media=row.media,
            )
            for row in gpu.mig.profiles
        ],
    )


def paths(machine: Machine, gpu: Gpu) -> list[DevicePath]:
    """From ``gpu`` to the others: switches join all that have links, bridges some; plain PCIe knows its processor."""
    active, joined = _active(gpu), {other.uuid for other in machine.joined(gpu)}
    return [
        DevicePath(
            uuid=other.uuid,
            pcie="NODE" if other.numa_node == gpu.numa_node else "SYS",
            nvlinks=min(active, _active(other)) if other.uuid in joined else 0,
        )
        for other in machine.devices
        if other.uuid != gpu.uuid
    ]


def _active(gpu: Gpu) -> int:
    return gpu.nvlink.links - gpu.nvlink.down if gpu.nvlink and not gpu.lost else 0


def _nvlink(machine: Machine, gpu: Gpu) -> NvLinkFacts | None:
    if gpu.nvlink is None:
        return None
    hopper = gpu.architecture in {"hopper", "blackwell"} and machine.switched
    return NvLinkFacts(
        links=gpu.nvlink.links,
        active=_active(gpu) if machine.joined(gpu) or not machine.bridges else 0,
        version=gpu.nvlink.version,
        switched=machine.switched,
        fabric_state="completed" if hopper else "",
    )


def _ecc(gpu: Gpu) -> EccFacts | None:
    if gpu.ecc is None or gpu.lost:
        return None
    return EccFacts(
        enabled=True,
        pending=True,
        corrected_volatile=gpu.ecc.corrected,
        uncorrected_volatile=gpu.ecc.uncorrected,
        corrected_aggregate=max(gpu.ecc.corrected, gpu.ecc.corrected_aggregate),
        uncorrected_aggregate=max(gpu.ecc.uncorrected, gpu.ecc.uncorrected_aggregate),
    )


def _remap(gpu: Gpu) -> RemapFacts | None:
    if gpu.remap is None or gpu.lost:
        return None
    return RemapFacts(**msgspec.structs.asdict(gpu.remap))


def _pcie(gpu: Gpu) -> PcieFacts | None:
    if gpu.pcie is None or gpu.lost:
        return None
    return PcieFacts(
        generation=gpu.pcie.generation,
        width=gpu.pcie.width,
        max_generation=gpu.pcie.generation,
        max_width=gpu.pcie.width,
        tx_bytes_per_second=gpu.pcie.tx_kib_per_second * 1024.0,
        rx_bytes_per_second=gpu.pcie.rx_kib_per_second * 1024.0,
        replays=gpu.pcie.replays,
    )
