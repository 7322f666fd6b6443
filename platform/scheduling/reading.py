"""The planner's snapshot from the rows: one moment, no queries afterwards."""

import dataclasses
import itertools
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from django.db.models import Count, F, Q

from fleet.models import Device, DeviceKind, Node, Partition
from fleet.states import WATCHED, DeviceState, NodeState
from kernel import clock, scope
from kernel.isolation import Isolation
from quotas.amount import UNLIMITED, Amount
from quotas.models import TenantQuota
from quotas.selectors import defaults
from quotas.weights import device_millis
from scheduling import topology
from scheduling.snapshot import DeviceView, GroupView, HolderView, Holding, NodeView, Snapshot, TenantView
from serving import leaving
from serving.models import Member, Replica
from serving.selectors import slices_of, weighted
from serving.states import MAY_GIVE_WAY, ReplicaState

#: What is read of rows that are very many: most of their columns are not for planning.
_OF_DEVICES: Final = (
    "node_id", "uuid", "kind", "product", "state", "message", "present", "memory_bytes", "held_bytes", "held_percent",
    "stand_in", "facts", "layout", "parent__uuid", "parent__state", "parent__message",
)  # fmt: skip
_OF_PARTITIONS: Final = (
    "replica_id", "memory_bytes", "host_bytes", "millicpus", "thread_percentage", "isolation", "device__node_id",
    "device__kind", "device__memory_bytes", "device__facts",
)  # fmt: skip
#: Parts of a ledger that stand for memory in use.
_HELD: Final = ("weights_bytes", "workspace_bytes", "context_bytes", "kv_total_bytes")
_OWNED: Final = frozenset({Isolation.EXCLUSIVE.value, Isolation.MIG.value})
#: Replicas that give up what they hold. One that has stopped since its partitions were read has done so just now.
_LEFT: Final = (ReplicaState.DRAINING, ReplicaState.STOPPED)
_ENDING: Final = Q(state__in=_LEFT) | Q(recalled=True)


def take(wanted_files: Collection[str] = (), *, holders_of: Collection[uuid.UUID] = ()) -> Snapshot:
    """Read the fleet; the number of queries does not grow with it.

    ``wanted_files`` are digests for weight locality. With ``holders_of`` quotas and replicas are read too: of these
    tenants, and of all who hold more than is guaranteed to them.
    """
    devices = Device.objects.exclude(node__state=NodeState.REMOVED).exclude(state=DeviceState.RETIRED)
    nodes = Node.objects.exclude(state=NodeState.REMOVED).defer("stored_sha256")
    stored = _stored(wanted_files)
    counts = _replica_counts()
    held = _isolations()
    node_views = {
        node.id: _node_view(node, stored.get(node.id, frozenset()), counts.get(node.id, {})) for node in nodes
    }
    books = _books() if holders_of else None
    terms = _terms() if books is not None else []
    tenants = _tenants(books, terms, holders_of, and_holders=True) if books is not None else {}
    rows = devices.select_related("parent").only(*_OF_DEVICES).order_by("node__name", "node_id", "uuid")
    return Snapshot(
        node_views,
        tuple(_device_views((row for row in rows.iterator() if row.node_id in node_views), held)),
        _holders(books, tenants, holders_of) if books is not None else (),
        tenants,
        _groups(books, terms) if books is not None else {},
    )


def look(devices: Collection[Device]) -> Snapshot:
    """Some devices as the caller has them locked, with their nodes and parents: one query, or none where all are free.

    What only ranking needs (weights kept, replicas beside, links) is not read.
    """
    taken = [row.id for row in devices if row.held_bytes]  # every partition has memory
    held = _isolations(on=taken) if taken else {}
    nodes = {row.node.id: row.node for row in devices}
    return Snapshot(
        {node_id: _node_view(node, frozenset(), {}) for node_id, node in nodes.items()},
        tuple(_device_view(row, held.get(row.id, Counter()), "") for row in devices if not row.is_cut),
    )


