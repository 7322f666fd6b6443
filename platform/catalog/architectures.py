"""What may be served: the architectures, rotary embeddings and activations that the engine knows. Plain data.

The engine has this list of its own (it may not be imported here); a test compares the two, and the tensors that both
make of them.
"""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """Where the weights are, by Hugging Face's names; ``""`` for a part that there is not.

    Those of a layer follow its prefix ``layer``, those of an expert the prefix ``expert`` inside the layer. Several
    names for one matrix are stacked, rows of the first name first.
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers"
    input_norm: str = "input_layernorm"
    post_norm: str = "post_attention_layernorm"
    attention_after: str = ""
    mlp_after: str = ""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = ""
    expert: str = ""
    expert_gate_up: tuple[str, ...] = ()
    expert_down: str = ""


_LLAMA: Final = Names()
_SANDWICH: Final = Names(
    post_norm="pre_feedforward_layernorm",
    attention_after="post_attention_layernorm",
    mlp_after="post_feedforward_layernorm",
)
_PHI: Final = Names(
    norm="model.final_layernorm", post_norm="", output="self_attn.dense", gate_up=("mlp.fc1",), down="mlp.fc2"
)
_PHI3: Final = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
_GPT2: Final = Names(
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h",
    input_norm="ln_1",
    post_norm="ln_2",
    qkv=("attn.c_attn",),
    output="attn.c_proj",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
)
_MIXTRAL: Final = Names(
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
)
_QWEN_MOE: Final = Names(
    router="mlp.gate", expert="mlp.experts", expert_gate_up=("gate_proj", "up_proj"), expert_down="down_proj"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What tells one architecture from another.

    ``gguf`` lists the values of ``general.architecture`` that mean it; ``permuted`` says that llama.cpp's converter
    interleaved the rotary halves of its query and key rows. ``norm`` is ``rms``, ``rms1`` (the weight counts from
    one) or ``layer`` (mean and bias as well). ``gated`` multiplies an activated gate with the way up; ``parallel``
    gives attention and MLP the same input. ``biases`` puts a bias on every product of a layer, ``transposed`` has
    matrices stored inputs first, ``bare`` says that checkpoints may leave out the first part of every name.
    """

    name: str
    model_type: str
    gguf: tuple[str, ...] = ()
    names: Names = _LLAMA
    norm: str = "rms"
    qk_norm: bool = False
    qkv_bias: bool = False
    biases: bool = False
    head_bias: bool = False
    gated: bool = True
    parallel: bool = False
    scaled_embedding: bool = False
    rotary: bool = True
    transposed: bool = False
    bare: bool = False
    permuted: bool = False
    activation: str = "hidden_act"
    tied: bool = False


ARCHITECTURES: Final = (
    Architecture(name="LlamaForCausalLM", model_type="llama", gguf=("llama",), permuted=True),
    Architecture(name="MistralForCausalLM", model_type="mistral"),
    Architecture(name="Qwen2ForCausalLM", model_type="qwen2", gguf=("qwen2",), qkv_bias=True),
    Architecture(name="Qwen3ForCausalLM", model_type="qwen3", gguf=("qwen3",), qk_norm=True),
    Architecture(name="GemmaForCausalLM", model_type="gemma", norm="rms1", scaled_embedding=True, tied=True),
    Architecture(
        name="Gemma2ForCausalLM",
        model_type="gemma2",
        names=_SANDWICH,
        norm="rms1",
        scaled_embedding=True,
        activation="hidden_activation",
        tied=True,
    ),
    Architecture(
        name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        names=_SANDWICH,
        norm="rms1",
        qk_norm=True,
        scaled_embedding=True,
        activation="hidden_activation",
        tied=True,
    ),
    Architecture(
        name="PhiForCausalLM",
        model_type="phi",
        names=_PHI,
        norm="layer",
        biases=True,
        head_bias=True,
        gated=False,
        parallel=True,
    ),
    Architecture(name="Phi3ForCausalLM", model_type="phi3", names=_PHI3),
    Architecture(
        name="GPT2LMHeadModel",
        model_type="gpt2",
        names=_GPT2,
        norm="layer",
        biases=True,
        gated=False,
        rotary=False,
        transposed=True,
        bare=True,
        activation="activation_function",
        tied=True,
    ),
    Architecture(name="MixtralForCausalLM", model_type="mixtral", names=_MIXTRAL),
    Architecture(name="Qwen3MoeForCausalLM", model_type="qwen3_moe", names=_QWEN_MOE, qk_norm=True),
)

HUGGINGFACE_NAMES: Final = frozenset(entry.name for entry in ARCHITECTURES)
GGUF_NAMES: Final = frozenset(name for entry in ARCHITECTURES for name in entry.gguf)

# Rotary embeddings whose frequencies do not depend on the length of the sequence at hand.
ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "yarn"})
# Those whose frequencies the engine computes by itself; the only ones where layers with a window have others.
LOCAL_ROPE_TYPES: Final = frozenset({"default", "linear"})
ACTIVATIONS: Final = frozenset({"silu", "gelu", "gelu_new", "gelu_pytorch_tanh"})
# Switches of a config that change the computation in ways that nobody here computes.
REFUSED_SWITCHES: Final = (
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
    "qk_layernorm",
    "use_bidirectional_attention",
)


def by_name(name: str) -> Architecture | None:
    """The architecture that a Hugging Face config calls ``name``, or ``None``."""
    return next((entry for entry in ARCHITECTURES if entry.name == name), None)


def by_gguf(name: str) -> Architecture | None:
    """The architecture that a GGUF file calls ``name``, or ``None``."""
    return next((entry for entry in ARCHITECTURES if name in entry.gguf), None)
