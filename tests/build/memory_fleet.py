"""A fleet in memory whose commits check what the database checks."""

import dataclasses
import uuid

from scheduling.answers import Answer
from scheduling.feasible import refuse
from scheduling.need import Need
from scheduling.snapshot import UNLIMITED, DeviceView, GroupView, HolderView, Holding, NodeView, Snapshot, TenantView


class Gone(Exception):
    """A commit was refused: what the plan was made from is not true any more."""


@dataclasses.dataclass
class Replica:
    """``owner`` of partitions once ``node`` is set; ``reason`` says why it waits.

    One that is ``ending`` holds only what is on lost nodes. One that is ``leaving`` gave way: until ``leaves_by``, or
    until its ``successor`` has its places. Where it ``counts`` meanwhile, its tenant holds what it holds.
    """

    id: uuid.UUID
    tenant: uuid.UUID
    deployment: uuid.UUID
    need: Need
    priority: int
    generation: int = 1
    nodes: frozenset[uuid.UUID] = frozenset()
    reason: str = ""
    ending: bool = False
    waits_since: int = 0
    planned: bool = False
    leaving: bool = False
    leaves_by: int = 0
    successor: uuid.UUID | None = None
    placed_at: int = 0
    counts: bool = False
    making_room: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """A partition: what one rank holds."""

    replica: uuid.UUID
    device: uuid.UUID
    memory_bytes: int
    millis: int
    whole: bool
    host_bytes: int
    millicpus: int


