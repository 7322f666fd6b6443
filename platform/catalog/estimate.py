"""What a replica will need, before anything has run (pure). Measured peaks replace these numbers once they exist.

- weights: parameters x bytes of the dtype, or as ``holding`` says where they are quantized (whatever the file holds is
  brought into that when it is loaded); layers that wait in host memory are there instead, but for one at a time;
- KV per token: 2 x layers x kv_heads x head_dim x bytes, or one byte and a scale per head; of latent attention
  layers x what it keeps x bytes;
- workspace: the larger of one step's activations and its logits, which never live at the same time; the attention mask
  of a full step over the longest sequence; rotary tables; a copy of one layer's pages, padded; library scratch;
- context: what a process costs on a device before the first byte of the model;
- a graph (ONNX) has its weights in the types of the file and no KV cache; its workspace is what an arena holds that
  grows in powers of two, up to twice the values that live at the same time, or its largest weight on its way there;
- headroom: an engine keeps its level below the critical watermark, so what lies above it must be there too.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

from catalog import graphs, holding
from catalog.configs import DTYPE_BYTES
from catalog.holding import Shape, kv_bytes_per_token

MIB: Final = 1024**2
# Interpreter, torch and its thread pools on a CPU; driver context and kernels on a GPU.
CONTEXT_BYTES: Final[Mapping[str, int]] = {"cpu": 400 * MIB, "cuda": 600 * MIB, "simulated": 600 * MIB}
# A process that runs a graph has no torch: interpreter, HTTP and the runtime's library on a CPU.
GRAPH_CONTEXT_BYTES: Final[Mapping[str, int]] = {**CONTEXT_BYTES, "cpu": 128 * MIB}
# What matrix libraries keep for themselves.
SCRATCH_BYTES: Final[Mapping[str, int]] = {"cpu": 64 * MIB, "cuda": 256 * MIB, "simulated": 256 * MIB}
# A GPU replica's process on the host: interpreter, torch, and one shard of weights on its way to the device.
HOST_PROCESS_BYTES: Final = 1536 * MIB
_RESIDUAL_STREAMS: Final = 4  # hidden states that live beside the MLP's: input, residual, normed, attention output
# Recorded steps of single tokens keep logits, and hidden states, in memory of their own; 16-bit numbers only.
_RECORDED_ROWS: Final = 256
_RECORDED_LOGIT_BYTES: Final = 10
_WIDE: Final = 4
_LOGIT_COPY_BYTES: Final = 8  # the sampler works on a float32 copy and sorts another
_MASK_BYTES: Final = 5  # one truth value and one float32 per query and key
_TABLE_BYTES: Final = 8  # a sine and a cosine in float32 per position and dimension
_SCORES: Final = 1 << 22  # bounded scores are written out, at most so many at a time
_UNPACKED_COPIES: Final = 2  # a weight of few bits on its way to the product, where no product reads it packed
_VISIT_COPIES: Final = 4
_ARENA_COPIES: Final = 2
_GATHER_PADDING: Final = 2  # sequences read together are padded to the longest, at most twice the shortest


class VersionFacts(Protocol):
    """What is read of a model version."""

    @property
    def parameters(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def metadata(self) -> Any: ...


class Config(Protocol):
    """What is read of a serving config (a row, or ``configs.Settings``)."""

    @property
    def dtype(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def kv_block_tokens(self) -> int: ...
    @property
    def kv_cache_bytes(self) -> int: ...
    @property
    def watermark_critical(self) -> float: ...
    @property
    def quantization(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def offload_layers(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes of one replica on its device. ``kv_floor_bytes`` is the least KV cache it can work with.

    ``max_model_len`` is in tokens; ``host_memory_bytes`` is what its process takes of the node's memory.
    ``transfer_bytes`` are copied from host memory to the device in every step, whatever its batch: at 25 GB/s (PCIe 4,
    sixteen lanes) each GB adds 40 ms to a step.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    kv_floor_bytes: int
    workspace_bytes: int
    context_bytes: int
    headroom_bytes: int
    host_memory_bytes: int
    max_model_len: int
    transfer_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes that must be free on the device."""
        parts = self.weights_bytes + self.kv_floor_bytes + self.workspace_bytes + self.context_bytes
        return parts + self.headroom_bytes

    def as_dict(self) -> dict[str, int]:
        """All fields and the total, for JSON."""
        return {**dataclasses.asdict(self), "total_bytes": self.total_bytes}


def estimate(version: VersionFacts, config: Config, *, device_kind: str = "cpu") -> Estimate:
    """Estimate a replica of ``version`` under ``config`` on a device of ``device_kind`` (cpu, cuda, simulated).

    Raises:
        KeyError, TypeError, ValueError: a size is missing from the version's facts, or is none.
    """
    if is_graph(version):
        return estimate_graph(version.metadata, config, device_kind=device_kind)
    return estimate_shape(shape_of(version), config, max_positions=version.max_model_len, device_kind=device_kind)


def is_graph(version: VersionFacts) -> bool:
    """True for a model that is one graph: it has neither layers nor a KV cache."""
    return "activation_terms" in version.metadata


def shape_of(version: VersionFacts) -> Shape:
    """The shape that the check wrote into ``version.metadata``; what older checks did not write has its default.

    Raises:
        TypeError, ValueError: a size is missing, or is none.
    """
    stated = {**version.metadata, "parameters": version.parameters}
    stated.setdefault("architecture", getattr(version, "architecture", None))
    stated.setdefault("int4_group", holding.int4_group(version.metadata.get("weight_types") or {}))
    fields = [field for field in dataclasses.fields(Shape) if stated.get(field.name) is not None]
    return Shape(**{field.name: _of_type(field.type, stated[field.name]) for field in fields})


