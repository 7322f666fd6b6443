"""The table that gateways serve from, from the rows, in one consistent read."""

import uuid
from collections.abc import Mapping, Sequence

from django.conf import settings
from django.db.models import Prefetch

from dispatch import consistent
from fleet.states import ALIVE
from kernel import clock, scope
from ledger import generations
from runtime.wire.routes import EndpointEntry, KeyEntry, RateLimits, ReplicaRoute, RouteTable, TenantEntry, Variant
from serving import selectors
from serving.conditions import for_callers
from serving.models import Deployment, Endpoint, Grant, Replica
from serving.states import SERVING, DeploymentState, ReplicaState
from tenants.models import ApiKey, Tenant
from tenants.selectors import live_inference_keys


def read_table() -> RouteTable:
    """The whole table, with the counter that stands for exactly this."""
    with consistent.reading(), scope.all_tenants():
        generation = generations.current(generations.ROUTES)
        owners = list(Tenant.objects.order_by("id"))
        found = _endpoints()
        called = called_names(found, owners)
        tenants = [_tenant(row) for row in owners]
        keys = [_key(row, called) for row in live_inference_keys().order_by("id")]
        endpoints = [_endpoint(row) for row in found]
    return RouteTable(
        generation=generation,
        issued_at=clock.now().timestamp(),
        key_pepper=settings.KEY_PEPPER.hex(),
        console_origins=[settings.PUBLIC_URL],
        tenants=tenants,
        keys=keys,
        endpoints=endpoints,
    )


def _endpoints() -> list[Endpoint]:
    live = (
        Replica.objects.select_related("node")
        .exclude(state=ReplicaState.STOPPED)
        .defer("log_tail", "ledger", "stats", "explanation")
        .order_by("id")
    )
    deployments = (
        Deployment.objects.select_related("revision__version", "revision__serving_config")
        .order_by("id")
        .prefetch_related(Prefetch("replicas", live))
    )
    grants = Grant.objects.order_by("id")
    return list(
        Endpoint.objects.prefetch_related(Prefetch("deployments", deployments), Prefetch("grants", grants)).order_by(
            "id"
        )
    )


def _tenant(row: Tenant) -> TenantEntry:
    return TenantEntry(
        id=str(row.id),
        slug=row.slug,
        prefix_salt=row.prefix_salt,
        active=row.suspended_at is None,
        limits=_limits(row),
    )


def called_names(endpoints: Sequence[Endpoint], tenants: Sequence[Tenant]) -> dict[tuple[uuid.UUID, str], str]:
    """(caller's tenant, the name it calls an endpoint by) → endpoint id."""
    slugs = {tenant.id: tenant.slug for tenant in tenants}
    names = {(row.tenant_id, row.name): str(row.id) for row in endpoints}
    for row in endpoints:
        for grant in row.grants.all():
            names[(grant.tenant_id, f"{slugs[row.tenant_id]}/{row.name}")] = str(row.id)
    return names


def _key(row: ApiKey, called: Mapping[tuple[uuid.UUID, str], str]) -> KeyEntry:
    """A name that stands for nothing now is passed on as it is: it matches no endpoint, and the list stays a limit."""
    return KeyEntry(
        id=str(row.id),
        digest=row.digest,
        tenant_id=str(row.tenant_id),
        expires_at=row.expires_at.timestamp() if row.expires_at else None,
        allowed_endpoints=[called.get((row.tenant_id, name), name) for name in row.allowed_endpoints],
        limits=_limits(row),
        kind=row.kind,
    )


def _limits(row: Tenant | ApiKey) -> RateLimits:
    return RateLimits(
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        max_parallel_requests=row.max_parallel_requests,
    )


def _endpoint(row: Endpoint) -> EndpointEntry:
    running = [item for item in row.deployments.all() if item.state == DeploymentState.RUNNING]
    variants = [_variant(deployment) for deployment in running]
    answering = any(variant.replicas for variant in variants)
    return EndpointEntry(
        id=str(row.id),
        name=row.name,
        tenant_id=str(row.tenant_id),
        granted_tenant_ids=[str(grant.tenant_id) for grant in row.grants.all()],
        created=int(row.created_at.timestamp()),
        max_model_len=min((_max_model_len(deployment) for deployment in running), default=0),
        variants=variants,
        state="" if answering else for_callers(selectors.endpoint_health(row)).sentence,
    )


def _variant(deployment: Deployment) -> Variant:
    return Variant(
        deployment_id=str(deployment.id),
        revision_id=str(deployment.revision_id),
        version=deployment.revision.version.number,
        weight=deployment.weight,
        replicas=routable(list(deployment.replicas.all())),
    )


def routable(replicas: Sequence[Replica]) -> list[ReplicaRoute]:
    """The replicas that may get traffic: ready ones on nodes that answer; degraded ones when there is no ready one."""
    reachable = [
        row
        for row in replicas
        if row.state in SERVING and row.address and row.node is not None and row.node.state in ALIVE
    ]
    chosen = [row for row in reachable if row.state == ReplicaState.READY] or reachable
    return [
        ReplicaRoute(replica_id=str(row.id), generation=row.generation, url=row.address, token=row.token)
        for row in chosen
    ]


def _max_model_len(deployment: Deployment) -> int:
    revision = deployment.revision
    return revision.serving_config.max_model_len or revision.version.max_model_len
