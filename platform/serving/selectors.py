"""Reads of this room, for REST, console, gateways' tables and other rooms."""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from django.db.models import Case, Count, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum, UUIDField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform

from fleet.holders import Holder
from fleet.models import Device, Partition
from kernel import scope
from kernel.isolation import Isolation
from quotas import usage, weights
from quotas.amount import Amount, Kind
from serving import conditions, leaving
from serving.conditions import Facts, Health
from serving.models import Deployment, Endpoint, Grant, Replica
from serving.states import DeploymentState, ReplicaState
from tenants.models import Tenant


@dataclasses.dataclass(frozen=True)
class CallableEndpoint:
    """A name that a tenant may call. ``model`` is what goes into the request."""

    endpoint: Endpoint
    model: str
    owner: Tenant
    own: bool
    health: Health


@dataclasses.dataclass(frozen=True)
class PlacedReplica:
    """A replica with its partitions (and their devices); none while it has no place."""

    replica: Replica
    partitions: tuple[Partition, ...]

    @property
    def device(self) -> Partition | None:
        """The first rank's partition."""
        return self.partitions[0] if self.partitions else None


@dataclasses.dataclass(frozen=True)
class DeploymentDetail:
    """Everything that is shown of one deployment."""

    deployment: Deployment
    health: Health
    replicas: tuple[PlacedReplica, ...]


def endpoints_of(tenant: Tenant) -> "QuerySet[Endpoint]":
    """Endpoints of ``tenant`` with deployments (and their replicas) and grants at hand, newest first."""
    with scope.tenant(tenant.id):
        deployments = _with_replicas(
            Deployment.objects.select_related("revision__model", "revision__version").order_by("id")
        )
        grants = Grant.objects.select_related("tenant").order_by("id")
        return Endpoint.objects.prefetch_related(
            Prefetch("deployments", deployments), Prefetch("grants", grants)
        ).order_by("-id")


def grants_of(endpoint: Endpoint) -> "QuerySet[Grant]":
    """To whom the endpoint is granted, newest first."""
    with scope.tenant(endpoint.tenant_id):
        return Grant.objects.select_related("tenant").filter(endpoint=endpoint).order_by("-id")


def deployments_of(tenant: Tenant, *, bare: bool = False) -> "QuerySet[Deployment]":
    """Deployments of ``tenant`` with endpoint, revision and replicas at hand, newest first.

    ``bare``: of the replicas only what their states say.
    """
    with scope.tenant(tenant.id):
        return _with_replicas(
            Deployment.objects.select_related(
                "endpoint", "revision__model", "revision__version", "revision__serving_config", "revision__runtime"
            ).order_by("-id"),
            *(_NUMBERS if bare else ()),
        )


def deployment_count(tenant: Tenant) -> int:
    """How many deployments ``tenant`` has."""
    with scope.tenant(tenant.id):
        return Deployment.objects.count()


def named_deployments(tenant: Tenant, limit: int) -> list[tuple[uuid.UUID, str]]:
    """Ids and endpoints' names of the newest ``limit`` deployments, and nothing else of them."""
    with scope.tenant(tenant.id):
        return list(Deployment.objects.order_by("-id").values_list("id", "endpoint__name")[:limit])


#: What no list shows, and what is long.
_LONG: Final = ("log_tail", "node__facts", "node__walls", "node__stored_sha256")
_NUMBERS: Final = ("explanation", "ledger", "stats")


def _with_replicas(rows: "QuerySet[Deployment]", *without: str) -> "QuerySet[Deployment]":
    live = Replica.objects.select_related("node").exclude(state=ReplicaState.STOPPED).defer(*_LONG, *without)
    return rows.prefetch_related(Prefetch("replicas", live.order_by("id")))


def health_of(deployment: Deployment) -> Health:
    """How a deployment from :func:`deployments_of` or :func:`endpoints_of` is going."""
    return _health(deployment, _prefetched(deployment))


def endpoint_health(endpoint: Endpoint) -> Health:
    """How an endpoint from :func:`endpoints_of` is going: its deployments taken together."""
    running = [d for d in _deployments(endpoint) if d.state == DeploymentState.RUNNING]
    if not running:
        return conditions.health(DeploymentState.RUNNING, 0, 0, [])
    replicas = [replica for deployment in running for replica in _prefetched(deployment)]
    return conditions.health(
        DeploymentState.RUNNING,
        sum(d.desired_replicas for d in running),
        max(d.generation for d in running),
        _facts(replicas),
    )


def deployment_detail(deployment: Deployment) -> DeploymentDetail:
    """A deployment with its replicas (stopped ones last) and what they hold."""
    with scope.tenant(deployment.tenant_id):
        rows = list(Replica.objects.select_related("node").filter(deployment=deployment).order_by("id"))
    rows.sort(key=lambda replica: replica.state == ReplicaState.STOPPED)
    return DeploymentDetail(deployment, _health(deployment, rows), tuple(placed(rows)))