def _node_view(node: Node, stored: frozenset[str], replicas: Mapping[uuid.UUID, int]) -> NodeView:
    """A node whose lease has run out is as lost as one that was declared so (when very many are silent none is): that
    what it has is free cannot be proved."""
    silent = node.lease_expires_at is not None and node.lease_expires_at <= clock.now()
    return NodeView(
        id=node.id,
        name=node.name,
        state=NodeState.LOST if silent and node.state in WATCHED else node.state,
        memory_bytes=node.memory_bytes,
        memory_available_bytes=node.memory_available_bytes,
        held_host_bytes=node.held_host_bytes,
        millicpus=node.cpus * 1000,
        held_millicpus=node.held_millicpus,
        stored=stored,
        replicas=replicas,
        mps=node.has_mps,
        rdma=topology.has_rdma(node.facts),
        rank_address=node.rank_address,
        fault_domain=node.fault_domain,
    )


def _device_views(rows: Iterable[Device], held: Mapping[uuid.UUID, Counter[str]]) -> Iterator[DeviceView]:
    """Of devices in the order of their nodes, each node's when the last of it is read.

    What a device says of itself is long; so it is forgotten again at once, and not kept for all devices together.
    """
    for _node_id, group in itertools.groupby(rows, key=lambda row: row.node_id):
        here = list(group)
        linked = topology.domains(
            topology.Linked(row.id, row.uuid, row.node_id, row.facts) for row in here if row.parent_id is None
        )
        for row in here:
            if not row.is_cut:
                yield _device_view(row, held.get(row.id, Counter()), linked.get(row.id, ""))


def _device_view(row: Device, isolations: Mapping[str, int], link_domain: str) -> DeviceView:
    """A MIG instance is as well as its GPU. The shares of a device are all of one kind."""
    shares = [each for each in isolations if each not in _OWNED]
    sick = row.parent if row.parent is not None and row.parent.state != DeviceState.HEALTHY else row
    return DeviceView(
        id=row.id,
        node_id=row.node_id,
        uuid=row.uuid,
        kind=row.kind,
        product=row.product,
        state=sick.state,
        message=sick.message,
        present=row.present,
        memory_bytes=row.memory_bytes,
        held_bytes=row.held_bytes,
        stand_in=row.stand_in,
        gpu_millis=device_millis(row.kind, *slices_of(row)),
        exclusive=len(shares) < len(isolations),
        shared=bool(shares),
        shared_as=shares[0] if shares else "",
        sharers=sum(isolations.values()),
        held_millis=row.held_percent * 10,
        profile=str(row.facts.get("profile", "")) if row.parent_id is not None else "",
        link_domain=link_domain,
        link=topology.link_of(row.facts) if row.parent is None and row.kind != DeviceKind.CPU else "",
        parent=row.parent.uuid if row.parent is not None else "",
        mig=row.facts.get("mig") if row.parent_id is None else None,
    )


@dataclasses.dataclass(frozen=True)
class _Books:
    """All partitions with their owners, read once: by replica what it holds, by tenant what counts for its quota.

    ``excused`` do not count, for they have to leave by no fault of their tenant; of what counts ``passing`` ends anyway
    (bytes, thousandths of a GPU). Stages of those ``apart`` may be on different nodes: on simulated devices, and
    wherever they are already.
    """

    holdings: Mapping[uuid.UUID, tuple[Holding, ...]]
    millis: Mapping[uuid.UUID, int]
    owners: Mapping[uuid.UUID, uuid.UUID]
    bytes_of: Mapping[uuid.UUID, int]
    millis_of: Mapping[uuid.UUID, int]
    passing: Mapping[uuid.UUID, tuple[int, int]]
    excused: Collection[uuid.UUID]
    apart: Collection[uuid.UUID]


