"""Names of uploaded files: what may be declared, decided before a byte is taken (pure)."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_PATH_LENGTH: Final = 255
MAX_DEPTH: Final = 4
MAX_SEGMENT_LENGTH: Final = 128
_DRIVE = re.compile(r"^[A-Za-z]:")

PICKLES: Final = frozenset(
    {
        "bin",
        "pt",
        "pth",
        "pkl",
        "pickle",
        "ckpt",
        "joblib",
        "dill",
        "npy",
        "npz",
        "h5",
        "hdf5",
        "keras",
        "pdparams",
        "msgpack",
        "pb",
        "mar",
    }
)
ARCHIVES: Final = frozenset(
    {"zip", "tar", "gz", "tgz", "bz2", "xz", "7z", "rar", "zst", "whl", "egg", "jar", "lz4", "br"}
)
CODE: Final = frozenset(
    {
        "py",
        "pyc",
        "pyd",
        "so",
        "dll",
        "dylib",
        "sh",
        "bat",
        "ps1",
        "exe",
        "js",
        "rb",
        "pl",
        "ipynb",
        "cu",
        "ptx",
        "cubin",
    }
)
WEIGHTS: Final = frozenset({"safetensors", "gguf", "onnx"})
#: Where an ONNX model keeps larger tensors, as its exporters name such files: ``m.onnx.data``, ``m.onnx_data_1``.
_EXTERNAL_DATA: Final = re.compile(r"\.onnx(\.data|_data(_[0-9]{1,5})?)\Z", re.IGNORECASE)
DATA: Final = frozenset({"json", "txt", "jinja", "model", "md"})
_PLAIN_NAMES: Final = frozenset({"license", "notice", "readme", "copying", "use_policy", ".gitattributes"})


class Refusal(NamedTuple):
    """Why a name is refused: ``reason`` in PascalCase, ``message`` a sentence that says what to do."""

    path: str
    reason: str
    message: str


def check_path(path: str) -> Refusal | None:
    """Refuse a path that could leave its folder, hide something, or not exist on every system."""
    shown = path[:80]

    def refuse(message: str) -> Refusal:
        return Refusal(shown, "UnsafePath", message)

    if not path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_LENGTH:
        return refuse(f"A file's path has 1 to {MAX_PATH_LENGTH} bytes.")
    if any(unicodedata.category(sign)[0] == "C" for sign in path) or "\\" in path:
        return refuse("The path has a control character or a backslash; use plain names with / between folders.")
    if path != unicodedata.normalize("NFKC", path):
        return refuse("The path has look-alike characters; use their plain forms.")
    if path.startswith("/") or _DRIVE.match(path):
        return refuse("The path is absolute; give it relative to the model's folder.")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return refuse("The path has an empty, . or .. part; give it relative to the model's folder.")
    if len(parts) > MAX_DEPTH or any(len(part) > MAX_SEGMENT_LENGTH for part in parts):
        return refuse(
            f"The path is too deep or too long: at most {MAX_DEPTH} parts of {MAX_SEGMENT_LENGTH} characters."
        )
    if any(part != part.strip() or part.endswith(".") or set(part) & set('<>:"|?*') for part in parts):
        return refuse('A part of the path ends in a dot, has outer spaces or one of < > : " | ? *; rename the file.')
    return None


def check_kind(path: str) -> Refusal | None:
    """Refuse kinds of files that are never accepted: what runs code when it is read, archives, and the unknown."""
    name = path.rsplit("/", 1)[-1].lower()
    suffixes = name.split(".")[1:]
    last = suffixes[-1] if suffixes else ""
    if is_external_data(path):
        return None
    if last in PICKLES or set(suffixes) & {"pkl", "pickle", "joblib"}:
        return Refusal(
            path,
            "PickleRefused",
            f"{path} is of a kind that can run code when it is read. Convert the weights to "
            "safetensors and leave it out.",
        )
    if last in ARCHIVES:
        return Refusal(path, "ArchiveRefused", f"{path} is an archive. Unpack it and upload the files themselves.")
    if last in CODE:
        return Refusal(path, "CodeRefused", f"{path} is program code, which is never run here. Leave it out.")
    if last in WEIGHTS or last in DATA or (not last and name in _PLAIN_NAMES) or name in _PLAIN_NAMES:
        return None
    return Refusal(
        path,
        "UnexpectedFile",
        f"{path} is not part of a model here. Upload .safetensors, .gguf or .onnx with its .json, .txt, "
        ".jinja and .model files.",
    )


def is_external_data(path: str) -> bool:
    """True for a file that holds tensors of an ONNX model."""
    return _EXTERNAL_DATA.search(path) is not None


def check_all(names: Sequence[str]) -> Refusal | None:
    """The first refusal among ``names``: path, kind, or the same name twice (ignoring case)."""
    seen: set[str] = set()
    folders: set[str] = set()
    for path in names:
        if refusal := check_path(path) or check_kind(path):
            return refusal
        folded = path.casefold()
        if folded in seen:
            return Refusal(path, "DuplicatePath", f"{path} is there twice (case is ignored). Name every file once.")
        seen.add(folded)
        pieces = folded.split("/")
        folders |= {"/".join(pieces[:depth]) for depth in range(1, len(pieces))}
    if clash := seen & folders:
        name = min(clash)
        return Refusal(name, "DuplicatePath", f"{name} is both a file and a folder. Rename one of them.")
    return None
