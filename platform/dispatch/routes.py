"""The table that gateways serve from, from the rows, in one consistent read."""

import dataclasses
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Prefetch, Q

from dispatch import consistent
from fleet.models import Partition
from fleet.states import ALIVE
from kernel import clock, scope
from ledger import generations
from metering import budgets, prices
from runtime.wire.reports import Phase
from runtime.wire.routes import (
    Budget,
    EndpointEntry,
    KeyEntry,
    RateLimits,
    ReplicaRoute,
    RouteTable,
    Slo,
    TenantEntry,
    TokenPrice,
    Variant,
)
from serving import selectors
from serving.conditions import for_callers
from serving.models import Deployment, Endpoint, Grant, Member, Replica, Sticky
from serving.states import SERVING, STARTING, WAITING_FOR_PLACEMENT, DeploymentState, ReplicaState
from tenants.identity import picking_revisions
from tenants.models import ApiKey, BudgetPeriod, Tenant
from tenants.selectors import live_inference_keys

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_KEEP_SECONDS: Final = 2.0
_building = threading.Lock()
_kept: list[tuple[tuple[int, str], float, RouteTable]] = []  # at most one: stamp, monotonic time, table


def newest_table() -> RouteTable:
    """As :func:`read_table`, built once for all gateways that ask at about the same time (a hint wakes every one).

    Kept for two seconds and while the counter's row is the same, down to the transaction that wrote it. Inside a
    transaction of the caller's nothing is kept: what it has not committed is nobody else's.
    """
    if connection.in_atomic_block:
        return read_table()
    with _building:
        stamp, now = generations.stamp(generations.ROUTES), time.monotonic()
        if _kept and _kept[0][0] == stamp and now - _kept[0][1] < _KEEP_SECONDS:
            return _kept[0][2]
        table = read_table()
        _kept[:] = [(stamp, now, table)] if table.generation == stamp[0] else []
        return table


