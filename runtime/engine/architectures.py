"""The decoder architectures that are served, in one place. Plain data: no torch, no transformers."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What tells one member of the Llama family from another.

    ``gguf`` lists the values of ``general.architecture`` that mean it; ``permuted`` says that llama.cpp's converter
    interleaved the rotary halves of its query and key rows.
    """

    name: str
    model_type: str
    gguf: tuple[str, ...] = ()
    qk_norm: bool = False
    qkv_bias: bool = False
    permuted: bool = False


ARCHITECTURES: Final = (
    Architecture(name="LlamaForCausalLM", model_type="llama", gguf=("llama",), permuted=True),
    Architecture(name="MistralForCausalLM", model_type="mistral"),
    Architecture(name="Qwen2ForCausalLM", model_type="qwen2", gguf=("qwen2",), qkv_bias=True),
    Architecture(name="Qwen3ForCausalLM", model_type="qwen3", gguf=("qwen3",), qk_norm=True),
)

HUGGINGFACE_NAMES: Final = frozenset(entry.name for entry in ARCHITECTURES)
GGUF_NAMES: Final = frozenset(name for entry in ARCHITECTURES for name in entry.gguf)

# Rotary embeddings whose frequencies do not depend on the length of the sequence at hand.
ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "yarn"})


def by_name(name: str) -> Architecture | None:
    """The architecture that a Hugging Face config calls ``name``, or ``None``."""
    return next((entry for entry in ARCHITECTURES if entry.name == name), None)


def by_gguf(name: str) -> Architecture | None:
    """The architecture that a GGUF file calls ``name``, or ``None``."""
    return next((entry for entry in ARCHITECTURES if name in entry.gguf), None)