def replicas_of(deployment: Deployment) -> "QuerySet[Replica]":
    """Replicas of a deployment with their nodes, newest first."""
    with scope.tenant(deployment.tenant_id):
        return Replica.objects.select_related("node").filter(deployment=deployment).order_by("-id")


def placed(replicas: Iterable[Replica]) -> list[PlacedReplica]:
    """``replicas`` with what they hold; one query."""
    rows = list(replicas)
    held: dict[uuid.UUID, list[Partition]] = {}
    parts = Partition.objects.select_related("device__node").filter(replica_id__in=[row.id for row in rows])
    for part in parts.order_by("rank"):
        held.setdefault(part.replica_id, []).append(part)
    return [PlacedReplica(row, tuple(held.get(row.id, ()))) for row in rows]


def callable_endpoints(tenant: Tenant) -> list[CallableEndpoint]:
    """What ``tenant`` may call: its own endpoints by ``name``, granted ones by ``owner/name``; by that name.

    Deployments, their revisions and replicas are at hand.
    """
    with scope.all_tenants():
        rows = list(
            Endpoint.objects.select_related("tenant")
            .filter(Q(tenant=tenant) | Q(grants__tenant=tenant))
            .distinct()
            .prefetch_related(
                Prefetch(
                    "deployments",
                    _with_replicas(Deployment.objects.select_related("revision__version").order_by("id")),
                )
            )
        )
        found = [
            CallableEndpoint(
                endpoint,
                endpoint.name if endpoint.tenant_id == tenant.id else f"{endpoint.tenant.slug}/{endpoint.name}",
                endpoint.tenant,
                endpoint.tenant_id == tenant.id,
                _health_for(tenant, endpoint),
            )
            for endpoint in rows
        ]
    return sorted(found, key=lambda item: (not item.own, item.model))


def granted_endpoints(tenant: Tenant) -> list[CallableEndpoint]:
    """What other tenants let ``tenant`` call, by the name to call."""
    with scope.all_tenants():
        rows = Endpoint.objects.select_related("tenant").filter(grants__tenant=tenant).exclude(tenant=tenant).distinct()
        whole = rows.prefetch_related(Prefetch("deployments", _with_replicas(Deployment.objects.order_by("id"))))
        found = [
            CallableEndpoint(row, f"{row.tenant.slug}/{row.name}", row.tenant, False, _health_for(tenant, row))
            for row in whole
        ]
    return sorted(found, key=lambda item: item.model)


def _health_for(tenant: Tenant, endpoint: Endpoint) -> Health:
    """Only the owner learns more than whether it answers."""
    health = endpoint_health(endpoint)
    return health if endpoint.tenant_id == tenant.id else conditions.for_callers(health)


def describe_holders(replica_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, Holder]:
    """Who the replicas are that hold partitions, for the fleet's pages (platform admins)."""
    with scope.all_tenants():
        rows = Replica.objects.select_related("tenant", "deployment__endpoint").filter(id__in=replica_ids)
        return {
            row.id: Holder(
                replica_id=row.id,
                tenant=row.tenant.slug,
                endpoint=row.deployment.endpoint.name,
                deployment_id=row.deployment_id,
                state=row.state,
            )
            for row in rows
        }


