"""What the planner looks at (frozen) and how it is read from the rows: one moment, no queries afterwards."""

import dataclasses
import uuid
from collections.abc import Collection, Mapping, Sequence

from django.db.models import Count

from fleet.models import Device, Isolation, Node, Partition
from fleet.states import DeviceState, NodeState
from kernel import scope
from serving.models import Replica
from serving.states import ReplicaState


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node; bytes, thousandths of a CPU. ``stored`` are digests it keeps of those that were asked about."""

    id: uuid.UUID
    name: str
    state: str
    memory_bytes: int
    memory_available_bytes: int
    held_host_bytes: int
    millicpus: int
    held_millicpus: int
    stored: frozenset[str] = frozenset()
    replicas: Mapping[uuid.UUID, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceView:
    """A device; ``exclusive`` when somebody has all of it."""

    id: uuid.UUID
    node_id: uuid.UUID
    uuid: str
    kind: str
    product: str
    state: str
    message: str
    present: bool
    memory_bytes: int
    held_bytes: int
    exclusive: bool = False

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.held_bytes


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The fleet at one moment. Devices are in a fixed order, so that the same snapshot gives the same plan."""

    nodes: Mapping[uuid.UUID, NodeView]
    devices: tuple[DeviceView, ...]

    def with_taken(
        self, device: DeviceView, *, deployment_id: uuid.UUID, memory_bytes: int, host_bytes: int, millicpus: int
    ) -> "Snapshot":
        """The snapshot after a placement."""
        node = self.nodes[device.node_id]
        counts = {**node.replicas, deployment_id: node.replicas.get(deployment_id, 0) + 1}
        taken = dataclasses.replace(
            node,
            held_host_bytes=node.held_host_bytes + host_bytes,
            held_millicpus=node.held_millicpus + millicpus,
            memory_available_bytes=node.memory_available_bytes - host_bytes,
            replicas=counts,
        )
        held = dataclasses.replace(device, held_bytes=device.held_bytes + memory_bytes)
        devices = tuple(held if other.id == device.id else other for other in self.devices)
        return Snapshot({**self.nodes, node.id: taken}, devices)


def take(wanted_files: Collection[str] = (), *, only_device: uuid.UUID | None = None) -> Snapshot:
    """Read the fleet; four queries. ``wanted_files`` are digests for weight locality."""
    devices = Device.objects.exclude(node__state=NodeState.REMOVED).exclude(state=DeviceState.RETIRED)
    nodes = Node.objects.exclude(state=NodeState.REMOVED).defer("stored_sha256")
    if only_device is not None:
        devices = devices.filter(id=only_device)
        nodes = nodes.filter(devices__id=only_device)
    stored = _stored(wanted_files)
    counts = _replica_counts()
    exclusive = set(Partition.objects.filter(isolation=Isolation.EXCLUSIVE).values_list("device_id", flat=True))
    node_views = {
        node.id: _node_view(node, stored.get(node.id, frozenset()), counts.get(node.id, {})) for node in nodes
    }
    rows: Sequence[Device] = list(devices.order_by("node__name", "uuid"))
    return Snapshot(
        node_views,
        tuple(_device_view(row, row.id in exclusive) for row in rows if row.node_id in node_views),
    )


def _node_view(node: Node, stored: frozenset[str], replicas: Mapping[uuid.UUID, int]) -> NodeView:
    return NodeView(
        id=node.id,
        name=node.name,
        state=node.state,
        memory_bytes=node.memory_bytes,
        memory_available_bytes=node.memory_available_bytes,
        held_host_bytes=node.held_host_bytes,
        millicpus=node.cpus * 1000,
        held_millicpus=node.held_millicpus,
        stored=stored,
        replicas=replicas,
    )


def _device_view(row: Device, exclusive: bool) -> DeviceView:
    return DeviceView(
        id=row.id,
        node_id=row.node_id,
        uuid=row.uuid,
        kind=row.kind,
        product=row.product,
        state=row.state,
        message=row.message,
        present=row.present,
        memory_bytes=row.memory_bytes,
        held_bytes=row.held_bytes,
        exclusive=exclusive,
    )


def _stored(wanted: Collection[str]) -> dict[uuid.UUID, frozenset[str]]:
    if not wanted:
        return {}
    asked = frozenset(wanted)
    rows = Node.objects.filter(stored_sha256__overlap=sorted(asked)).values_list("id", "stored_sha256")
    return {node_id: asked.intersection(kept) for node_id, kept in rows}


def _replica_counts() -> dict[uuid.UUID, dict[uuid.UUID, int]]:
    """Per node, how many replicas of each deployment it has."""
    found: dict[uuid.UUID, dict[uuid.UUID, int]] = {}
    with scope.all_tenants():
        rows = (
            Replica.objects.exclude(node=None)
            .exclude(state=ReplicaState.STOPPED)
            .order_by()
            .values_list("node_id", "deployment_id")
            .annotate(count=Count("id"))
        )
        for node_id, deployment_id, count in rows:
            found.setdefault(node_id, {})[deployment_id] = count
    return found