class Fleet:
    """Rows and their constraints. ``nodes`` and ``devices`` keep no sums: those are counted from ``parts``."""

    def __init__(self) -> None:
        self.nodes: dict[uuid.UUID, NodeView] = {}
        self.devices: dict[uuid.UUID, DeviceView] = {}
        self.parts: dict[tuple[uuid.UUID, int], Part] = {}
        self.limits: dict[uuid.UUID, tuple[int, int]] = {}
        self.group: tuple[uuid.UUID, frozenset[uuid.UUID], int] | None = None
        """Its id, its tenants, and what they may hold together."""

    def held_of(self, tenant: uuid.UUID, replicas: dict[uuid.UUID, Replica]) -> int:
        """Bytes of devices that a tenant holds, without what has to leave."""
        mine = [part for part in self.parts.values() if replicas[part.replica].tenant == tenant]
        going = self._excused(replicas)
        return sum(part.memory_bytes for part in mine if part.replica not in going)

    def passing_of(self, tenant: uuid.UUID, replicas: dict[uuid.UUID, Replica]) -> int:
        """What of that ends anyway."""
        going = self._excused(replicas)
        mine = [part for part in self.parts.values() if replicas[part.replica].tenant == tenant]
        return sum(part.memory_bytes for part in mine if part.replica not in going and replicas[part.replica].leaving)

    def _excused(self, replicas: dict[uuid.UUID, Replica]) -> set[uuid.UUID]:
        sick = {part.replica for part in self.parts.values() if self.devices[part.device].state != "healthy"}
        return sick | {key for key in {part.replica for part in self.parts.values()} if self._leaves(replicas[key])}

    def _leaves(self, replica: Replica) -> bool:
        return (replica.leaving and not replica.counts) or any(
            self.nodes[node].state in ("lost", "draining") for node in replica.nodes
        )

    def snapshot(self, replicas: dict[uuid.UUID, Replica]) -> Snapshot:
        """What the planner sees: sums from the partitions."""
        devices = dict(self.devices)
        nodes = dict(self.nodes)
        for part in self.parts.values():
            device = devices[part.device]
            devices[part.device] = dataclasses.replace(
                device, held_bytes=device.held_bytes + part.memory_bytes, held_millis=device.held_millis + part.millis,
                exclusive=device.exclusive or part.whole, shared=device.shared or not part.whole,
            )  # fmt: skip
            node = nodes[device.node_id]
            counts = dict(node.replicas)
            deployment = replicas[part.replica].deployment
            counts[deployment] = counts.get(deployment, 0) + 1
            nodes[node.id] = dataclasses.replace(
                node, held_host_bytes=node.held_host_bytes + part.host_bytes, replicas=counts,
                held_millicpus=node.held_millicpus + part.millicpus,
            )  # fmt: skip
        ordered = sorted(devices.values(), key=lambda device: (nodes[device.node_id].name, device.uuid))
        tenants = {
            tenant: TenantView(
                id=tenant, guaranteed_bytes=guaranteed, limit_bytes=limit, held_bytes=self.held_of(tenant, replicas),
                passing_bytes=self.passing_of(tenant, replicas),
                group=self.group[0] if self.group is not None and tenant in self.group[1] else None,
            )
            for tenant, (guaranteed, limit) in self.limits.items()
        }  # fmt: skip
        return Snapshot(nodes, tuple(ordered), self._holders(replicas), tenants, self._groups(tenants))

    def _groups(self, tenants: dict[uuid.UUID, TenantView]) -> dict[uuid.UUID, GroupView]:
        if self.group is None:
            return {}
        key, members, limit = self.group
        held = sum(tenants[member].held_bytes for member in members)
        ending = sum(tenants[member].passing_bytes for member in members)
        return {key: GroupView(id=key, limit_bytes=limit, held_bytes=held, ending_bytes=ending)}

    def _holders(self, replicas: dict[uuid.UUID, Replica]) -> tuple[HolderView, ...]:
        parts: dict[uuid.UUID, list[Holding]] = {}
        excused = self._excused(replicas)
        for (replica, _rank), part in sorted(self.parts.items()):
            parts.setdefault(replica, []).append(
                Holding(
                    device_id=part.device, memory_bytes=part.memory_bytes, millis=part.millis, exclusive=part.whole,
                    host_bytes=part.host_bytes, millicpus=part.millicpus,
                )
            )  # fmt: skip
        return tuple(
            HolderView(
                replica_id=key, deployment_id=replicas[key].deployment, tenant_id=replicas[key].tenant,
                label=str(key), priority=replicas[key].priority, holdings=tuple(held),
                endable=not replicas[key].ending and not replicas[key].leaving, stages=replicas[key].need.stages,
                leaving=replicas[key].leaving or replicas[key].ending, counts=key not in excused,
                stranded=any(self.nodes[node].state == "lost" for node in replicas[key].nodes),
            )
            for key, held in parts.items()
        )  # fmt: skip

    def commit(self, answer: Answer, replicas: dict[uuid.UUID, Replica]) -> None:
        """All ranks or none, checked again on what is now: the same checks as ``scheduling.commit``."""
        replica = replicas.get(answer.ask.replica_id)
        need = answer.need
        if replica is None or need is None or replica.nodes or replica.generation != answer.ask.generation:
            raise Gone("the replica does not wait any more")
        limit = self.limits[replica.tenant][1]
        if limit != UNLIMITED and self.held_of(replica.tenant, replicas) + need.total_bytes > limit:
            raise Gone("quota")
        if self.group is not None and replica.tenant in self.group[1]:
            together = sum(self.held_of(member, replicas) for member in self.group[1])
            if together + need.total_bytes > self.group[2]:
                raise Gone("quota of the group")
        now = self.snapshot(replicas)
        devices = {device.id: device for device in now.devices}
        for place in answer.places:
            device = devices.get(place.device.id)
            if device is None or device.node_id != place.node.id:
                raise Gone("the device is gone")
            if refuse(device, now.nodes[device.node_id], answer.ask.needs) is not None:
                raise Gone("the device has changed")
        for place in answer.places:
            self.parts[replica.id, place.rank] = Part(
                replica.id, place.device.id, need.memory_bytes, need.millis, need.whole, place.host_bytes,
                place.millicpus,
            )  # fmt: skip
        replica.nodes = frozenset(place.node.id for place in answer.places)
        replica.reason, replica.making_room = "", False

    def release(self, replica: Replica) -> None:
        """Free what a replica holds, of nodes that answer."""
        for key in [key for key in self.parts if key[0] == replica.id]:
            if self.nodes[self.devices[self.parts[key].device].node_id].state != "lost":
                del self.parts[key]
        held = [part for key, part in self.parts.items() if key[0] == replica.id]
        replica.nodes = frozenset(self.devices[part.device].node_id for part in held)