def console_origins(public_url: str) -> list[str]:
    """Origins of the pages at ``public_url``: one; on the loopback address all its names, for people use either."""
    parts = urlsplit(public_url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    names = _LOOPBACK if host in _LOOPBACK else (host,)
    return [f"{parts.scheme}://{name}{port}" for name in names]


def read_table() -> RouteTable:
    """The whole table, with the counter that stands for exactly this."""
    with consistent.reading(), scope.all_tenants():
        generation = generations.current(generations.ROUTES)
        owners = list(Tenant.objects.order_by("id"))
        found = _endpoints()
        called = called_names(found, owners)
        live_keys = list(live_inference_keys().order_by("id"))
        spent, pickers = _budgets([*owners, *live_keys]), picking_revisions(live_keys)
        price_list = prices.current()
        tenants = [_tenant(row, spent) for row in owners]
        keys = [_key(row, called, spent, picks=row.id in pickers) for row in live_keys]
        endpoints = [_endpoint(row, price_list) for row in found]
    return RouteTable(
        generation=generation,
        issued_at=clock.now().timestamp(),
        key_pepper=settings.KEY_PEPPER.hex(),
        console_origins=console_origins(settings.PUBLIC_URL),
        tenants=tenants,
        keys=keys,
        endpoints=endpoints,
    )


def _endpoints() -> list[Endpoint]:
    dead = Q(device__dead=True) | Q(device__parent__dead=True)
    on_dead_device = Partition.objects.filter(dead, replica_id=OuterRef("id"))
    silent = Member.objects.filter(replica_id=OuterRef("id")).exclude(node__state__in=ALIVE)
    live = (
        Replica.objects.select_related("node")
        .exclude(state=ReplicaState.STOPPED)
        .filter(~Exists(on_dead_device), ~Exists(silent))
        .defer("log_tail", "ledger", "stats", "explanation")
        .order_by("id")
    )
    deployments = (
        Deployment.objects.select_related("revision__version", "revision__serving_config")
        .order_by("id")
        .prefetch_related(Prefetch("replicas", live))
    )
    grants = Grant.objects.exclude(tenant=None).order_by("id")
    return list(
        Endpoint.objects.prefetch_related(Prefetch("deployments", deployments), Prefetch("grants", grants)).order_by(
            "id"
        )
    )


def _budgets(rows: Sequence[Tenant | ApiKey]) -> dict[uuid.UUID, Budget]:
    """The budget of each row that has one, with what the books hold of its period."""
    subjects = budgets.subjects_of(rows, clock.now())
    used = budgets.used(subjects)
    return {
        one.id: Budget(
            limit=one.budget.limit,
            unit=one.budget.unit,
            period="" if one.budget.duration == BudgetPeriod.NONE else one.budget.duration,
            period_start=one.start.timestamp(),
            used=used[one.id],
            blocks=one.budget.blocks,
        )
        for one in subjects
    }


def _tenant(row: Tenant, spent: Mapping[uuid.UUID, Budget]) -> TenantEntry:
    return TenantEntry(
        id=str(row.id),
        slug=row.slug,
        prefix_salt=row.prefix_salt,
        active=row.suspended_at is None,
        limits=_limits(row),
        weight=row.weight,
        budget=spent.get(row.id),
    )


def called_names(endpoints: Sequence[Endpoint], tenants: Sequence[Tenant]) -> dict[tuple[uuid.UUID, str], str]:
    """(caller's tenant, the name it calls an endpoint by) → endpoint id."""
    slugs = {tenant.id: tenant.slug for tenant in tenants}
    names = {(row.tenant_id, row.name): str(row.id) for row in endpoints}
    for row in endpoints:
        for grant in row.grants.all():
            if grant.tenant_id is not None:
                names[(grant.tenant_id, f"{slugs[row.tenant_id]}/{row.name}")] = str(row.id)
    return names


def _key(
    row: ApiKey, called: Mapping[tuple[uuid.UUID, str], str], spent: Mapping[uuid.UUID, Budget], *, picks: bool
) -> KeyEntry:
    """A name that stands for nothing now is passed on as it is: it matches no endpoint, and the list stays a limit."""
    overlap = row.previous_expires_at.timestamp() if row.previous_digest and row.previous_expires_at else 0.0
    return KeyEntry(
        id=str(row.id),
        digest=row.digest,
        tenant_id=str(row.tenant_id),
        expires_at=row.expires_at.timestamp() if row.expires_at else None,
        allowed_endpoints=[called.get((row.tenant_id, name), name) for name in row.allowed_endpoints],
        limits=_limits(row),
        kind=row.kind,
        previous_digest=row.previous_digest or "",
        previous_expires_at=overlap,
        allowed_addresses=list(row.allowed_addresses),
        criticalities=list(row.criticalities),
        budget=spent.get(row.id),
        picks_revision=picks,
    )


def _limits(row: Tenant | ApiKey) -> RateLimits:
    return RateLimits(
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        max_parallel_requests=row.max_parallel_requests,
    )


def _endpoint(row: Endpoint, price_list: prices.PriceList) -> EndpointEntry:
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
        sticky="" if row.sticky == Sticky.NONE else row.sticky,
        slo=Slo(**{name: row.slo.get(name) for name in Slo.__struct_fields__}),
        price=TokenPrice(**dataclasses.asdict(price_list.of(row.id))),
    )


def _variant(deployment: Deployment) -> Variant:
    replicas = list(deployment.replicas.all())
    return Variant(
        deployment_id=str(deployment.id),
        revision_id=str(deployment.revision_id),
        version=deployment.revision.version.number,
        weight=deployment.weight,
        replicas=routable(replicas),
        coming=min(sum(map(_is_coming, replicas)), deployment.desired_replicas),
        revision_number=deployment.revision.number,
    )


def _is_coming(row: Replica) -> bool:
    """Starting, or asking for a place that was not refused: one that no device can take is not worth waiting for."""
    return row.state in STARTING or (row.state == ReplicaState.PENDING and row.reason == WAITING_FOR_PLACEMENT)


def routable(replicas: Sequence[Replica]) -> list[ReplicaRoute]:
    """The replicas that may get traffic: ready or sleeping, on nodes that answer; degraded ones when there is none."""
    reachable = [
        row
        for row in replicas
        if row.state in SERVING and row.address and row.node is not None and row.node.state in ALIVE
    ]
    chosen = [row for row in reachable if row.state != ReplicaState.DEGRADED] or reachable
    return [
        ReplicaRoute(
            replica_id=str(row.id),
            generation=row.generation,
            url=row.address,
            token=row.token,
            node_id=str(row.node_id),
            asleep=row.state == Phase.ASLEEP,
        )
        for row in chosen
    ]


def _max_model_len(deployment: Deployment) -> int:
    revision = deployment.revision
    return revision.serving_config.max_model_len or revision.version.max_model_len
