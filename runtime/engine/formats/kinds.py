"""Telling formats apart by what lies on disk. No torch."""

from pathlib import Path

from runtime.engine import errors


def guess_format(path: Path) -> str:
    """The format of what lies at ``path``.

    Raises:
        errors.StartError: nothing is there, or neither a GGUF file nor a folder with a ``config.json``.
    """
    if not path.exists():
        raise errors.StartError("NoSuchPath", f"{path} does not exist.")
    if path.is_file() and path.suffix.lower() == ".gguf":
        return "gguf"
    if path.is_dir() and (path / "config.json").is_file():
        return "huggingface"
    raise errors.StartError(
        "UnknownFormat", f"{path} is neither a .gguf file nor a folder with config.json and safetensors files."
    )
