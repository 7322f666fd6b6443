"""What of a path is uploaded, and its digests."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from runtime.client.errors import UsageError

WEIGHTS: Final = frozenset({".safetensors", ".gguf"})
GRAPH: Final = ".onnx"
#: Where an ONNX model keeps its larger tensors: ``m.onnx.data``, ``m.onnx_data_1``.
_GRAPH_DATA: Final = re.compile(r"\.onnx(\.data|_data(_[0-9]+)?)", re.IGNORECASE)
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
    """Weights and their companions under ``path``: a model folder, one GGUF file, or one ONNX file with its data.

    Hidden files are passed over. Where a folder has a model both ways, what is there in ONNX is left out.

    Raises:
        UsageError: there is nothing to upload; the text says what was looked for.
    """
    if path.is_file():
        return Selection(list(_alone(path)), [])
    if not path.is_dir():
        raise UsageError(f"{path} does not exist.")
    files: list[LocalFile] = []
    left_out: list[str] = []
    found = list(_walk(path))
    graphs = not any(source.suffix.lower() in WEIGHTS for source, _name in found)
    for source, name in found:
        if source.suffix.lower() in WEIGHTS | COMPANIONS or (graphs and _is_graph(source)):
            files.append(LocalFile(source, name, source.stat().st_size))
        else:
            left_out.append(name)
    if not any(file.source.suffix.lower() in WEIGHTS | {GRAPH} for file in files):
        hint = f" It has {left_out[0]}: convert the weights to safetensors." if left_out else ""
        raise UsageError(f"{path} has no .safetensors, .gguf or .onnx file.{hint}")
    return Selection(files, left_out)


def _alone(path: Path) -> Iterator[LocalFile]:
    kind = path.suffix.lower()
    if kind not in (".gguf", GRAPH):
        raise UsageError(
            f"{path} is no .gguf or .onnx file; give such a file, or the folder of a Hugging Face or ONNX model."
        )
    yield LocalFile(path, path.name, path.stat().st_size)
    for beside in sorted(path.parent.iterdir()) if kind == GRAPH else ():
        rest = beside.name.removeprefix(path.stem)
        if beside.is_file() and rest != beside.name and _GRAPH_DATA.fullmatch(rest):
            yield LocalFile(beside, beside.name, beside.stat().st_size)


def _is_graph(source: Path) -> bool:
    name = source.name.lower()
    return name.endswith(GRAPH) or _GRAPH_DATA.search(name) is not None


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
