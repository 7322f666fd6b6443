"""What may be served: the architectures, rotary embeddings and tokenizers that the engine knows. Plain data.

The engine has a list of its own (it may not be imported here); a test compares the two.
"""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """``name`` is Hugging Face's; ``gguf`` the values of ``general.architecture`` that mean it."""

    name: str
    gguf: tuple[str, ...] = ()
    qk_norm: bool = False
    qkv_bias: bool = False


ARCHITECTURES: Final = (
    Architecture(name="LlamaForCausalLM", gguf=("llama",)),
    Architecture(name="MistralForCausalLM"),
    Architecture(name="Qwen2ForCausalLM", gguf=("qwen2",), qkv_bias=True),
    Architecture(name="Qwen3ForCausalLM", gguf=("qwen3",), qk_norm=True),
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
