"""How the engine holds weights, keys and values, and what that takes in bytes (pure; a test asks the engine).

Matrices of a layer may be held in fewer bits; norms, biases, routers and tables of positions never are. Embedding and
head are held in 8 bits where the matrices have 4 or are short floats. Projections that share an input are one matrix.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from catalog import architectures

# As in the engine: inputs that share a scale in an int8 product of its kernels, and how those round sizes up.
_INT8_GROUP = 192
_KERNEL_OUTPUTS = 32
_KERNEL_INPUTS = 64
_INT8_MULTIPLE = 8
_INT4_GROUPS = (64, 32)
_INT4_OUTPUTS = 16
_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
_FP8_MULTIPLE = 16
_SCALE_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a decoder that decide its memory.

    ``sparse_layers`` layers have ``num_experts`` experts of ``expert_size``, of which a token visits
    ``experts_per_token``, and ``shared_size`` inner values that every token visits; ``int4_group`` weights share a
    scale in 4 bits. With multi-head latent attention ``latent_dim`` values are kept per token and layer for all heads
    together (0: keys and values of each head): ``rope_dim`` of them carry the position, the others are keys and values
    compressed. ``query_rank`` is what queries are compressed to (0: they are not), ``value_dim`` the size of a head's
    values where it is not ``head_dim`` (0: it is). What came after the first versions were checked has a default.
    """

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    architecture: str = "LlamaForCausalLM"
    tie_word_embeddings: bool = True
    sparse_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    capped_scores: bool = False
    int4_group: int = 64
    shared_size: int = 0
    latent_dim: int = 0
    rope_dim: int = 0
    query_rank: int = 0
    value_dim: int = 0


@dataclasses.dataclass(frozen=True)
class Matrix:
    """``count`` matrices of ``outputs`` x ``inputs``."""

    outputs: int
    inputs: int
    count: int = 1

    @property
    def parameters(self) -> int:
        """Weights of all of them."""
        return self.outputs * self.inputs * self.count


def layer_matrices(shape: Shape, *, sparse: bool) -> Iterator[Matrix]:
    """The products of one layer, as the engine fuses them."""
    entry = architectures.by_name(shape.architecture)
    ways = 2 if entry is None or entry.gated else 1
    yield from _attention_matrices(shape)
    inner, count = (shape.expert_size, shape.num_experts) if sparse else (shape.intermediate_size, 1)
    yield Matrix(ways * inner, shape.hidden_size, count)
    yield Matrix(shape.hidden_size, inner, count)
    if sparse and shape.shared_size:
        yield Matrix(ways * shape.shared_size, shape.hidden_size)
        yield Matrix(shape.hidden_size, shape.shared_size)


def _attention_matrices(shape: Shape) -> Iterator[Matrix]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if not shape.latent_dim:
        yield Matrix(q + 2 * kv, shape.hidden_size)
        yield Matrix(shape.hidden_size, q)
        return
    yield from _compressing(shape)
    yield Matrix(q, shape.query_rank or shape.hidden_size)
    yield Matrix(_expanded(shape), shape.latent_dim - shape.rope_dim)
    yield Matrix(shape.hidden_size, shape.heads * (shape.value_dim or shape.head_dim))


def _compressing(shape: Shape) -> Iterator[Matrix]:
    """What makes the compressed forms of queries, keys and values."""
    if shape.latent_dim:
        yield Matrix(shape.latent_dim, shape.hidden_size)
        if shape.query_rank:
            yield Matrix(shape.query_rank, shape.hidden_size)


def _expanded(shape: Shape) -> int:
    """One token's keys and values once they are no longer compressed; the part with the position is shared."""
    return shape.heads * (shape.head_dim - shape.rope_dim + (shape.value_dim or shape.head_dim))


def attention_values(shape: Shape) -> int:
    """Values of one token that live at a time where attention is computed: queries, keys and values."""
    q = shape.heads * shape.head_dim
    if shape.latent_dim:
        return q + shape.query_rank + shape.latent_dim + _expanded(shape)
    return q + 2 * shape.kv_heads * shape.head_dim


def undivided(shape: Shape) -> tuple[int, int]:
    """Weights that each rank of tensor parallelism has whole: in matrices that may be held in fewer bits, and others.

    These are what compresses queries, keys and values, and the routers of experts.
    """
    matrices = shape.layers * sum(matrix.parameters for matrix in _compressing(shape))
    return matrices, shape.sparse_layers * shape.num_experts * shape.hidden_size


