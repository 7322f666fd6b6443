"""A GGUF file: one file with facts, tokenizer, chat template and weights. The header is read, weights never."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from catalog import architectures
from catalog.formats.decoder import Decoder, gguf_tensors, require
from catalog.formats.facts import NO_CHAT_TEMPLATE, Facts, Reason, Rejected, Source, Tensor, bounded, bytes_by_type
from catalog.formats.ggufheader import LongArray, read_header

# Tokenizers that the engine can rebuild from a GGUF file's tables.
TOKENIZERS: Final = frozenset({"gpt2", "llama"})


def inspect(files: Sequence[Source]) -> Facts:
    """Check the one GGUF file among ``files`` and say what it is.

    Raises:
        Rejected: it may not be served.
    """
    weights = [file for file in files if file.name.lower().endswith(".gguf")]
    if len(weights) != 1:
        raise Rejected(
            Reason.SPLIT_GGUF,
            f"There are {len(weights)} .gguf files; a version has one. Merge a split model into one "
            "file, or upload each by itself.",
        )
    file = weights[0]
    header = read_header(file)
    fields, tensors = header.fields, header.tensors
    if _number(fields.get("split.count"), 1) > 1:
        raise Rejected(Reason.SPLIT_GGUF, f"{file.path} is one part of a split model. Merge the parts into one file.")
    decoder = read_decoder(fields, tensors, file.path)
    tokenizer = _tokenizer(fields, decoder, file.path)
    parameters = require(gguf_tensors(decoder), tensors, f"the header of {file.path}")
    template = fields.get("tokenizer.chat_template")
    has_template = isinstance(template, str) and bool(template.strip())
    return Facts(
        format="gguf",
        **decoder.sizes(),
        parameters=parameters,
        max_model_len=decoder.max_positions,
        has_chat_template=has_template,
        weight_types=bytes_by_type(tensors.values()),
        tokenizer=tokenizer,
        rope=decoder.rope,
        title=_text(fields, "general.name"),
        license=_text(fields, "general.license"),
        warnings=() if has_template else (NO_CHAT_TEMPLATE,),
    )


def read_decoder(fields: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> Decoder:
    """The sizes that the header states.

    Raises:
        Rejected: an architecture or variant that is not served, or numbers that cannot be.
    """
    prefix = _text(fields, "general.architecture")
    found = architectures.by_gguf(prefix)
    if found is None:
        raise Rejected(
            Reason.UNSUPPORTED_ARCHITECTURE,
            f"The architecture {prefix or 'is not stated and'} is not served here as GGUF. "
            f"Served are: {', '.join(sorted(architectures.GGUF_NAMES))}.",
        )
    facts = {key.removeprefix(prefix + "."): value for key, value in fields.items() if key.startswith(prefix + ".")}
    if _number(facts.get("expert_count"), 0) > 0:
        raise Rejected(
            Reason.UNSUPPORTED_ARCHITECTURE, "Mixture-of-experts models are not served as GGUF. Choose a dense model."
        )
    rope = facts.get("rope.scaling.type", "none")
    if rope not in ("none", ""):
        raise Rejected(
            Reason.UNSUPPORTED_ROPE,
            f"The rotary scaling {str(rope)[:40]!r} is not served for GGUF files. Upload the model as "
            "a Hugging Face folder.",
        )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise Rejected(
            Reason.MISSING_TENSOR, "The file has no token embedding (token_embd.weight). Export the whole model again."
        )
    heads = bounded(facts, "attention.head_count", 1, 1024, where)
    hidden = bounded(facts, "embedding_length", 1, 1 << 20, where)
    decoder = Decoder(
        architecture=found,
        layers=bounded(facts, "block_count", 1, 1024, where),
        heads=heads,
        kv_heads=bounded(facts, "attention.head_count_kv", 1, 1024, where, default=heads),
        head_dim=bounded(facts, "attention.key_length", 1, 4096, where, default=max(1, hidden // heads)),
        hidden_size=hidden,
        intermediate_size=bounded(facts, "feed_forward_length", 1, 1 << 22, where),
        vocab_size=embedding.shape[0],
        tied="output.weight" not in tensors,
        max_positions=bounded(facts, "context_length", 1, 1 << 24, where),
        rope="llama3" if "rope_freqs.weight" in tensors else "default",
    )
    decoder.check(where)
    return decoder


def _tokenizer(fields: Mapping[str, Any], decoder: Decoder, where: str) -> str:
    kind, tokens = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.tokens")
    if not isinstance(kind, str) or not isinstance(tokens, LongArray):
        raise Rejected(
            Reason.MISSING_TOKENIZER,
            f"{where} carries no tokenizer, so text cannot become tokens. Convert the model again "
            "together with its tokenizer.",
        )
    if kind not in TOKENIZERS:
        raise Rejected(
            Reason.UNSUPPORTED_TOKENIZER,
            f"The tokenizer {kind[:40]!r} is not served, only {', '.join(sorted(TOKENIZERS))}. "
            "Upload the model as a Hugging Face folder.",
        )
    needed = "merges" if kind == "gpt2" else "scores"
    if f"tokenizer.ggml.{needed}" not in fields:
        raise Rejected(Reason.MISSING_TOKENIZER, f"The tokenizer in {where} has no {needed}. Convert the model again.")
    if tokens.count > decoder.vocab_size:
        raise Rejected(
            Reason.SHAPE_MISMATCH,
            f"{where} has {tokens.count} tokens but embeddings for {decoder.vocab_size}. Convert the model again.",
        )
    return kind


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value[:120] if isinstance(value, str) else ""


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
