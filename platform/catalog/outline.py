"""What a ``config.json`` alone says of a model: its sizes, and whether an engine here would serve it (pure).

Nothing has been uploaded, so the number of weights follows from the config: of served architectures by the tensors that
they must have; of others of the general family of decoders by its formulas (attention with or without shared or
compressed keys and values, gated MLPs, experts that are chosen or shared). What the formulas leave out are biases and
norms inside attention, and layers that only predict further tokens: less than 0.1 % of the models they were compared
with.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from catalog.formats import huggingface
from catalog.formats.decoder import Decoder, count_parameters
from catalog.formats.facts import Reason, Rejected, bounded
from catalog.formats.huggingface import MAX_EXPERTS, MAX_HIDDEN, MAX_INNER, WHERE
from catalog.holding import Shape, layer_matrices
from kernel.isolation import Requirement

#: Far above what published configs have.
MAX_CONFIG_BYTES: Final = 256 * 1024
#: No model is so large; numbers above it would only slow down what reads them.
MAX_PARAMETERS: Final = 10**14
# How families call their experts, and how many of them a token visits.
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_VISITED: Final = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk")
_SHARED: Final = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
# What only models have whose layers are of another kind: state spaces, linear attention, recurrences.
_OTHER_LAYERS: Final = frozenset({
    "ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads", "layers_block_type",
    "linear_num_key_heads", "linear_num_value_heads", "attn_layer_period", "attn_type_list", "block_types",
    "hybrid_override_pattern", "linear_attn_config", "lru_width", "conv_L_cache",
})  # fmt: skip
_ATTENTION_LAYERS: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
# Decoders without a gate that call their sizes as all others do.
_UNGATED: Final = frozenset({"gpt_neox", "gpt_neox_japanese", "nemotron", "persimmon", "starcoder2"})
_DECODERS: Final = ("ForCausalLM", "LMHeadModel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """A model before it is uploaded; it stands where a version's facts are read.

    ``reason`` and ``message`` say why no engine here would serve it, as the check after an upload would; both are
    empty where one would. ``exact`` says that the tensors of the architecture are known one by one.
    """

    architecture: str
    shape: Shape
    max_model_len: int
    exact: bool
    reason: str = ""
    message: str = ""
    isolation: str = Requirement.ANY.value

    @property
    def served(self) -> bool:
        return not self.reason

    @property
    def parameters(self) -> int:
        return self.shape.parameters

    @property
    def metadata(self) -> dict[str, Any]:
        """The shape as the check after an upload writes it beside a version."""
        return dataclasses.asdict(self.shape)


def parse(text: str) -> dict[str, Any]:
    """The object in the text of a ``config.json``.

    Raises:
        Rejected: it is too long, or no JSON object.
    """
    if len(text.encode(errors="replace")) > MAX_CONFIG_BYTES:
        raise Rejected(Reason.FILE_TOO_LARGE, f"A config.json has at most {MAX_CONFIG_BYTES} bytes here.")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Rejected(
            Reason.DAMAGED_FILE, f"This is no JSON ({str(exc)[:80]}). Take the whole config.json of the model."
        ) from exc
    if not isinstance(found, dict):
        raise Rejected(Reason.DAMAGED_FILE, "This is no JSON object. Take the whole config.json of the model.")
    return found


def read(config: Mapping[str, Any]) -> Outline:
    """The outline of a model with this ``config.json``.

    Raises:
        Rejected: its size cannot be told: numbers are missing or out of bounds, or the layers are of another family.
    """
    refusal = huggingface.refusal_of(config)
    entry = huggingface.architecture_of(config)
    if entry is not None:
        decoder = huggingface.sizes_of(entry, config, rope="")
        name, shape, positions = entry.name, _shape_of(decoder), decoder.max_positions
    else:
        _refuse_other_families(config, refusal)
        name = next(iter(huggingface.stated_architectures(config)), "")
        shape, positions = _general(config, name)
    if shape.parameters > MAX_PARAMETERS:
        raise Rejected(
            Reason.DAMAGED_FILE,
            f"config.json makes a model of {shape.parameters:.1e} parameters; at most {MAX_PARAMETERS:.0e} can be. "
            "Export it again.",
        )
    return Outline(
        architecture=name,
        shape=shape,
        max_model_len=positions,
        exact=entry is not None,
        reason=refusal.reason.value if refusal is not None else "",
        message=refusal.message if refusal is not None else "",
    )


def _shape_of(decoder: Decoder) -> Shape:
    """The shape of a served architecture."""
    return Shape(
        parameters=count_parameters(decoder),
        **decoder.sizes(),
    )


def _refuse_other_families(config: Mapping[str, Any], refusal: Rejected | None) -> None:
    """Refuse what the general formulas would count wrongly.

    Raises:
        Rejected: with the sentence of ``refusal`` before.
    """
    why = _other_family(config)
    if why:
        told = f"{refusal.message} " if refusal is not None else ""
        raise Rejected(Reason.UNSUPPORTED_ARCHITECTURE, f"{told}Its size cannot be told from config.json either: {why}")


def _other_family(config: Mapping[str, Any]) -> str:
    names = huggingface.stated_architectures(config)
    if isinstance(config.get("text_config"), Mapping) and "hidden_size" not in config:
        return "it has several parts. Give the text_config of it alone."
    if config.get("is_encoder_decoder") or (names and not any(name.endswith(_DECODERS) for name in names)):
        return "it is no decoder that goes on with a text."
    stated = config.get("layer_types")
    kinds = {str(kind)[:40] for kind in stated[:1024]} if isinstance(stated, list) else set()
    if _OTHER_LAYERS & set(config) or kinds - _ATTENTION_LAYERS:
        return "some of its layers are no attention."
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in _UNGATED:
        return "its MLPs have no gate."
    if "intermediate_size_mlp" in config:
        return "its dense layers and those with experts are of sizes of their own."
    if not _named(config, _EXPERTS) and any("expert" in str(key) for key in config if config[key]):
        return f"it has experts, but their number stands under none of {', '.join(_EXPERTS)}."
    return ""


def _general(config: Mapping[str, Any], name: str) -> tuple[Shape, int]:
    """The shape of an unknown decoder, and its positions."""
    sizes = huggingface.common_sizes(config)
    positions = sizes.pop("max_positions")
    fields: dict[str, Any] = {
        **sizes,
        "architecture": name,
        # Where it is not said, two matrices are counted: an estimate may be too high.
        "tie_word_embeddings": bool(config.get("tie_word_embeddings")),
        "capped_scores": bool(config.get("attn_logit_softcapping")),
        **_experts(config, sizes),
        **_latent(config),
    }
    if sizes["heads"] % sizes["kv_heads"]:
        heads, kv_heads = sizes["heads"], sizes["kv_heads"]
        raise Rejected(
            Reason.DAMAGED_FILE,
            f"{WHERE}: {heads} attention heads cannot share {kv_heads} key/value heads. Export it again.",
        )
    shape = Shape(parameters=0, **fields)
    return dataclasses.replace(shape, parameters=_count(shape, config)), positions


def _experts(config: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
    key = _named(config, _EXPERTS)
    experts = bounded(config, key, 0, MAX_EXPERTS, WHERE) if key else 0
    if experts < 2:
        return {}
    visited = bounded(config, _named(config, _VISITED) or _VISITED[0], 1, experts, WHERE)
    inner = bounded(config, "moe_intermediate_size", 1, MAX_INNER, WHERE, default=sizes["intermediate_size"])
    shared = bounded(config, _named(config, _SHARED) or _SHARED[0], 0, MAX_EXPERTS, WHERE, default=0)
    first = bounded(config, "first_k_dense_replace", 0, 1024, WHERE, default=0)
    every = bounded(config, "moe_layer_freq", 1, 1024, WHERE, default=1)
    sparse = huggingface.sparse_layers(config, sizes["layers"])
    return {
        "sparse_layers": sum(sparse[index] and index >= first and index % every == 0 for index in range(len(sparse))),
        "num_experts": experts,
        "experts_per_token": visited,
        "expert_size": inner,
        "shared_size": bounded(
            config, "shared_expert_intermediate_size", 0, MAX_INNER, WHERE, default=min(shared * inner, MAX_INNER)
        ),
    }


def _latent(config: Mapping[str, Any]) -> dict[str, int]:
    """Multi-head latent attention (MLA), as DeepSeek names its sizes."""
    if not config.get("kv_lora_rank"):
        return {}
    rank = bounded(config, "kv_lora_rank", 1, MAX_HIDDEN, WHERE)
    rope = bounded(config, "qk_rope_head_dim", 0, 4096, WHERE)
    plain = bounded(config, "qk_nope_head_dim", 1, 4096, WHERE)
    return {
        "latent_dim": rank + rope,
        "rope_dim": rope,
        "head_dim": plain + rope,
        "value_dim": bounded(config, "v_head_dim", 1, 4096, WHERE, default=plain),
        "query_rank": bounded(config, "q_lora_rank", 0, MAX_HIDDEN, WHERE, default=0),
    }


def _count(shape: Shape, config: Mapping[str, Any]) -> int:
    """Weights by the general formulas: matrices, two norms a layer, those of latent attention, routers."""
    dense = shape.layers - shape.sparse_layers
    layers = dense * sum(matrix.parameters for matrix in layer_matrices(shape, sparse=False))
    layers += shape.sparse_layers * sum(matrix.parameters for matrix in layer_matrices(shape, sparse=True))
    routers = shape.sparse_layers * shape.num_experts * shape.hidden_size
    norms = (2 * shape.layers + 1) * shape.hidden_size
    biases = 0
    if shape.latent_dim:
        norms += shape.layers * (shape.query_rank + shape.latent_dim - shape.rope_dim)
    elif config.get("attention_bias") or config.get("qkv_bias"):
        biases = shape.layers * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    return ends + layers + routers + norms + biases


def _named(config: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first of ``names`` that the config has a value for, or ""."""
    return next((name for name in names if config.get(name) is not None), "")