def weights_bytes(shape: Shape, width: int, quantization: str = "none", *, kernels: bool = False) -> int:
    """Bytes of all weights; ``width`` is that of the number format, ``kernels`` says that the C kernels hold them.

    In full precision the kernels round matrices up to whole panels, which is less than 1 % of a model worth serving
    and left out.
    """
    if quantization == "none":
        return shape.parameters * width
    ends = Matrix(shape.vocab_size, shape.hidden_size, 1 if shape.tie_word_embeddings else 2)
    dense = shape.layers - shape.sparse_layers
    layers = [(matrix, dense) for matrix in layer_matrices(shape, sparse=False)]
    layers += [(matrix, shape.sparse_layers) for matrix in layer_matrices(shape, sparse=True)]
    rest = shape.parameters - ends.parameters - sum(matrix.parameters * times for matrix, times in layers)
    by_end = quantization if quantization == "int8" else "int8_weight_only"
    held = sum(_held(matrix, width, quantization, kernels, shape.int4_group) * times for matrix, times in layers)
    return held + _held(ends, width, by_end, kernels) + max(0, rest) * width


def int4_group(weight_types: Mapping[str, int]) -> int:
    """Weights that share a scale in 4 bits, by the bytes of each type in the files: as the files have it where they
    are in 4-bit blocks already."""
    fours = sum(count for name, count in weight_types.items() if name in _FOUR_BITS)
    return _INT4_GROUPS[-1] if 2 * fours > sum(weight_types.values()) else _INT4_GROUPS[0]


def layer_bytes(shape: Shape, width: int, quantization: str = "none") -> int:
    """Bytes of the matrices of the largest kind of layer: what is copied when it waits in host memory."""
    sparse = shape.sparse_layers > 0
    found = layer_matrices(shape, sparse=sparse)
    return sum(_held(matrix, width, quantization, False, shape.int4_group) for matrix in found)


def largest_matrix(shape: Shape) -> int:
    """Weights of the largest single product of a layer."""
    found = [*layer_matrices(shape, sparse=False)]
    found += layer_matrices(shape, sparse=True) if shape.sparse_layers else ()
    return max(matrix.outputs * matrix.inputs for matrix in found)


def kv_bytes_per_token(shape: Shape, width: int, kv_dtype: str = "same") -> int:
    """Keys and values of one token in all layers, ``width`` bytes an element; or one byte and a scale per head.

    Of latent attention what is kept is like one head, with no keys apart from values: every rank keeps all of it.
    """
    kept = shape.latent_dim or shape.head_dim
    head = kept * width if kv_dtype == "same" else kept + _SCALE_BYTES
    return shape.layers * head * (1 if shape.latent_dim else 2 * shape.kv_heads)


def _held(matrix: Matrix, width: int, quantization: str, kernels: bool, int4_group: int = _INT4_GROUPS[0]) -> int:
    """Bytes of one kind of matrix with its scales."""
    return _one(matrix.outputs, matrix.inputs, width, quantization, kernels, int4_group) * matrix.count


def _one(outputs: int, inputs: int, width: int, quantization: str, kernels: bool, int4_group: int) -> int:
    if quantization == "none":
        return outputs * inputs * width
    if quantization == "int8" and kernels:
        outputs = _up(outputs, _KERNEL_OUTPUTS)
        sums = -(-inputs // _INT8_GROUP)
        return outputs * (_up(inputs, _KERNEL_INPUTS) + _SCALE_BYTES * (1 + sums))
    if quantization == "int8":
        return _up(outputs, _INT8_MULTIPLE) * _up(inputs, _INT8_MULTIPLE) + outputs * _SCALE_BYTES
    if quantization == "int4_weight_only" and outputs % _INT4_OUTPUTS == 0:
        group = next((size for size in _INT4_GROUPS if size <= int4_group and inputs % size == 0), 0)
        if group:
            return outputs * inputs // 2 + outputs * (inputs // group) * 2 * width
    if quantization == "fp8" and not (outputs % _FP8_MULTIPLE or inputs % _FP8_MULTIPLE):
        return outputs * (inputs + _SCALE_BYTES)
    return outputs * (inputs + width)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