def _books() -> _Books:
    holdings: dict[uuid.UUID, list[Holding]] = {}
    millis: Counter[uuid.UUID] = Counter()
    nodes: dict[uuid.UUID, uuid.UUID] = {}
    apart: set[uuid.UUID] = set()
    used = _host_used()
    parts = Partition.objects.select_related("device").only(*_OF_PARTITIONS)
    for part in parts.order_by("replica_id", "rank"):
        holdings.setdefault(part.replica_id, []).append(
            Holding(
                device_id=part.device_id, memory_bytes=part.memory_bytes, host_used_bytes=used.get(part.replica_id, 0),
                millis=part.thread_percentage * 10, exclusive=part.isolation in _OWNED, host_bytes=part.host_bytes,
                millicpus=part.millicpus, isolation=part.isolation,
            )
        )  # fmt: skip
        millis[part.replica_id] += weighted(part)
        node_id = nodes.setdefault(part.replica_id, part.device.node_id)
        if part.device.kind == DeviceKind.SIMULATED or node_id != part.device.node_id:
            apart.add(part.replica_id)
    with scope.all_tenants():
        rows = Replica.objects.filter(id__in=holdings)
        owners = dict(rows.values_list("id", "tenant_id"))
        excused = set(rows.filter(leaving.condition()).values_list("id", flat=True))
        ending = set(rows.filter(_ENDING).values_list("id", flat=True))
    bytes_of: Counter[uuid.UUID] = Counter()
    millis_of: Counter[uuid.UUID] = Counter()
    passing: dict[uuid.UUID, tuple[int, int]] = {}
    for replica_id, tenant_id in owners.items():
        if replica_id in excused:
            continue
        size = sum(holding.memory_bytes for holding in holdings[replica_id])
        bytes_of[tenant_id] += size
        millis_of[tenant_id] += millis[replica_id]
        if replica_id in ending:
            before = passing.get(tenant_id, (0, 0))
            passing[tenant_id] = before[0] + size, before[1] + millis[replica_id]
    held = {key: tuple(each) for key, each in holdings.items()}
    return _Books(held, millis, owners, bytes_of, millis_of, passing, excused, apart)


def _host_used() -> dict[uuid.UUID, int]:
    """Of replicas on a CPU, the memory that their engines said they hold: it is the machine's."""
    parts = Partition.objects.filter(device__kind=DeviceKind.CPU).values("replica_id")
    with scope.all_tenants():
        rows = Replica.objects.filter(id__in=parts).exclude(ledger=None).values_list("id", "ledger")
        return {key: _held_by(ledger or {}) for key, ledger in rows}


def _held_by(ledger: Mapping[str, Any]) -> int:
    return sum(int(ledger.get(name) or 0) for name in _HELD)


def _holders(
    books: _Books, tenants: Mapping[uuid.UUID, TenantView], asking: Collection[uuid.UUID]
) -> tuple[HolderView, ...]:
    """Placed replicas of the tenants that ask and of those that borrow, and whatever is leaving."""
    shown = {*asking, *(tenant.id for tenant in tenants.values() if tenant.borrowing)}
    with scope.all_tenants():
        live = Replica.objects.filter(id__in=books.holdings).exclude(node=None)
        going = _ENDING | Q(moving_at__isnull=False)
        wanted = live.filter(Q(tenant_id__in=shown) | going)
        wanted = wanted.annotate(named=F("deployment__revision__serving_config__products"))
        rows = list(wanted.select_related("deployment__endpoint").defer("log_tail", "ledger", "stats", "explanation"))
    return tuple(
        HolderView(
            replica_id=row.id,
            deployment_id=row.deployment_id,
            tenant_id=row.tenant_id,
            label=f"{row.deployment.endpoint.name}/{row.short_id}",
            priority=row.deployment.rank,
            holdings=books.holdings[row.id],
            endable=row.state in MAY_GIVE_WAY and not row.recalled and row.moving_at is None,
            leaving=row.state in _LEFT or row.recalled or row.moving_at is not None,
            gpu_millis=books.millis[row.id],
            stages=row.parallel.get("pipeline", 1) if row.id in books.apart else 1,
            stranded=row.state == ReplicaState.UNREACHABLE,
            counts=row.id not in books.excused,
            products=tuple(row.named),
        )
        for row in sorted(rows, key=lambda each: each.id)
    )


def tenants_of(tenant_ids: Collection[uuid.UUID], *, and_holders: bool = False) -> dict[uuid.UUID, TenantView]:
    """Quota of some tenants (``and_holders``: and of all who hold something) with what they hold."""
    return _tenants(_books(), _terms(), tenant_ids, and_holders=and_holders)


