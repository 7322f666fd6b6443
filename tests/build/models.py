"""Tiny random decoder models, written on the spot: a Hugging Face folder and a GGUF file.

Two layers, hidden size 64, a byte-level BPE vocabulary of a few hundred tokens, a chat template, 512 positions.
The same ``seed`` gives the same weights. torch and transformers are imported only when a builder is called.
"""

from pathlib import Path
from typing import Any, Final

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MAX_POSITIONS: Final = 512

_CORPUS: Final = (
    "the mill stands by the water and the water turns the wheel",
    "a model reads a prompt and writes one token after another token",
    "hello there, how are you today? the answer is the answer to the question",
    "the level of the pond rises in the rain and falls in the sun",
)
_CONFIG_CLASSES: Final = {
    "LlamaForCausalLM": "LlamaConfig",
    "MistralForCausalLM": "MistralConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
    "GemmaForCausalLM": "GemmaConfig",
    "Gemma2ForCausalLM": "Gemma2Config",
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "PhiForCausalLM": "PhiConfig",
    "Phi3ForCausalLM": "Phi3Config",
    "GPT2LMHeadModel": "GPT2Config",
    "MixtralForCausalLM": "MixtralConfig",
    "Qwen3MoeForCausalLM": "Qwen3MoeConfig",
}
# What is special about an architecture has to matter in its tiny model; a tied head would repeat one token for ever.
_SPECIAL_VALUES: Final[dict[str, dict[str, Any]]] = {
    "Gemma2ForCausalLM": {
        "tie_word_embeddings": False,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 9.0,
    },
    "Gemma3ForCausalLM": {
        "tie_word_embeddings": False,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    },
    "PhiForCausalLM": {"tie_word_embeddings": False},
    "GPT2LMHeadModel": {"tie_word_embeddings": False, "n_inner": 96, "num_key_value_heads": None},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
}
ARCHITECTURES: Final = tuple(_CONFIG_CLASSES)


def tiny_tokenizer() -> Any:
    """Return a byte-level BPE ``PreTrainedTokenizerFast`` of about 320 tokens with three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        extra_special_tokens=[],
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_config(architecture: str = "LlamaForCausalLM", vocab_size: int = 320, **overrides: Any) -> Any:
    """Return the transformers config of a tiny model of ``architecture``."""
    import transformers

    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "tie_word_embeddings": True,
        "sliding_window": None,
    }
    values |= {**_SPECIAL_VALUES.get(architecture, {}), **overrides}
    return getattr(transformers, _CONFIG_CLASSES[architecture])(architectures=[architecture], **values)


def tiny_llama(folder: Path, *, seed: int = 0, architecture: str = "LlamaForCausalLM", **overrides: Any) -> Path:
    """Write a tiny random model as a Hugging Face folder (safetensors, float32) and return ``folder``.

    ``overrides`` replace config values. No dropout, so the model is deterministic.
    """
    import torch
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    config = tiny_config(architecture, len(tokenizer), **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        from_zero = architecture.startswith("Gemma")  # their norms add one to the weight
        for name, parameter in model.named_parameters():  # norms and biases that differ from their defaults
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape) * 0.1
                parameter.data.copy_(noise if name.endswith("bias") or from_zero else 1.0 + noise)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_gguf(path: Path, *, seed: int = 0) -> Path:
    """Write a tiny random Llama as a GGUF file (Q4_1 matrices, Q8_0 embedding, F32 norms) and return ``path``."""
    import gguf
    import numpy as np

    tokenizer = tiny_tokenizer()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    _write_gguf_facts(writer, gguf, tokenizer)
    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int, kind: Any) -> None:
        values = rng.normal(0.0, 0.15, size=(rows, columns)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, (1.0 + rng.normal(0.0, 0.1, size=64)).astype(np.float32))

    kinds = gguf.GGMLQuantizationType
    matrix("token_embd.weight", len(tokenizer), 64, kinds.Q8_0)
    for layer in range(2):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        norm(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", 64, 64, kinds.Q4_1)
        matrix(block + "attn_k.weight", 32, 64, kinds.Q4_1)
        matrix(block + "attn_v.weight", 32, 64, kinds.Q8_0)
        matrix(block + "attn_output.weight", 64, 64, kinds.Q4_1)
        matrix(block + "ffn_gate.weight", 128, 64, kinds.Q4_1)
        matrix(block + "ffn_up.weight", 128, 64, kinds.Q4_1)
        matrix(block + "ffn_down.weight", 64, 128, kinds.Q8_0)
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_gguf_facts(writer: Any, gguf: Any, tokenizer: Any) -> None:
    """Add the config and the tokenizer to ``writer`` as llama.cpp's converter names them."""
    import json

    writer.add_name("tiny")
    writer.add_context_length(MAX_POSITIONS)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(tokenizer))
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    kinds = [gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


HERMES_TEMPLATE: Final = (
    "{% if tools %}{{ '<|im_start|>system\nCall by <tool_call>:' }}"
    "{% for tool in tools %}{{ tool.function.name + tool.function.parameters | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + ' ' + call.function.arguments.city + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def with_template(source: Path, folder: Path, template: str) -> Path:
    """A copy of the model folder ``source`` with another chat template; return ``folder``."""
    import shutil

    shutil.copytree(source, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder
