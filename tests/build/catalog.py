"""Builders of models in memory, byte by byte and without torch, and of catalog rows that hold them.

The models are complete in every header and have all tensors; their weights are zeros.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog import access, completion, services, storage, uploads, validation, writer
from catalog.models import Model, ModelVersion
from kernel import scope
from kernel.actors import Actor
from tenants.models import Tenant
from tests.build import controlplane

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 12,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TOKENIZER: Final = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
CHAT_TEMPLATE: Final = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
_count = itertools.count(1)


def layer_shapes(config: Mapping[str, Any] = CONFIG) -> dict[str, list[int]]:
    """Hugging Face names and shapes of a Llama by ``config``."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        shapes |= {
            block + "input_layernorm.weight": [hidden],
            block + "post_attention_layernorm.weight": [hidden],
            block + "self_attn.q_proj.weight": [q, hidden],
            block + "self_attn.k_proj.weight": [kv, hidden],
            block + "self_attn.v_proj.weight": [kv, hidden],
            block + "self_attn.o_proj.weight": [hidden, q],
            block + "mlp.gate_proj.weight": [inner, hidden],
            block + "mlp.up_proj.weight": [inner, hidden],
            block + "mlp.down_proj.weight": [hidden, inner],
        }
    return shapes


def safetensors_header(shapes: Mapping[str, Sequence[int]], dtype: str = "BF16", width: int = 2) -> dict[str, Any]:
    """A right header: entries one behind the other."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        size = width
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header


def safetensors_file(header: Mapping[str, Any] | bytes, data_bytes: int) -> bytes:
    """A safetensors file with this header (as it is, when bytes) and that many zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def weights(shapes: Mapping[str, Sequence[int]] | None = None) -> bytes:
    """A right safetensors file for ``shapes`` in BF16."""
    header = safetensors_header(layer_shapes() if shapes is None else shapes)
    return safetensors_file(header, max((entry["data_offsets"][1] for entry in header.values()), default=0))


def huggingface(config: Mapping[str, Any] | None = None, **files: bytes | None) -> dict[str, bytes]:
    """A folder by path. ``config`` replaces values (``None`` removes one); ``files`` replace or remove files, with
    ``__`` for a dot in their names."""
    values = {key: value for key, value in {**CONFIG, **(config or {})}.items() if value is not None}
    folder = {
        "config.json": json.dumps(values).encode(),
        "tokenizer.json": json.dumps(TOKENIZER).encode(),
        "tokenizer_config.json": json.dumps({"chat_template": CHAT_TEMPLATE}).encode(),
        "model.safetensors": weights(),
    }
    for name, data in files.items():
        path = name.replace("__", ".")
        if data is None:
            folder.pop(path, None)
        else:
            folder[path] = data
    return folder


def gguf_string(text: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value: Any) -> bytes:
    """A typed GGUF value: text, truth, u32, f32, a list of texts, a list of f32; bytes pass as they are."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if all(isinstance(item, float) for item in value):
        return struct.pack("<IIQ", 9, 6, len(value)) + b"".join(struct.pack("<f", item) for item in value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(gguf_string(item) for item in value)


GGUF_FACTS: Final[dict[str, Any]] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 1,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.chat_template": CHAT_TEMPLATE,
}
GGUF_TENSORS: Final[dict[str, tuple[list[int], int, int]]] = {
    # name: (shape with rows first, storage type, bytes)
    "token_embd.weight": ([4, 32], 8, 4 * 34),
    "output_norm.weight": ([32], 0, 128),
    "blk.0.attn_norm.weight": ([32], 0, 128),
    "blk.0.ffn_norm.weight": ([32], 0, 128),
    "blk.0.attn_q.weight": ([32, 32], 3, 32 * 20),
    "blk.0.attn_k.weight": ([16, 32], 3, 16 * 20),
    "blk.0.attn_v.weight": ([16, 32], 3, 16 * 20),
    "blk.0.attn_output.weight": ([32, 32], 3, 32 * 20),
    "blk.0.ffn_gate.weight": ([64, 32], 3, 64 * 20),
    "blk.0.ffn_up.weight": ([64, 32], 3, 64 * 20),
    "blk.0.ffn_down.weight": ([32, 64], 3, 32 * 40),
}


def gguf(
    facts: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[list[int], int, int] | None] | None = None,
    *,
    version: int = 3,
    offsets: Mapping[str, int] | None = None,
    tail: int = 0,
) -> bytes:
    """A GGUF file. ``facts`` and ``tensors`` replace (``None`` removes); ``offsets`` lie about places; ``tail`` adds or
    cuts bytes at the end."""
    known = {key: value for key, value in {**GGUF_FACTS, **(facts or {})}.items() if value is not None}
    table = {name: entry for name, entry in {**GGUF_TENSORS, **(tensors or {})}.items() if entry is not None}
    head = b"GGUF" + struct.pack("<IQQ", version, len(table), len(known))
    head += b"".join(gguf_string(key) + gguf_value(value) for key, value in known.items())
    at = 0
    for name, (shape, kind, size) in table.items():
        place = (offsets or {}).get(name, at)
        head += gguf_string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", side) for side in reversed(shape)) + struct.pack("<IQ", kind, place)
        at += -(-size // 32) * 32
    whole = head + bytes(-len(head) % 32 + at)
    return whole + bytes(tail) if tail >= 0 else whole[:tail]


def declared(files: Mapping[str, bytes]) -> list[services.DeclaredFile]:
    """What is promised for ``files``."""
    return [
        services.DeclaredFile(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    ]


def make_model(tenant: Tenant, name: str = "", actor: Actor | None = None) -> Model:
    """A model without versions."""
    actor = actor or controlplane.actor_for(controlplane.owner_of(tenant))
    return services.create_model(actor=actor, tenant=tenant, name=name or f"model-{next(_count)}")


def fill_version(actor: Actor, tenant: Tenant, version: ModelVersion, files: Mapping[str, bytes]) -> None:
    """Upload ``files`` to ``version`` as the upload server does, without HTTP."""
    for path, data in files.items():
        upload = uploads.open_upload(actor=actor, tenant=tenant, version_id=version.id, path=path, length=len(data))
        with writer.locked(storage.upload_path(upload.id)) as handle:
            appender = writer.Appender(handle, upload.id, 0)
            appender.write(data)
            uploads.advance(upload, appender.sync())
            with scope.tenant(tenant.id):
                completion.finish(upload, appender.digest(), actor=actor)


def checked_version(
    tenant: Tenant, files: Mapping[str, bytes] | None = None, *, model: Model | None = None, **facts: Any
) -> ModelVersion:
    """A version of ``files`` (by default a small Hugging Face folder) after its check: ready, or rejected."""
    actor = controlplane.actor_for(controlplane.owner_of(tenant))
    files = huggingface() if files is None else files
    model = model or make_model(tenant, actor=actor)
    version = services.create_version(actor=actor, tenant=tenant, model=model, files=declared(files), **facts)
    fill_version(actor, tenant, version, files)
    services.finalize_version(actor=actor, tenant=tenant, version=version)
    validation.validate(version.id)
    return access.access_version(actor, tenant, model, version.number)
