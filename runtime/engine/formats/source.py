"""What a model on disk offers, whatever its format."""

import dataclasses
from collections.abc import Callable, Iterator

from torch import Tensor

from runtime.engine.causal.config import DecoderConfig
from runtime.engine.tokenizer import TextTokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class TensorPiece:
    """Rows ``row ..`` of the tensor called ``name`` (Hugging Face's name); ``num_bytes`` is what was read from disk."""

    name: str
    row: int
    data: Tensor
    num_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model that is open for loading. ``pieces`` may be called once; ``total_bytes`` is what it will read.

    ``int4_group`` is how many weights should share a scale when it is held in 4 bits.
    """

    config: DecoderConfig
    tokenizer: TextTokenizer
    chat_template: str | None
    eos_ids: frozenset[int]
    total_bytes: int
    pieces: Callable[[], Iterator[TensorPiece]]
    rope_factors: Tensor | None = None
    int4_group: int = 64
