"""Checking uploaded models by reading headers only: one module per format, nothing executed, nothing believed."""

from collections.abc import Sequence
from typing import Final

from catalog.formats import content, gguf, huggingface
from catalog.formats.facts import Facts, Reason, Rejected, Source
from catalog.paths import check_all

__all__ = ["FORMATS", "Facts", "Reason", "Rejected", "Source", "detect", "inspect"]

FORMATS: Final = ("huggingface", "gguf")


def detect(names: Sequence[str]) -> str:
    """The format that a set of file names means.

    Raises:
        Rejected: neither a Hugging Face folder nor one GGUF file.
    """
    kinds = {name.rsplit(".", 1)[-1].lower() for name in names if "." in name}
    if "gguf" in kinds and "safetensors" in kinds:
        raise Rejected(
            Reason.AMBIGUOUS_FORMAT,
            "There are both .gguf and .safetensors files. Upload one of them per version.",
        )
    if "gguf" in kinds:
        return "gguf"
    if "safetensors" in kinds or "config.json" in names:
        return "huggingface"
    raise Rejected(
        Reason.UNKNOWN_FORMAT,
        "This is no model that is served here. Upload one .gguf file, or a Hugging Face folder with config.json, "
        "tokenizer.json and .safetensors files.",
    )


def inspect(files: Sequence[Source]) -> Facts:
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
    return gguf.inspect(files) if kind == "gguf" else huggingface.inspect(files)
