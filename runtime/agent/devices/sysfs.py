"""What the kernel shows in sysfs: NUMA nodes and RDMA ports. ``root`` is ``/sys`` or, in tests, a folder like it."""

import re
from pathlib import Path
from typing import Final

from runtime.wire.devices import RdmaRail

ROOT: Final = Path("/sys")
MAX_RAILS: Final = 64
_RATE: Final = re.compile(r"([\d.]+)\s*Gb/sec")


def numa_node(bus_id: str, root: Path = ROOT) -> int | None:
    """NUMA node of the PCI device (``00000000:1A:00.0`` or ``0000:1a:00.0``); ``None`` where there is only one."""
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    text = _read(root / "bus" / "pci" / "devices" / f"{domain[-4:]}:{rest}" / "numa_node")
    return _node(text)


def numa_nodes(root: Path = ROOT) -> int:
    """How many NUMA nodes the machine has; at least 1."""
    return max(1, len(list((root / "devices" / "system" / "node").glob("node[0-9]*"))))


def rails(root: Path = ROOT) -> list[RdmaRail]:
    """Every port of every RDMA adapter, InfiniBand and RoCE, by name."""
    found: list[RdmaRail] = []
    for adapter in sorted((root / "class" / "infiniband").glob("*")):
        for port in sorted((adapter / "ports").glob("[0-9]*")):
            rail = _rail(adapter, port)
            if rail is not None and len(found) < MAX_RAILS:
                found.append(rail)
    return found


def _rail(adapter: Path, port: Path) -> RdmaRail | None:
    try:
        number = int(port.name)
    except ValueError:
        return None
    device = adapter / "device"
    rate = _RATE.search(_read(port / "rate"))
    interface = _read(port / "gid_attrs" / "ndevs" / "0")
    return RdmaRail(
        name=adapter.name,
        port=number,
        link_layer=_read(port / "link_layer"),
        active="ACTIVE" in _read(port / "state"),
        rate_gbps=float(rate[1]) if rate else 0.0,
        numa_node=_node(_read(device / "numa_node")),
        pci_bus_id=device.resolve().name if device.exists() else "",
        interface=interface,
    )


def _node(text: str) -> int | None:
    """The kernel says -1 where the platform does not tell."""
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
