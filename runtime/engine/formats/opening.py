"""Open a model by its format."""

from pathlib import Path
from typing import Final

from runtime.engine import errors
from runtime.engine.formats import gguf_model, huggingface
from runtime.engine.formats.source import ModelSource

_MAX_CAUSE: Final = 500


def open_model(path: Path, kind: str) -> ModelSource:
    """Read everything about the model at ``path`` but its weights. ``kind`` is ``huggingface`` or ``gguf``.

    Raises:
        errors.StartError: not a model, damaged, or of a kind that is not served.
    """
    if not path.exists():
        raise errors.StartError("ModelNotFound", f"There is nothing at {path}.")
    readers = {"gguf": gguf_model.open_gguf, "huggingface": huggingface.open_folder}
    if kind in readers:
        try:
            return readers[kind](path)
        except errors.StartError:
            raise
        except Exception as exc:  # a stranger's files, read by many libraries: whatever they raise means the model
            what = f"{type(exc).__name__}: {exc}"[:_MAX_CAUSE]
            raise errors.StartError("DamagedModel", f"The model's files cannot be read ({what}).") from exc
    raise errors.StartError("UnknownFormat", f"Format {kind!r} is not served, only 'huggingface' and 'gguf'.")
