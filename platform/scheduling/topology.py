"""Which devices reach each other, and over what (pure): from what nodes report of links, paths and RDMA ports."""

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scheduling.links import ETHERNET_100, NVLINK3, NVLINK4, NVLINK5, PCIE4, PCIE5, RDMA_400, Link
from scheduling.snapshot import DeviceView, NodeView

#: NVLink by the version that the driver tells, and as a guess for those that do not tell.
_BY_VERSION: Final[Mapping[str, Link]] = {"3": NVLINK3, "4": NVLINK4, "5": NVLINK5}
_PCIE5_ARCHITECTURES: Final = frozenset({"hopper", "blackwell"})


class Linked(NamedTuple):
    """A device with what it reports of its links; ``facts`` as in ``Device.facts``."""

    id: uuid.UUID
    uuid: str
    node_id: uuid.UUID
    facts: Mapping[str, Any]


def domains(devices: Iterable[Linked]) -> dict[uuid.UUID, str]:
    """The NVLink domain of every device that has one, named by the first UUID in it.

    Two devices of a node are in one domain when an NVLink, or a chain of them, leads from one to the other.
    """
    by_node: dict[uuid.UUID, list[Linked]] = {}
    for device in devices:
        by_node.setdefault(device.node_id, []).append(device)
    found: dict[uuid.UUID, str] = {}
    for members in by_node.values():
        found |= _of_node(members)
    return found


def _of_node(members: Sequence[Linked]) -> dict[uuid.UUID, str]:
    head = {each.uuid: each.uuid for each in members}

    def top(name: str) -> str:
        while head[name] != name:
            name = head[name]
        return name

    joined: set[str] = set()
    for each in members:
        for path in each.facts.get("paths") or ():
            other = path.get("uuid")
            if path.get("nvlinks") and other in head and other != each.uuid:
                first, second = sorted((top(each.uuid), top(other)))
                head[second] = first
                joined |= {each.uuid, other}
    return {each.id: top(each.uuid) for each in members if each.uuid in joined}


def link_of(facts: Mapping[str, Any]) -> str:
    """The name of the link by which a device reaches the others of its node best."""
    nvlink = facts.get("nvlink") or {}
    if nvlink.get("active"):
        return _BY_VERSION.get(str(nvlink.get("version") or "")[:1], NVLINK3).name
    return (PCIE5 if str(facts.get("architecture", "")).lower() in _PCIE5_ARCHITECTURES else PCIE4).name


def has_rdma(facts: Mapping[str, Any]) -> bool:
    """True when a node reports an RDMA port that is up."""
    return any(rail.get("active") for rail in facts.get("rails") or ())


_LINKS: Final = {link.name: link for link in (NVLINK3, NVLINK4, NVLINK5, PCIE4, PCIE5)}


@dataclasses.dataclass(frozen=True)
class Kind:
    """Devices of one product as a fleet has them: what one domain, one node and all nodes hold.

    ``domain`` devices reach each other over ``link``: as many as NVLink joins somewhere, or where there is none all of
    a node. A node has at most ``domains`` so large, and ``node_devices`` in all, joined by ``between``. Where they
    differ in memory, ``memory_bytes`` is that of the smallest and ``largest_bytes`` of the largest. ``joined`` are
    those whose nodes take part in replicas over several nodes; ``None``: fewer than two nodes do.
    """

    product: str
    memory_bytes: int
    largest_bytes: int
    domain: int
    domains: int
    node_devices: int
    nodes: int
    link: Link
    between: Link
    fabric: Link
    count: int
    joined: "Kind | None" = None


def kinds(nodes: Mapping[uuid.UUID, NodeView], devices: Iterable[DeviceView], kind: str) -> list[Kind]:
    """The products of ``kind`` that whole devices are of, the most plentiful first; MIG instances are left out."""
    by_product: dict[str, list[DeviceView]] = {}
    for device in devices:
        if device.kind == kind and not device.parent:
            by_product.setdefault(device.product, []).append(device)
    found = [
        dataclasses.replace(_kind(nodes, product, members), joined=_joined(nodes, product, members))
        for product, members in by_product.items()
    ]
    return sorted(found, key=lambda each: (-each.count, each.product))


def _joined(nodes: Mapping[uuid.UUID, NodeView], product: str, members: Sequence[DeviceView]) -> Kind | None:
    able = [device for device in members if nodes[device.node_id].rank_address]
    return _kind(nodes, product, able) if len({device.node_id for device in able}) > 1 else None


def _kind(nodes: Mapping[uuid.UUID, NodeView], product: str, members: Sequence[DeviceView]) -> Kind:
    groups: dict[tuple[uuid.UUID, str], int] = {}
    per_node: dict[uuid.UUID, int] = {}
    for device in members:
        per_node[device.node_id] = per_node.get(device.node_id, 0) + 1
        if device.link_domain:
            key = (device.node_id, device.link_domain)
            groups[key] = groups.get(key, 0) + 1
    most = max(per_node.values())
    domain = max(groups.values(), default=most)
    full: dict[uuid.UUID, int] = {}
    for (node_id, _name), count in groups.items():
        full[node_id] = full.get(node_id, 0) + (count == domain)
    rdma = all(nodes[node_id].rdma for node_id in per_node)
    link = _slowest(device for device in members if not groups or device.link_domain)
    plain = _without_nvlink(link)
    return Kind(
        product=product,
        memory_bytes=min(device.memory_bytes for device in members),
        largest_bytes=max(device.memory_bytes for device in members),
        domain=domain,
        domains=max(full.values(), default=1),
        node_devices=most,
        nodes=len(per_node),
        link=link if groups else plain,
        between=plain,
        fabric=RDMA_400 if rdma else ETHERNET_100,
        count=len(members),
    )


def link_between(one: tuple[NodeView, DeviceView], other: tuple[NodeView, DeviceView]) -> Link:
    """What two devices send each other over, on one node or on two."""
    (node, device), (there, peer) = one, other
    if node.id != there.id:
        return RDMA_400 if node.rdma and there.rdma else ETHERNET_100
    link = _slowest((device, peer))
    if device.link_domain and device.link_domain == peer.link_domain:
        return link
    return _without_nvlink(link)


def _without_nvlink(link: Link) -> Link:
    """What devices have besides: those of NVLink 3 are of the age of PCIe 4."""
    return PCIE4 if link in (NVLINK3, PCIE4) else PCIE5


def _slowest(devices: Iterable[DeviceView]) -> Link:
    return min((_LINKS.get(device.link, PCIE4) for device in devices), key=lambda link: link.bytes_per_second)
