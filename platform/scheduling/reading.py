"""The planner's snapshot from the rows: one moment, no queries afterwards."""

import uuid
from collections.abc import Collection, Mapping, Sequence

from django.db.models import Count

from fleet.models import Device, Isolation, Node, Partition
from fleet.states import DeviceState, NodeState
from kernel import scope
from quotas.amount import Kind
from quotas.selectors import lines_of
from scheduling.snapshot import DeviceView, HolderView, Holding, NodeView, Snapshot, TenantView
from serving.models import Replica
from serving.states import ReplicaState
from tenants.models import Tenant


def take(
    wanted_files: Collection[str] = (),
    *,
    only_nodes: Collection[uuid.UUID] | None = None,
    holders_of: Collection[uuid.UUID] = (),
) -> Snapshot:
    """Read the fleet (or some nodes of it); five queries, and some for each of the tenants in ``holders_of``.

    ``wanted_files`` are digests for weight locality. Of the tenants in ``holders_of`` quota and replicas are read too.
    """
    devices = Device.objects.exclude(node__state=NodeState.REMOVED).exclude(state=DeviceState.RETIRED)
    nodes = Node.objects.exclude(state=NodeState.REMOVED).defer("stored_sha256")
    if only_nodes is not None:
        devices = devices.filter(node_id__in=only_nodes)
        nodes = nodes.filter(id__in=only_nodes)
    stored = _stored(wanted_files)
    counts = _replica_counts()
    held = _isolations()
    node_views = {
        node.id: _node_view(node, stored.get(node.id, frozenset()), counts.get(node.id, {})) for node in nodes
    }
    rows: Sequence[Device] = list(devices.order_by("node__name", "uuid"))
    return Snapshot(
        node_views,
        tuple(_device_view(row, held.get(row.id, frozenset())) for row in rows if row.node_id in node_views),
        _holders(holders_of),
        _tenants(holders_of),
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


def _device_view(row: Device, isolations: frozenset[str]) -> DeviceView:
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
        stand_in=row.stand_in,
        exclusive=Isolation.EXCLUSIVE in isolations,
        shared=bool(isolations - {Isolation.EXCLUSIVE}),
    )


def _holders(tenant_ids: Collection[uuid.UUID]) -> tuple[HolderView, ...]:
    """Placed replicas of some tenants with what they hold. All have one priority: none may go for another."""
    if not tenant_ids:
        return ()
    with scope.all_tenants():
        live = Replica.objects.filter(tenant_id__in=tenant_ids).exclude(node=None).exclude(state=ReplicaState.STOPPED)
        rows = list(live.select_related("deployment__endpoint").defer("log_tail", "ledger", "stats", "explanation"))
    parts: dict[uuid.UUID, list[Holding]] = {}
    for part in Partition.objects.filter(replica_id__in=[row.id for row in rows]).order_by("replica_id", "rank"):
        whole = part.isolation == Isolation.EXCLUSIVE
        parts.setdefault(part.replica_id, []).append(
            Holding(
                device_id=part.device_id, memory_bytes=part.memory_bytes, exclusive=whole,
                host_bytes=part.host_bytes, millicpus=part.millicpus,
            )
        )  # fmt: skip
    return tuple(
        HolderView(
            replica_id=row.id,
            deployment_id=row.deployment_id,
            tenant_id=row.tenant_id,
            label=f"{row.deployment.endpoint.name}/{row.short_id}",
            priority=0,
            holdings=tuple(parts[row.id]),
        )
        for row in sorted(rows, key=lambda each: each.id)
        if row.id in parts
    )


def _tenants(tenant_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, TenantView]:
    """Quota on device memory. What a tenant may hold is all guaranteed to it: nothing is borrowed yet."""
    found: dict[uuid.UUID, TenantView] = {}
    for tenant in Tenant.objects.filter(id__in=tenant_ids):
        line = next(line for line in lines_of(tenant) if line.kind is Kind.HBM_BYTES)
        limit = line.limit.as_number()
        found[tenant.id] = TenantView(
            id=tenant.id, guaranteed_bytes=limit, limit_bytes=limit, held_bytes=line.used.as_number()
        )
    return found


def _isolations() -> dict[uuid.UUID, frozenset[str]]:
    """How each device that somebody holds is held."""
    found: dict[uuid.UUID, set[str]] = {}
    rows = Partition.objects.order_by().values_list("device_id", "isolation").distinct()
    for device_id, isolation in rows:
        found.setdefault(device_id, set()).add(isolation)
    return {device_id: frozenset(values) for device_id, values in found.items()}


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
