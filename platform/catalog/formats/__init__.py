"""Checking uploaded models by reading headers only: one module per format, nothing executed, nothing believed."""

from collections.abc import Sequence
from typing import Final

from catalog.formats import content, gguf, huggingface, onnx
from catalog.formats.facts import Facts, GraphFacts, Reason, Rejected, Source
from catalog.paths import check_all

__all__ = ["FORMATS", "Facts", "GraphFacts", "Reason", "Rejected", "Source", "detect", "inspect"]

FORMATS: Final = ("huggingface", "gguf", "onnx")


def detect(names: Sequence[str]) -> str:
    """The format that a set of file names means.

    Raises:
        Rejected: neither a Hugging Face folder, nor one GGUF file, nor an ONNX model.
    """
    kinds = {name.rsplit(".", 1)[-1].lower() for name in names if "." in name}
    found = [f".{kind}" for kind in ("gguf", "safetensors", "onnx") if kind in kinds]
    if len(found) > 1:
        raise Rejected(
            Reason.AMBIGUOUS_FORMAT,
            f"There are both {' and '.join(found)} files. Upload one of them per version.",
        )
    if "gguf" in kinds:
        return "gguf"
    if "onnx" in kinds:
        return "onnx"
    if "safetensors" in kinds or "config.json" in names:
        return "huggingface"
    raise Rejected(
        Reason.UNKNOWN_FORMAT,
        "This is no model that is served here. Upload one .gguf file, a Hugging Face folder with config.json, "
        "tokenizer.json and .safetensors files, or an .onnx model.",
    )


def inspect(files: Sequence[Source]) -> Facts | GraphFacts:
    """Check a model and say what it is.

    Raises:
        Rejected: it may not be served; reason and sentence say why and what to do.
        OSError: the bytes cannot be read (the platform's fault, not the model's).
    """
    if refusal := check_all([file.path for file in files]):
        raise Rejected(Reason(refusal.reason), refusal.message)
    kind = detect([file.path for file in files])
    for file in files:
        content.check(file)
    match kind:
        case "gguf":
            return gguf.inspect(files)
        case "onnx":
            return onnx.inspect(files)
        case _:
            return huggingface.inspect(files)
