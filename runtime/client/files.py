"""What of a path is uploaded, and its digests."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from runtime.client.errors import UsageError

WEIGHTS: Final = frozenset({".safetensors", ".gguf"})
COMPANIONS: Final = frozenset({".json", ".txt", ".jinja", ".model"})
_READ_BYTES: Final = 4 * 1024**2


@dataclasses.dataclass(frozen=True)
class LocalFile:
    """``path`` is the name in the version, with ``/`` between folders; ``size`` is in bytes."""

    source: Path
    path: str
    size: int


@dataclasses.dataclass(frozen=True)
class Selection:
    """What goes, and what is left behind (names only)."""

    files: list[LocalFile]
    left_out: list[str]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def select(path: Path) -> Selection:
    """Weights and their companions under ``path``: a model folder, or one GGUF file. Hidden files are passed over.

    Raises:
        UsageError: there is nothing to upload; the text says what was looked for.
    """
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UsageError(f"{path} is no .gguf file; give a GGUF file, or the folder of a Hugging Face model.")
        return Selection([LocalFile(path, path.name, path.stat().st_size)], [])
    if not path.is_dir():
        raise UsageError(f"{path} does not exist.")
    files: list[LocalFile] = []
    left_out: list[str] = []
    for source, name in _walk(path):
        if source.suffix.lower() in WEIGHTS | COMPANIONS:
            files.append(LocalFile(source, name, source.stat().st_size))
        else:
            left_out.append(name)
    if not any(file.source.suffix.lower() in WEIGHTS for file in files):
        hint = f" It has {left_out[0]}: convert the weights to safetensors." if left_out else ""
        raise UsageError(f"{path} has no .safetensors or .gguf file.{hint}")
    return Selection(files, left_out)


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Files under ``root`` with their names, in order. Links to files are followed (model caches keep such), links to
    folders are not."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            source = Path(folder) / name
            if not name.startswith(".") and source.is_file():
                yield source, source.relative_to(root).as_posix()


def digest(source: Path, progress: Callable[[int], None] = lambda _more: None) -> str:
    """SHA-256 of a file in hex; ``progress`` is told how many bytes more were read.

    Raises:
        UsageError: the file cannot be read.
    """
    hashed = hashlib.sha256()
    try:
        with source.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                hashed.update(piece)
                progress(len(piece))
    except OSError as exc:
        raise UsageError(f"{source} cannot be read ({exc.strerror}).") from exc
    return hashed.hexdigest()
