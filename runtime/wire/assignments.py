"""What a node should run: desired state, control plane to agent."""

import enum

import msgspec

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


class DeviceGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a device that a replica may use."""

    uuid: str
    memory_bytes: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Serving config as the engine reads it. Limits are per replica; 0 means "let the engine decide"."""

    engine: str = "causal"
    dtype: str = "float32"
    quantization: str = "none"
    max_model_len: int = 0
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_waiting: int = 256
    kv_block_tokens: int = 16
    kv_cache_bytes: int = 0
    enable_prefix_cache: bool = True
    num_threads: int = 0
    watermarks: Watermarks = Watermarks()


class ReplicaAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """One replica on this node. ``generation`` belongs to the replica; the agent refuses an older one.

    ``token`` is the bearer secret of the engine's port; only gateways and the agent know it.
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


class NodeAssignments(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the node should run. A replica that is absent is to be stopped.

    ``generation`` belongs to the node and rises with every change; an agent refuses one that is older than the
    newest it has applied.
    """

    node_id: str
    generation: int
    replicas: list[ReplicaAssignment]
    protocol: ProtocolVersion = CURRENT