def wanted_by(tenant_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Replicas that the running deployments of each tenant ask for: what the quota counts."""
    with scope.all_tenants():
        running = Deployment.objects.filter(tenant_id__in=tenant_ids, state=DeploymentState.RUNNING)
        return dict(running.order_by().values_list("tenant_id").annotate(total=Sum("desired_replicas")))


def devices_held(tenant_ids: Collection[uuid.UUID]) -> dict[Kind, dict[uuid.UUID, int]]:
    """Device memory and thousandths of a GPU that the replicas of each tenant hold, by slice: what quotas count."""
    alike = ("owner_id", "device__kind", "device__memory_bytes", "memory_bytes", "isolation", "thread_percentage")
    facts = {
        name: Case(When(device__parent__isnull=False, then=KeyTextTransform(name, "device__facts")))
        for name in ("compute_slices", "of_slices")  # of a GPU that is whole its long facts are not read
    }
    size: Counter[uuid.UUID] = Counter()
    gpus: Counter[uuid.UUID] = Counter()
    with scope.all_tenants():  # replicas are many, kinds of parts are few: every placement asks
        groups = _parts_held(tenant_ids).values(*alike, **facts).annotate(parts=Count("id")).order_by()
        for group in groups:
            millis = part_weight(
                weights.device_millis(group["device__kind"], *_slices(group["compute_slices"], group["of_slices"])),
                *(group[name] for name in ("memory_bytes", "device__memory_bytes", "isolation", "thread_percentage")),
            )
            size[group["owner_id"]] += group["memory_bytes"] * group["parts"]
            gpus[group["owner_id"]] += millis * group["parts"]
    return {Kind.HBM_BYTES: size, Kind.GPU_MILLIS: gpus}


def _parts_held(tenant_ids: Collection[uuid.UUID]) -> QuerySet[Any]:
    """Partitions that replicas of these tenants hold, each with its tenant as ``owner_id``. Needs a scope of all.

    What has to leave by nobody's fault in its tenant does not count: its successor is to find a place within the quota.
    """
    mine = Replica.objects.filter(tenant_id__in=tenant_ids).order_by()
    mine = mine.exclude(id__in=mine.filter(leaving.condition()).values("id"))
    owner: Combinable = Subquery(Replica.objects.filter(id=OuterRef("replica_id")).order_by().values("tenant_id"))
    if len(tenant_ids) == 1:  # every placement asks for one
        owner = Value(next(iter(tenant_ids)), output_field=UUIDField())
    return Partition.objects.filter(replica_id__in=mine.values("id")).annotate(owner_id=owner)


def weighted(part: Partition) -> int:
    """Thousandths of a GPU that a partition (with its device at hand) counts."""
    device = part.device
    return part_weight(
        weights.device_millis(device.kind, *slices_of(device)),
        part.memory_bytes,
        device.memory_bytes,
        part.isolation,
        part.thread_percentage,
    )


def part_weight(of_device: int, memory_bytes: int, device_bytes: int, isolation: str, thread_percentage: int) -> int:
    """Thousandths of a GPU that a part counts, of a device that counts ``of_device`` (pure)."""
    whole = isolation in (Isolation.EXCLUSIVE, Isolation.MIG)
    return weights.part_millis(of_device, memory_bytes, device_bytes, whole=whole, compute=thread_percentage * 10)


def holdings(tenant: Tenant) -> list[usage.Held]:
    """What each deployment of ``tenant`` holds of devices."""
    with scope.tenant(tenant.id):
        replicas = Replica.objects.select_related("deployment__endpoint").exclude(state=ReplicaState.STOPPED)
        rows = {row.id: row.deployment for row in replicas.defer("log_tail", "explanation", "ledger", "stats")}
    found: dict[uuid.UUID, dict[Kind, int]] = {}
    for part in Partition.objects.select_related("device").filter(replica_id__in=rows):
        amounts = found.setdefault(rows[part.replica_id].id, {Kind.GPU_MILLIS: 0, Kind.HBM_BYTES: 0})
        amounts[Kind.GPU_MILLIS] += weighted(part)
        amounts[Kind.HBM_BYTES] += part.memory_bytes
    deployments = {deployment.id: deployment for deployment in rows.values()}
    return [
        usage.Held(
            label=deployments[key].endpoint.name,
            priority=deployments[key].rank,
            amounts={kind: Amount.of(number) for kind, number in amounts.items()},
        )
        for key, amounts in found.items()
    ]


def slices_of(device: Device) -> tuple[int, int]:
    """Compute slices of a MIG instance and of the GPU it is cut from; (0, 7) for a device that is whole."""
    return _slices(device.facts.get("compute_slices"), device.facts.get("of_slices"))


def _slices(compute: int | str | None, of: int | str | None) -> tuple[int, int]:
    return int(compute or 0), int(of or weights.SLICES)


def replica_counts(tenant: Tenant) -> dict[str, int]:
    """How many replicas of ``tenant`` are in each state, for the home page."""
    with scope.tenant(tenant.id):
        rows = Replica.objects.exclude(state=ReplicaState.STOPPED).values_list("state").annotate(count=Count("id"))
        return dict(rows)


def replicas_by_tenant() -> dict[uuid.UUID, int]:
    """How many replicas each tenant has that are not stopped; one query."""
    with scope.all_tenants():
        rows = Replica.objects.exclude(state=ReplicaState.STOPPED).order_by()
        return dict(rows.values_list("tenant_id").annotate(count=Count("id")))


def _health(deployment: Deployment, replicas: Iterable[Replica]) -> Health:
    return conditions.health(deployment.state, deployment.desired_replicas, deployment.generation, _facts(replicas))


def _facts(replicas: Iterable[Replica]) -> list[Facts]:
    return [Facts(ReplicaState(replica.state), replica.reason, replica.message) for replica in replicas]


def _deployments(endpoint: Endpoint) -> list[Deployment]:
    with scope.tenant(endpoint.tenant_id):
        return list(endpoint.deployments.all())


def _prefetched(deployment: Deployment) -> list[Replica]:
    with scope.tenant(deployment.tenant_id):
        return list(deployment.replicas.all())
