"""What a node should run, from the rows, in one consistent read."""

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db.models import Q

from catalog.models import Revision, ServingConfig, VersionFile
from dispatch import consistent
from fleet import cutting
from fleet.models import Device, Node, Partition
from kernel import scope
from ledger import generations
from runtime.wire.assignments import (
    ArtifactRef,
    Desired,
    DeviceGrant,
    EngineConfig,
    NodeAssignments,
    ReplicaAssignment,
    Share,
    World,
)
from runtime.wire.devices import MigLayout, MigPlacement
from runtime.wire.memory import Watermarks
from serving.models import Member, Replica
from serving.states import RUNNING_ON_NODE, ReplicaState

_ON_NODE = RUNNING_ON_NODE | {ReplicaState.DRAINING}


def read_assignments(node: Node) -> NodeAssignments:
    """Everything ``node`` should run, with the counter that stands for exactly this."""
    with consistent.reading(), scope.all_tenants():
        generation = generations.current(generations.of_node(node.id))
        layouts = [_layout(row) for row in cutting.wanted_of(node.id)]
        rows = list(
            Replica.objects.select_related(
                "deployment__endpoint", "deployment__revision__version", "deployment__revision__serving_config"
            )
            .filter(_runs_on(node), state__in=_ON_NODE)
            .defer("log_tail", "ledger", "stats", "explanation")
            .order_by("id")
        )
        grants = _grants(node, [row.id for row in rows])
        leading = {row.node_id for row in rows if row.parallel and row.node_id is not None}
        leaders = Node.objects.filter(id__in=leading) if leading else Node.objects.none()
        hosts = {leader.id: leader.rank_address or leader.data_address for leader in leaders}
        files = _files({row.deployment.revision.version_id for row in rows})
    replicas = [
        _assignment(
            row,
            grants.get(row.id, []),
            files.get(row.deployment.revision.version_id, []),
            hosts.get(row.node_id, "") if row.node_id else "",
        )
        for row in rows
    ]
    return NodeAssignments(node_id=str(node.id), generation=generation, replicas=replicas, layouts=layouts)


def _runs_on(node: Node) -> Q:
    """Replicas of which ``node`` runs something: the first ranks, or others beside another node."""
    beside = Member.objects.filter(node=node, gone=False).values("replica_id")
    ended = Member.objects.filter(node=node, gone=True).values("replica_id")
    return Q(node=node) & ~Q(id__in=ended) | Q(id__in=beside)


def _layout(row: Device) -> MigLayout:
    placements = [MigPlacement(profile_id=profile, start=start) for profile, start in row.layout or ()]
    return MigLayout(device_uuid=row.uuid, generation=row.layout_generation, placements=placements)


def holds_file(node: Node, sha256: str) -> bool:
    """True when a replica on ``node`` needs the file: a node gets the bytes of nothing else."""
    with scope.all_tenants():
        versions = Replica.objects.filter(_runs_on(node), state__in=_ON_NODE).values("deployment__revision__version")
        return VersionFile.objects.filter(version__in=versions, artifact_id=sha256).exists()


def desired_of(row: Replica) -> Desired:
    """What should become of a replica on its node (pure)."""
    if row.state == ReplicaState.DRAINING:
        return Desired.DRAIN
    return Desired.STOP if row.recalled else Desired.RUN


class _Rank(NamedTuple):
    """One rank on a node: what it may use of a device, and what it was promised of host memory."""

    number: int
    grant: DeviceGrant
    host_bytes: int


def _assignment(row: Replica, ranks: Sequence[_Rank], files: Sequence[ArtifactRef], leader: str) -> ReplicaAssignment:
    """One replica for its node. A number of threads that was asked for is a limit; the default is none."""
    revision: Revision = row.deployment.revision
    return ReplicaAssignment(
        replica_id=str(row.id),
        generation=row.generation,
        desired=desired_of(row),
        deployment_id=str(row.deployment_id),
        revision_id=str(revision.id),
        tenant_id=str(row.tenant_id),
        served_name=row.deployment.endpoint.name,
        format=revision.version.format,
        artifacts=list(files),
        devices=[rank.grant for rank in ranks],
        config=engine_config(revision.serving_config),
        token=row.token,
        drain_seconds=row.deployment.drain_seconds,
        host_memory_bytes=sum(rank.host_bytes for rank in ranks),
        millicpus=revision.serving_config.num_threads * 1000,
        world=_world(row.parallel, [rank.number for rank in ranks], leader),
    )


def _world(parallel: Mapping[str, int], ranks: list[int], leader: str) -> World | None:
    """How the ranks divide the work, and where they meet; ``None`` on one device (pure)."""
    if not parallel:
        return None
    tensor, pipeline, expert = parallel["tensor"], parallel["pipeline"], parallel["expert"]
    return World(
        size=max(tensor, expert) * pipeline,
        ranks=ranks,
        leader=f"{leader}:{parallel['port']}",
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
    )


def engine_config(config: ServingConfig) -> EngineConfig:
    """A serving config as engines read it (pure)."""
    return EngineConfig(
        engine=config.engine,
        dtype=config.dtype,
        quantization=config.quantization,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_waiting=config.max_waiting,
        kv_block_tokens=config.kv_block_tokens,
        kv_cache_bytes=config.kv_cache_bytes,
        enable_prefix_cache=config.enable_prefix_cache,
        num_threads=config.num_threads,
        tenant_kv_share=config.tenant_kv_share,
        queue_timeout_seconds=config.queue_timeout_seconds,
        sleep_after_seconds=config.sleep_after_seconds,
        kv_dtype=config.kv_dtype,
        offload_layers=config.offload_layers,
        watermarks=Watermarks(low=config.watermark_low, high=config.watermark_high, critical=config.watermark_critical),
    )


def _grants(node: Node, replica_ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, list[_Rank]]:
    """By replica, its ranks on ``node`` with what each may use."""
    found: dict[uuid.UUID, list[_Rank]] = {}
    held = Partition.objects.select_related("device__parent").filter(replica_id__in=replica_ids)
    rows = held.filter(device__node=node).order_by("rank")
    for row in rows:
        whole = row.device.parent or row.device
        instance = row.device.uuid if row.device.parent_id else ""
        share = Share(row.isolation)
        grant = DeviceGrant(
            uuid=whole.uuid,
            memory_bytes=row.memory_bytes,
            share=share,
            mig_uuid=instance,
            thread_percentage=row.thread_percentage,
        )
        found.setdefault(row.replica_id, []).append(_Rank(row.rank, grant, row.host_bytes))
    return found


def _files(version_ids: set[uuid.UUID]) -> Mapping[uuid.UUID, list[ArtifactRef]]:
    found: dict[uuid.UUID, list[ArtifactRef]] = {}
    rows = VersionFile.objects.filter(version_id__in=version_ids).exclude(artifact=None).order_by("path")
    for version_id, path, sha256, size in rows.values_list("version_id", "path", "sha256", "size"):
        found.setdefault(version_id, []).append(ArtifactRef(path=path, sha256=sha256, size=size))
    return found