def _terms() -> list[TenantQuota]:
    with scope.all_tenants():
        return list(TenantQuota.objects.select_related("group"))


def _tenants(
    books: _Books, every: Collection[TenantQuota], tenant_ids: Collection[uuid.UUID], *, and_holders: bool
) -> dict[uuid.UUID, TenantView]:
    wanted = {*tenant_ids, *(books.owners.values() if and_holders else ())}
    rows = {row.tenant_id: row for row in every}
    found = {}
    for tenant_id in wanted:
        terms = rows.get(tenant_id) or TenantQuota(tenant_id=tenant_id, **defaults())
        size, gpus = _line(terms, "hbm_bytes"), _line(terms, "gpu_millis")
        passing = books.passing.get(tenant_id, (0, 0))
        found[tenant_id] = TenantView(
            id=tenant_id, guaranteed_bytes=size[0], limit_bytes=size[1], held_bytes=books.bytes_of.get(tenant_id, 0),
            guaranteed_millis=gpus[0], limit_millis=gpus[1], held_millis=books.millis_of.get(tenant_id, 0),
            weight=terms.over_quota_weight, passing_bytes=passing[0], passing_millis=passing[1], group=terms.group_id,
        )  # fmt: skip
    return found


def _line(terms: TenantQuota, name: str) -> tuple[int, int]:
    """Guarantee and limit of one kind, without what the group leaves now."""
    own, group = Amount.limit(getattr(terms, name)), terms.group
    firm = Amount.limit(getattr(terms, f"guaranteed_{name}"))
    if not firm.unlimited:
        firm = firm.least(own).least(Amount.limit(getattr(group, name)) if group is not None else UNLIMITED)
    return firm.as_number(), own.as_number()


def _groups(books: _Books, every: Collection[TenantQuota]) -> dict[uuid.UUID, GroupView]:
    """The groups that have tenants, with what those hold together."""
    found: dict[uuid.UUID, GroupView] = {}
    for terms in every:
        if terms.group is None:
            continue
        group, member = terms.group, terms.tenant_id
        so_far = found.get(group.id) or GroupView(
            id=group.id, limit_bytes=group.hbm_bytes, limit_millis=group.gpu_millis
        )
        held = so_far.holding(books.bytes_of.get(member, 0), books.millis_of.get(member, 0))
        found[group.id] = held.ending(*books.passing.get(member, (0, 0)))
    return found


def _isolations(on: Collection[uuid.UUID] | None = None) -> dict[uuid.UUID, Counter[str]]:
    """How often and in which ways each device (``on``: of some) that somebody holds is held."""
    found: dict[uuid.UUID, Counter[str]] = {}
    rows = Partition.objects.order_by()
    if on is not None:
        rows = rows.filter(device_id__in=on)
    for device_id, isolation, count in rows.values_list("device_id", "isolation").annotate(count=Count("id")):
        found.setdefault(device_id, Counter())[isolation] += count
    return found


def _stored(wanted: Collection[str]) -> dict[uuid.UUID, frozenset[str]]:
    if not wanted:
        return {}
    asked = frozenset(wanted)
    rows = Node.objects.filter(stored_sha256__overlap=sorted(asked)).values_list("id", "stored_sha256")
    return {node_id: asked.intersection(kept) for node_id, kept in rows}


def _replica_counts() -> dict[uuid.UUID, dict[uuid.UUID, int]]:
    """Per node, how many replicas of each deployment it has something of."""
    found: dict[uuid.UUID, dict[uuid.UUID, int]] = {}
    with scope.all_tenants():
        rows = Replica.objects.exclude(node=None).exclude(state=ReplicaState.STOPPED).order_by()
        placed = rows.values_list("node_id", "deployment_id").annotate(count=Count("id"))
        for node_id, deployment_id, count in placed:
            found.setdefault(node_id, {})[deployment_id] = count
        beside = Member.objects.filter(gone=False).exclude(node_id=F("replica__node_id")).order_by()
        for node_id, deployment_id in beside.values_list("node_id", "replica__deployment_id"):
            counts = found.setdefault(node_id, {})
            counts[deployment_id] = counts.get(deployment_id, 0) + 1
    return found
