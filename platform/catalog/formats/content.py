"""Content that does not belong into a model whatever its name: pickles, archives, programs, by their first bytes."""

import re
from typing import Final

from catalog.formats.facts import Reason, Rejected, Source
from catalog.paths import is_external_data

_HEAD: Final = 512
_MAX_TEXT_BYTES: Final = 64 * 1024**2
# Formats whose own strict reader decides: their first bytes are a number that may look like anything.
_STRICT: Final = ("safetensors", "gguf", "onnx")
_PICKLE = re.compile(
    rb"\A(?:\x80[\x02-\x05]|\((?:dp|lp)[0-9]|"
    rb"c(?:os|posix|nt|sys|builtins|__builtin__|subprocess|copy_?reg|collections|torch[a-z_.]*|numpy[a-z_.]*)\n"
    rb"[A-Za-z_.]+\n[(pqR)\x94])"
)
_ARCHIVES: Final = (
    b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07",
    b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18",
)  # fmt: skip
_PROGRAMS: Final = (b"\x7fELF", b"#!", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa", b"\x00asm")
_DATA: Final = (b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"GGUF")


def check(file: Source) -> None:
    """Refuse content that its name hides, and side files of absurd size.

    Raises:
        Rejected: with the reason for the kind of content.
    """
    if file.name.rsplit(".", 1)[-1].lower() in _STRICT or is_external_data(file.path):
        return
    if file.size > _MAX_TEXT_BYTES:
        raise Rejected(
            Reason.FILE_TOO_LARGE,
            f"{file.path} has {file.size} bytes; files beside the weights have at most "
            f"{_MAX_TEXT_BYTES}. Leave it out.",
        )
    with file.location.open("rb") as handle:
        head = handle.read(_HEAD)
    if _PICKLE.match(head):
        raise Rejected(
            Reason.PICKLE_REFUSED,
            f"{file.path} is a pickle inside, which can run code when it is read. Leave it out; "
            "weights go into safetensors.",
        )
    if head.startswith(_ARCHIVES) or head[257:262] == b"ustar":
        raise Rejected(
            Reason.ARCHIVE_REFUSED, f"{file.path} is an archive inside. Unpack it and upload the files themselves."
        )
    if head.startswith(_PROGRAMS) or (head.startswith(b"MZ") and b"\x00" in head):
        raise Rejected(Reason.CODE_REFUSED, f"{file.path} is a program inside, which is never run here. Leave it out.")
    if head.startswith(_DATA) or (b"\x00" in head and not file.name.endswith(".model")):
        raise Rejected(Reason.UNEXPECTED_FILE, f"{file.path} is not the text that its name says. Leave it out.")
