"""The config.json of published models, as far as their sizes go."""

from typing import Any, Final


def published(
    architecture: str, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """A config with sizes under their common names."""
    return {
        "architectures": [architecture], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner,
        "vocab_size": vocab, "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


_LATENT: Final = {
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_layer_freq": 1,
    "max_position_embeddings": 163_840, "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM"},
}  # fmt: skip
DEEPSEEK_V3: Final = published(
    "DeepseekV3ForCausalLM", 7168, 61, 128, 128, 18_432, 129_280, **_LATENT, q_lora_rank=1536,
    moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
    first_k_dense_replace=3, num_nextn_predict_layers=1, quantization_config={"quant_method": "fp8"},
)  # fmt: skip
DEEPSEEK_V2_LITE: Final = published(
    "DeepseekV2ForCausalLM", 2048, 27, 16, 16, 10_944, 102_400, **_LATENT, q_lora_rank=None,
    moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
    first_k_dense_replace=1,
)  # fmt: skip
