"""What this node has: every source of devices, of events about them, and of changes to how they are cut."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pynvml

from runtime.agent.devices import description
from runtime.agent.devices.cpu import CpuSource
from runtime.agent.devices.kernel_log import KernelLog
from runtime.agent.devices.nvml import NvmlSource
from runtime.agent.devices.nvml_events import NvmlEvents
from runtime.agent.devices.nvml_mig import NvmlMig
from runtime.agent.devices.port import DeviceSource, EventSource, MigDriver
from runtime.agent.devices.simulated import SimulatedSource
from runtime.agent.identity import Identity
from runtime.agent.settings import AgentSettings
from runtime.wire.devices import DeviceKind, HostReport


@dataclass(slots=True)
class Hardware:
    """Found once at start; devices that come later are found by their source."""

    sources: list[DeviceSource] = field(default_factory=list)
    events: list[EventSource] = field(default_factory=list)
    mig: dict[DeviceKind, MigDriver] = field(default_factory=dict)
    listener: NvmlEvents | None = None
    kernel_log: KernelLog | None = None
    simulated: SimulatedSource | None = None

    def start(self) -> None:
        """Begin to listen to the driver."""
        if self.listener is not None:
            self.listener.start()

    async def stop(self) -> None:
        """Stop listening; a thread that a driver holds is left behind."""
        if self.listener is not None:
            await asyncio.to_thread(self.listener.stop)
        if self.kernel_log is not None:
            self.kernel_log.close()

    @property
    def pretends(self) -> bool:
        """True when the only GPUs are simulated and stand-ins run on them."""
        return self.listener is None and self.simulated is not None and self.simulated.stand_ins

    def shown(self, report: HostReport) -> HostReport:
        """The host as it is reported: a machine that is simulated whole replaces the real one's facts.

        Beside real devices the real host is told: its memory and processors are what engines get.
        """
        whole = self.simulated is not None and self.sources == [self.simulated]
        return self.simulated.host(report) if whole and self.simulated is not None else report


def find(
    config: AgentSettings, who: Identity, *, cpu_used: Callable[[], int], cpu_load: Callable[[], float | None]
) -> Hardware:
    """Look for a driver, add the CPU's budget and the simulated devices that are asked for.

    Raises:
        SettingsError: the description of simulated devices cannot be used.
    """
    found = Hardware()
    nvml = NvmlSource()
    if nvml.open():
        found.sources.append(nvml)
        found.listener = NvmlEvents(pynvml)
        listener = found.listener
        found.kernel_log = KernelLog(uuid_at=nvml.uuid_at, heard=lambda uuid: uuid in listener.registered)
        found.events += [nvml, listener, found.kernel_log]
        found.mig[DeviceKind.CUDA] = NvmlMig(pynvml)
    if config.cpu_memory_bytes:
        found.sources.append(CpuSource(who.cpu_uuid, config.cpu_memory_bytes, used=cpu_used, load=cpu_load))
    if config.simulate:
        found.simulated = SimulatedSource(
            description.locate(config.simulate),
            seed=who.machine_id,
            changes=config.simulate_changes or config.folder / "simulated.yaml",
            state=config.folder / "simulated-mig.json",
            stand_ins=config.simulate_engines,
        )
        found.sources.append(found.simulated)
        found.events.append(found.simulated)
        found.mig[DeviceKind.SIMULATED] = found.simulated
    return found