def _of_type(kind: Any, value: Any) -> Any:
    return kind(value)


def estimate_shape(shape: Shape, config: Config, *, max_positions: int, device_kind: str = "cpu") -> Estimate:
    """The arithmetic behind :func:`estimate`. ``max_positions`` is the longest sequence the model allows."""
    width = DTYPE_BYTES[config.dtype]
    per_token = kv_bytes_per_token(shape, width, config.kv_dtype)
    length = min(config.max_model_len or max_positions, max_positions)
    blocks = math.ceil(length / config.kv_block_tokens)
    floor = config.kv_cache_bytes or blocks * config.kv_block_tokens * per_token
    kernels = device_kind == "cpu" and config.dtype == "float32"
    weights = holding.weights_bytes(shape, width, config.quantization, kernels=kernels)
    layer, transfer = _offloaded(shape, config, width, device_kind)
    weights -= transfer
    workspace = workspace_bytes(shape, width, config.max_num_batched_tokens, config.max_num_seqs)
    copied = floor * kv_bytes_per_token(shape, width) // per_token + (floor if config.kv_dtype != "same" else 0)
    workspace += attention_bytes(shape, config.max_num_batched_tokens, length, copied) + SCRATCH_BYTES[device_kind]
    if shape.capped_scores:
        workspace += max(_SCORES, shape.heads * length) * (2 * width + 4)
    if device_kind != "cpu" and config.quantization not in ("none", "int8", "fp8"):
        workspace += holding.largest_matrix(shape) * width * _UNPACKED_COPIES
    if device_kind == "cuda" and width < _WIDE:
        rows = min(config.max_num_seqs, _RECORDED_ROWS)
        workspace += rows * (shape.vocab_size * _RECORDED_LOGIT_BYTES + shape.hidden_size * _RESIDUAL_STREAMS * width)
    workspace += layer
    context = CONTEXT_BYTES[device_kind]
    parts = weights + floor + workspace + context
    headroom = math.ceil(parts / config.watermark_critical) - parts
    return Estimate(
        weights_bytes=weights,
        kv_bytes_per_token=per_token,
        kv_floor_bytes=floor,
        workspace_bytes=workspace,
        context_bytes=context,
        headroom_bytes=headroom,
        host_memory_bytes=parts + headroom if device_kind == "cpu" else HOST_PROCESS_BYTES + transfer,
        max_model_len=length,
        transfer_bytes=transfer,
    )


def estimate_graph(metadata: Mapping[str, Any], config: Config, *, device_kind: str = "cpu") -> Estimate:
    """What a graph needs by its header (``formats.facts.GraphFacts``), for batches of ``max_num_seqs`` rows.

    Open dimensions that are not the batch have ``max_model_len`` elements, or ``graphs.DEFAULT_LENGTH``.
    """
    weights = sum(int(each) for each in metadata["weight_types"].values())
    terms = graphs.unpacked(metadata["activation_terms"])
    length = config.max_model_len or graphs.DEFAULT_LENGTH
    living = graphs.bytes_of(terms, batch=config.max_num_seqs, length=length)
    workspace = max(living * _ARENA_COPIES, int(metadata["largest_weight_bytes"])) + SCRATCH_BYTES[device_kind]
    context = GRAPH_CONTEXT_BYTES[device_kind]
    parts = weights + workspace + context
    headroom = math.ceil(parts / config.watermark_critical) - parts
    return Estimate(
        weights_bytes=weights,
        kv_bytes_per_token=0,
        kv_floor_bytes=0,
        workspace_bytes=workspace,
        context_bytes=context,
        headroom_bytes=headroom,
        host_memory_bytes=parts + headroom if device_kind == "cpu" else HOST_PROCESS_BYTES,
        max_model_len=0,
    )


def _offloaded(shape: Shape, config: Config, width: int, device_kind: str) -> tuple[int, int]:
    """Bytes of one layer that waits in host memory, and of all of them, which are copied in each step."""
    layers = min(config.offload_layers, shape.layers)
    if device_kind == "cpu" or not layers:
        return 0, 0
    each = holding.layer_bytes(shape, width, config.quantization)
    return each, layers * each


def workspace_bytes(shape: Shape, width: int, batched_tokens: int, seqs: int) -> int:
    """Peak of one step: gate, up and their product beside the residual streams; or the logits and the sampler.

    Experts get a row for each visit, sorted, and their answers are put back into order.
    """
    mlp = 3 * shape.intermediate_size
    if shape.sparse_layers:
        visits = _VISIT_COPIES * shape.experts_per_token * shape.hidden_size
        mlp = max(mlp, 3 * max(shape.expert_size, shape.shared_size) + visits)
    attention = holding.attention_values(shape)
    activations = batched_tokens * (max(mlp, attention) + _RESIDUAL_STREAMS * shape.hidden_size) * width
    logits = min(seqs, batched_tokens) * shape.vocab_size * (width + _LOGIT_COPY_BYTES)
    return max(activations, logits)


def attention_bytes(shape: Shape, batched_tokens: int, length: int, kv_bytes: int) -> int:
    """Beside the step itself: mask over ``length`` keys, rotary tables, and one layer's pages read through a copy."""
    mask = batched_tokens * length * _MASK_BYTES
    tables = length * shape.head_dim * _TABLE_BYTES
    return mask + tables + kv_bytes * _GATHER_PADDING // shape.layers
