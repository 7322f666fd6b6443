"""A machine with GPUs, described in YAML: what simulated nodes show, and what the NVML stub of the tests answers.

Shipped ones are in ``profiles/``; any other file of the same form can be given. A device names a ``product`` of
``profiles/products.yaml`` and may override every fact of it. ``changes`` (a second file, read again whenever it
changes) override facts of single devices while everything runs: that is how a GPU is made sick::

    devices:
      0: {lost: true}                 # by position, by UUID, or "all"
      GPU-…: {xids: [48], remap: {pending: true}}
"""

import uuid as uuids
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.agent.errors import SettingsError

PROFILES: Final = Path(__file__).parent / "profiles"
MAX_DEVICES: Final = 64
_SPACE: Final = uuids.UUID("5b6a2d9c-7c0f-4a53-9f3e-6d1f7f0b9b41")


class ProfileRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MIG profile. ``enum`` is the driver's enumeration, which is not the ``id`` that its other calls take."""

    id: int
    enum: int
    name: str
    compute: int
    memory: int
    mib: int
    sm: int
    starts: list[int]
    max: int
    media: bool = False


class MigTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the product can be cut: so many memory slices, these shapes."""

    slices: int
    profiles: list[ProfileRow]


class Clocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MHz."""

    sm_mhz: int
    memory_mhz: int
    sm_max_mhz: int
    memory_max_mhz: int


