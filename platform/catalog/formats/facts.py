"""What a check finds out, and how it refuses."""

import dataclasses
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Reason(enum.StrEnum):
    """Why a version is rejected. The sentence beside it says what to do."""

    UNSAFE_PATH = "UnsafePath"
    DUPLICATE_PATH = "DuplicatePath"
    UNEXPECTED_FILE = "UnexpectedFile"
    PICKLE_REFUSED = "PickleRefused"
    ARCHIVE_REFUSED = "ArchiveRefused"
    CODE_REFUSED = "CodeRefused"
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    UNKNOWN_FORMAT = "UnknownFormat"
    AMBIGUOUS_FORMAT = "AmbiguousFormat"
    MISSING_CONFIG = "MissingConfig"
    MISSING_TOKENIZER = "MissingTokenizer"
    MISSING_WEIGHTS = "MissingWeights"
    MISSING_SHARD = "MissingShard"
    MISSING_TENSOR = "MissingTensor"
    DAMAGED_FILE = "DamagedFile"
    SIZE_MISMATCH = "SizeMismatch"
    SHAPE_MISMATCH = "ShapeMismatch"
    FILE_TOO_LARGE = "FileTooLarge"
    SPLIT_GGUF = "SplitGguf"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    UNSUPPORTED_ROPE = "UnsupportedRope"
    UNSUPPORTED_VARIANT = "UnsupportedVariant"
    UNSUPPORTED_ACTIVATION = "UnsupportedActivation"
    UNSUPPORTED_TOKENIZER = "UnsupportedTokenizer"
    UNSUPPORTED_QUANTIZATION = "UnsupportedQuantization"
    UNSUPPORTED_TYPE = "UnsupportedType"
    CHECK_FAILED = "CheckFailed"


class Rejected(Exception):
    """The model may not be served."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of the version: its declared ``path`` and ``size``, and where its bytes are."""

    path: str
    size: int
    location: Path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a model is. ``weight_types`` maps storage types to bytes; ``warnings`` are (code, sentence) pairs.

    ``sparse_layers`` layers have ``num_experts`` experts of ``expert_size`` instead of one MLP. ``capped_scores`` says
    that attention scores are bounded, which costs memory.
    """

    format: str
    architecture: str
    parameters: int
    max_model_len: int
    has_chat_template: bool
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    weight_types: dict[str, int]
    tokenizer: str
    rope: str
    sparse_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    capped_scores: bool = False
    title: str = ""
    license: str = ""
    warnings: tuple[tuple[str, str], ...] = ()

    def metadata(self) -> dict[str, Any]:
        """What is stored beside the version's own columns."""
        return _metadata(self)


def _metadata(facts: "Facts | GraphFacts") -> dict[str, Any]:
    columns = {"format", "architecture", "parameters", "max_model_len", "has_chat_template"}
    values = {name: value for name, value in dataclasses.asdict(facts).items() if name not in columns}
    values["warnings"] = [{"code": code, "message": message} for code, message in facts.warnings]
    return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """What a model of one graph is: it has inputs and outputs, and neither tokens nor a KV cache.

    ``inputs`` and ``outputs`` have ``name``, ``datatype`` (as the Open Inference Protocol has it) and ``shape`` (names
    and -1 are open; ``None``: not said). ``activation_terms`` are bytes with the powers of batch and length they grow
    with, see ``catalog.graphs``; ``stated_shapes`` is the part of its values whose shape the file states.
    """

    parameters: int
    weight_types: dict[str, int]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    nodes: int
    operator_sets: dict[str, int]
    ir_version: int
    producer: str
    largest_weight_bytes: int
    activation_terms: list[list[int]]
    stated_shapes: float
    title: str = ""
    warnings: tuple[tuple[str, str], ...] = ()
    format: str = "onnx"
    architecture: str = "Graph"
    max_model_len: int = 0
    has_chat_template: bool = False

    def metadata(self) -> dict[str, Any]:
        """What is stored beside the version's own columns."""
        return _metadata(self)


NO_CHAT_TEMPLATE = (
    "MissingChatTemplate",
    "The model has no chat template: chat calls will be refused, completions work. "
    "Add chat_template.jinja to a new version if it is a chat model.",
)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor in a header: ``shape`` with rows first, ``kind`` the storage type, ``num_bytes`` in the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def count(self) -> int:
        """Number of elements."""
        result = 1
        for size in self.shape:
            result *= size
        return result


def bytes_by_type(tensors: Iterable[Tensor]) -> dict[str, int]:
    """How many bytes the files have of each storage type."""
    types: dict[str, int] = {}
    for tensor in tensors:
        types[tensor.kind] = types.get(tensor.kind, 0) + tensor.num_bytes
    return types


def bounded(values: Any, key: str, low: int, high: int, where: str, default: int | None = None) -> int:
    """A whole number from a config, within bounds.

    Raises:
        Rejected: it is missing, no number, or out of bounds.
    """
    value = values.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        told = "is missing" if value is None else f"is {str(value)[:40]}"
        raise Rejected(
            Reason.DAMAGED_FILE,
            f"{where}: {key} {told}; it has to be a whole number from {low} to {high}. Export the model again.",
        )
    return value
