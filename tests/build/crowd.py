"""A tenant with very much of everything, written straight to the tables: what pages must bear."""

import secrets
from typing import Any

from fleet.models import Device, DeviceKind, Isolation, Node, Partition
from kernel import clock, ids, scope
from kernel.actors import Actor
from serving.models import Deployment, Endpoint, Replica
from serving.services import deploy_version
from serving.states import ReplicaState
from tenants.models import ApiKey, KeyScope, Tenant
from tests.build import catalog
from tests.build.rollouts import ledger

GIB = 1024**3
PER_NODE = 8


def crowd(tenant: Tenant, actor: Actor, *, deployments: int, replicas: int, keys: int) -> None:
    """``replicas`` serving replicas in each of ``deployments`` behind endpoints of their own, on GPUs; and keys."""
    now = clock.now()
    version = catalog.checked_version(tenant, model=catalog.make_model(tenant, "crowded", actor))
    first = deploy_version(
        actor=actor, tenant=tenant, endpoint_name="crowd-0", model="crowded", version=version.number, config={},
        replicas=1,
    )  # fmt: skip
    with scope.tenant(tenant.id):
        Replica.objects.filter(deployment=first).delete()
        endpoints = [
            Endpoint(tenant=tenant, name=f"crowd-{number}", created_at=now) for number in range(1, deployments)
        ]
        Endpoint.objects.bulk_create(endpoints)
        made = [first] + [
            Deployment(
                tenant=tenant, endpoint=endpoint, revision=first.revision, state_changed_at=now,
                desired_replicas=replicas, created_at=now, created_by="crowd",
            )
            for endpoint in endpoints
        ]  # fmt: skip
        Deployment.objects.bulk_create(made[1:])
        placed = _placed(deployments * replicas)
        rows = [
            Replica(
                tenant=tenant, deployment=one, state=ReplicaState.READY, state_changed_at=now, token="x" * 43,
                created_at=now, node=placed[index * replicas + number].node, ledger=ledger(0.3), observed_at=now,
                stats={"num_requests_running": 3, "max_num_seqs": 32, "tokens_per_second": 40.0},
            )
            for index, one in enumerate(made)
            for number in range(replicas)
        ]  # fmt: skip
        Replica.objects.bulk_create(rows, batch_size=500)
        Partition.objects.bulk_create(
            [
                Partition(
                    device=device, isolation=Isolation.EXCLUSIVE, memory_bytes=device.memory_bytes, created_at=now,
                    replica_id=row.id,
                )
                for row, device in zip(rows, placed, strict=True)
            ],
            batch_size=500,
        )  # fmt: skip
        ApiKey.objects.bulk_create([_key(tenant, number, now) for number in range(keys)], batch_size=500)


def _placed(count: int) -> list[Device]:
    now = clock.now()
    nodes = [
        Node(
            name=f"rack-{number:04d}", machine_id=str(ids.new_id()), state="ready", state_changed_at=now,
            created_at=now, cpus=64, memory_bytes=512 * GIB, memory_available_bytes=400 * GIB, last_seen_at=now,
        )
        for number in range(-(-count // PER_NODE))
    ]  # fmt: skip
    Node.objects.bulk_create(nodes, batch_size=500)
    devices = [
        Device(
            node=nodes[number // PER_NODE], uuid=f"GPU-{ids.new_id()}", kind=DeviceKind.CUDA, product="NVIDIA H100",
            memory_bytes=24 * GIB, held_bytes=24 * GIB, memory_used_bytes=12 * GIB, state_changed_at=now,
        )
        for number in range(count)
    ]  # fmt: skip
    return Device.objects.bulk_create(devices, batch_size=500)


def _key(tenant: Tenant, number: int, now: Any) -> ApiKey:
    return ApiKey(
        tenant=tenant, name=f"key-{number:05d}", public_id=secrets.token_hex(6), digest=secrets.token_hex(32),
        scopes=[KeyScope.INFERENCE], last4=f"{number % 10_000:04d}", created_at=now,
    )  # fmt: skip
