"""The ports: where devices, what happens to them, and changes of how they are cut come from. All keyed by UUID."""

from dataclasses import dataclass
from typing import Final, Protocol

from runtime.agent.errors import AgentError
from runtime.wire.devices import DeviceReport, HealthCode

#: Problems of a GPU that was away: the driver lists it no more, or lists it and cannot open it (followed by why).
UNLISTED: Final = "the driver no longer lists this GPU"
UNOPENED: Final = "the driver cannot open this GPU"


class DeviceSource(Protocol):
    """One kind of device. ``scan`` may block for as long as a driver does; it is called in a worker thread."""

    name: str

    def scan(self) -> list[DeviceReport]:
        """Return every device of this kind, sick ones with ``problem`` set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Something that happened to a device, before it has a number and a time. The fields are those of the wire."""

    code: HealthCode
    device_uuid: str = ""
    message: str = ""
    xid: int = 0
    count: int = 0
    active: bool = True
    gpu_instance_id: int | None = None


class EventSource(Protocol):
    """Something that hears of events by itself."""

    def take(self) -> list[Observed]:
        """Return what happened since the last call (bounded); never blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance that exists: its number on the device, its profile and its first memory slice."""

    id: int
    profile_id: int
    start: int


class MigError(AgentError):
    """A change of a MIG layout was refused. ``reason`` is PascalCase, ``message`` a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class MigDriver(Protocol):
    """Cuts GPUs. Every call may block as long as a driver does, and raises :class:`MigError`."""

    def enabled(self, uuid: str) -> bool:
        """True while MIG is on."""

    def pending(self, uuid: str) -> bool:
        """True when MIG is on after the next reset."""

    def enable(self, uuid: str, on: bool) -> None:
        """Switch MIG; an error when it takes a reset or reboot to come into effect."""

    def instances(self, uuid: str) -> list[GpuInstance]:
        """Every GPU instance that exists."""

    def create(self, uuid: str, profile_id: int, start: int) -> GpuInstance:
        """Make a GPU instance with one compute instance of its full size."""

    def destroy(self, uuid: str, instance_id: int) -> None:
        """Remove a GPU instance and its compute instances."""
