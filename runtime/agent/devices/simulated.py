"""Devices that do not exist, from a YAML or JSON file: for development, demos and scale tests.

They are labelled ``simulated`` wherever they are shown, and the agent refuses to run an engine on one.
The file is a mapping with a list ``devices``; each entry has ``uuid``, ``product``, ``memory_gib`` and, as wanted, the
other fields of a device report. It is read again when it changes, so that a test can make a device sick.
"""

from pathlib import Path

import msgspec

from runtime.agent.errors import SettingsError
from runtime.agent.settings import GIB
from runtime.wire.devices import DeviceKind, DeviceReport


class SimulatedDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the file."""

    uuid: str
    product: str
    memory_gib: float
    memory_used_gib: float = 0.0
    compute_capability: str = ""
    driver_version: str = ""
    pci_bus_id: str = ""
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    problem: str = ""


class SimulatedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    devices: list[SimulatedDevice]


class SimulatedSource:
    """Reads the file at start, so that a mistake in it is found then.

    Raises:
        SettingsError: the file cannot be read or does not fit.
    """

    name = "simulated"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = 0.0
        self._reports: list[DeviceReport] = []
        self.scan()

    def scan(self) -> list[DeviceReport]:
        try:
            changed = self._path.stat().st_mtime
            if changed != self._changed:
                self._reports = [_report(device) for device in _read(self._path).devices]
                self._changed = changed
        except OSError as exc:
            raise SettingsError(f"MILLPOND_SIMULATED_DEVICES: {exc}") from exc
        return list(self._reports)


def _read(path: Path) -> SimulatedFile:
    try:
        content = msgspec.yaml.decode(path.read_bytes(), type=SimulatedFile)  # JSON is YAML
    except msgspec.MsgspecError as exc:
        raise SettingsError(f"MILLPOND_SIMULATED_DEVICES: {path} does not fit: {exc}") from exc
    uuids = [device.uuid for device in content.devices]
    if len(set(uuids)) != len(uuids) or not all(uuids):
        raise SettingsError(f"MILLPOND_SIMULATED_DEVICES: every device in {path} needs a uuid of its own")
    return content


def _report(device: SimulatedDevice) -> DeviceReport:
    return DeviceReport(
        uuid=device.uuid,
        kind=DeviceKind.SIMULATED,
        product=device.product,
        memory_bytes=int(device.memory_gib * GIB),
        memory_used_bytes=int(device.memory_used_gib * GIB),
        compute_capability=device.compute_capability,
        driver_version=device.driver_version,
        pci_bus_id=device.pci_bus_id,
        utilization=device.utilization,
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        power_limit_w=device.power_limit_w,
        problem=device.problem,
    )
