"""What a node should run: desired state, control plane to agent."""

import enum

import msgspec

from runtime.wire.devices import MigLayout
from runtime.wire.memory import Watermarks
from runtime.wire.version import CURRENT, ProtocolVersion


class Desired(enum.StrEnum):
    """What should become of a replica on its node."""

    RUN = "run"
    DRAIN = "drain"  # finish what runs, take nothing new, then stop
    STOP = "stop"  # end now


class ArtifactRef(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model version. ``path`` is relative, checked at upload, and checked again by the agent."""

    path: str
    sha256: str
    size: int


class Share(enum.StrEnum):
    """How strictly a grant is kept apart from what else runs on the device."""

    EXCLUSIVE = "exclusive"  # the whole device
    MIG = "mig"  # a hardware wall
    MPS = "mps"  # a limit that the driver keeps
    COOPERATIVE = "cooperative"  # a cap that the engine keeps by itself


class DeviceGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a device that a replica may use.

    ``uuid`` names the device. A ``mig`` grant names its instance by ``mig_uuid``, as the node reported it.
    ``thread_percentage`` bounds an ``mps`` grant's share of the multiprocessors (0: no bound).
    """

    uuid: str
    memory_bytes: int
    share: Share = Share.EXCLUSIVE
    mig_uuid: str = ""
    thread_percentage: int = 0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Serving config as the engine reads it. Limits are per replica; 0 means "let the engine decide".

    ``tenant_kv_share`` is the largest fraction of the KV pool that one tenant may hold (1.0: all of it).
    ``queue_timeout_seconds`` ends a request that has waited so long for its first slot (0: never).
    After ``sleep_after_seconds`` without a request the engine gives its device back until the next one (0: never).
    ``kv_dtype`` is how keys and values are held (same, int8, fp8); the last ``offload_layers`` layers of the model
    wait in host memory and are copied to the device in every step.
    """

    engine: str = "causal"
    dtype: str = "float32"
    quantization: str = "none"
    max_model_len: int = 0
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    max_waiting: int = 256
    kv_block_tokens: int = 16
    kv_cache_bytes: int = 0
    enable_prefix_cache: bool = True
    num_threads: int = 0
    tenant_kv_share: float = 1.0
    queue_timeout_seconds: float = 0.0
    sleep_after_seconds: float = 0.0
    kv_dtype: str = "same"
    offload_layers: int = 0
    watermarks: Watermarks = Watermarks()


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a replica that runs on several devices, perhaps of several nodes.

    ``ranks`` are this node's, in the order of its ``devices``. They are numbered stage by stage: ``pipeline`` stages of
    ``tensor`` x ``expert`` ranks. Rank 0 takes the requests; all meet at ``leader``, a ``host:port`` of its node, where
    those of other nodes prove by the replica's token what they are.
    """

    size: int
    ranks: list[int]
    leader: str
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def leads(self) -> bool:
        """True on the node of rank 0."""
        return 0 in self.ranks

    @property
    def alone(self) -> bool:
        """True when all ranks are on this node."""
        return len(self.ranks) == self.size

    @property
    def leader_host(self) -> str:
        """The address of ``leader`` without its port."""
        return self.leader.rpartition(":")[0]


class ReplicaAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """One replica on this node. ``generation`` belongs to the replica; the agent refuses an older one.

    ``token`` is the bearer secret of the engine's port; only gateways and the agent know it.
    ``host_memory_bytes`` and ``millicpus`` are what the replica may use of the machine beside its devices; where the
    host allows it they are enforced (0: no limit). ``world`` is ``None`` for a replica on one device.
    """

    replica_id: str
    generation: int
    desired: Desired
    deployment_id: str
    revision_id: str
    tenant_id: str
    served_name: str
    format: str  # "huggingface" or "gguf"
    artifacts: list[ArtifactRef]
    devices: list[DeviceGrant]
    config: EngineConfig
    token: str
    drain_seconds: int = 30
    backoff_seconds: float = 0.0
    host_memory_bytes: int = 0
    millicpus: int = 0
    world: World | None = None


class NodeAssignments(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the node should run. A replica that is absent is to be stopped.

    ``generation`` belongs to the node and rises with every change; an agent refuses one that is older than the
    newest it has applied. A GPU that is absent in ``layouts`` is left as it is.
    """

    node_id: str
    generation: int
    replicas: list[ReplicaAssignment]
    layouts: list[MigLayout] = []
    protocol: ProtocolVersion = CURRENT