class Pcie(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link at its best, what is moved per second, and how often it had to be repeated."""

    generation: int
    width: int
    tx_kib_per_second: int = 0
    rx_kib_per_second: int = 0
    replays: int = 0


class NvLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``links`` per device, of which ``down`` are not active."""

    links: int
    version: str
    down: int = 0


class Ecc(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of memory errors."""

    corrected: int = 0
    uncorrected: int = 0
    corrected_aggregate: int = 0
    uncorrected_aggregate: int = 0


class Remap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Row remapping."""

    corrected: int = 0
    uncorrected: int = 0
    pending: bool = False
    failed: bool = False


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process on the device; ``mib`` null: the driver does not tell."""

    pid: int
    mib: int | None = None
    name: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device as it is now.

    ``errors`` maps an NVML function to the code it answers with (the stub alone heeds it); ``lost`` makes every call
    fail; appending to ``xids`` is an event. ``reset_pending`` makes a change of the MIG mode wait for a reset.
    """

    uuid: str
    name: str
    memory_mib: int
    product: str = ""
    architecture: str = ""
    compute_capability: str = ""
    reserved_mib: int = 0
    used_mib: int = 0
    pci_bus_id: str = ""
    pci_device_id: int = 0
    serial: str = ""
    numa_node: int | None = None
    power_limit_w: float = 0.0
    idle_power_w: float = 0.0
    power_w: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    utilization: int = 0
    hbm_bandwidth: int = 0
    clocks: Clocks | None = None
    pcie: Pcie | None = None
    nvlink: NvLink | None = None
    gpm: bool = False
    mig: MigTable | None = None
    mig_enabled: bool = False
    reset_pending: bool = False
    ecc: Ecc | None = Ecc()
    remap: Remap | None = Remap()
    throttle: list[str] = []
    recovery_action: int = 0
    processes: list[Process] = []
    xids: list[int] = []
    lost: bool = False
    errors: dict[str, int] = {}
    problem: str = ""


class Driver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions."""

    version: str
    nvml: str = ""
    cuda: int = 0


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine around the devices."""

    cpus: int
    memory_gib: int
    numa_nodes: int = 1


class Rails(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """RDMA ports, spread evenly over the NUMA nodes."""

    count: int
    rate_gbps: float
    link_layer: str = "InfiniBand"


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole description. ``switched``: NVLinks end in switches; ``bridges``: those of these devices, by position,
    end in each other."""

    driver: Driver
    devices: list[Gpu]
    host: HostFacts | None = None
    switched: bool = False
    bridges: list[list[int]] = []
    rails: Rails | None = None

    def joined(self, gpu: Gpu) -> list[Gpu]:
        """The other devices that NVLinks lead to from ``gpu``, as far as they are active."""
        if self.switched:
            return [other for other in self.devices if other.uuid != gpu.uuid]
        bridges = ([self.devices[at] for at in bridge] for bridge in self.bridges)
        bridge = next((each for each in bridges if any(one.uuid == gpu.uuid for one in each)), [])
        return [other for other in bridge if other.uuid != gpu.uuid]


def shipped() -> list[str]:
    """Names of the descriptions that come with Millpond."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml") if path.stem != "products")


def locate(name: str) -> Path:
    """Return the file of a shipped description, or ``name`` itself where it is a path.

    Raises:
        SettingsError: there is neither.
    """
    path = Path(name)
    if name in shipped():
        return PROFILES / f"{name}.yaml"
    if not path.is_file():
        raise SettingsError(f"{name!r} is neither a file nor a shipped description ({', '.join(shipped())})")
    return path


def load(path: Path, *, seed: str, changes: Path | None = None) -> Machine:
    """Read a description. Devices without a UUID get one from ``seed`` and their position: the same each time.

    Raises:
        SettingsError: a file cannot be read or does not fit; the text says where.
        OSError: a file is not there.
    """
    plain = _mapping(path)
    products = _mapping(PROFILES / "products.yaml")
    listed = plain.get("devices")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_DEVICES:
        raise SettingsError(f"{path}: devices must be a list of 1 to {MAX_DEVICES} entries")
    entries = [_entry(path, item, products, f"{seed}/{position}") for position, item in enumerate(listed)]
    if changes is not None and changes.exists():
        entries = _changed(changes, entries)
    try:
        machine = msgspec.convert(plain | {"devices": entries}, type=Machine)
    except msgspec.ValidationError as exc:
        raise SettingsError(f"{path} does not fit: {exc}") from exc
    if len({gpu.uuid for gpu in machine.devices}) != len(machine.devices):
        raise SettingsError(f"{path}: every device needs a uuid of its own")
    bridged = [at for bridge in machine.bridges for at in bridge]
    known = set(range(len(machine.devices)))
    if not known.issuperset(bridged) or len(bridged) != len(set(bridged)) or any(len(b) < 2 for b in machine.bridges):
        raise SettingsError(f"{path}: bridges are lists of two or more positions of devices, each in one bridge alone")
    return machine


def _mapping(path: Path) -> dict[str | int, Any]:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str | int, Any])  # JSON is YAML
    except msgspec.MsgspecError as exc:
        raise SettingsError(f"{path} must be a YAML mapping: {exc}") from exc


def _entry(path: Path, item: object, products: Mapping[str | int, Any], seed: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise SettingsError(f"{path}: a device must be a mapping, not {item!r}")
    product = item.get("product", "")
    if product and product not in products:
        raise SettingsError(f"{path}: no product {product!r}; known are {', '.join(sorted(map(str, products)))}")
    made = uuids.uuid5(_SPACE, seed)
    found: dict[str, Any] = {"uuid": f"GPU-{made}", "serial": str(made.int % 10**13)}
    found.update(products.get(product, {}))
    found.update(item)
    return found


def _changed(path: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``entries`` with the overrides of the file at ``path``."""
    listed = _mapping(path).get("devices", {})
    if not isinstance(listed, dict):
        raise SettingsError(f"{path}: devices must be a mapping from a position, a UUID or 'all' to facts")
    known: set[object] = {"all", *range(len(entries)), *(entry["uuid"] for entry in entries)}
    for key, facts in listed.items():
        if key not in known or not isinstance(facts, dict):
            raise SettingsError(f"{path}: {key!r} names no device of this machine, or is no mapping")
    return [
        entry | listed.get("all", {}) | listed.get(position, {}) | listed.get(entry["uuid"], {})
        for position, entry in enumerate(entries)
    ]
