"""Names that come from outside and become part of a path: checked here, whatever was checked before."""

import re
from typing import Final

from runtime.agent.errors import Fault, Retry

MAX_SEGMENT_BYTES: Final = 200
MAX_DEPTH: Final = 8
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def safe_relative(path: str) -> str:
    """Return ``path`` when it names a file inside a folder and nowhere else.

    Raises:
        Fault: ``UnsafePath``; absolute, empty, too deep or long, or with segments that climb or hide.
    """
    segments = path.split("/")
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise _unsafe(path, "it has an empty, '.' or '..' part")
        if "\\" in segment or any(ord(char) < 32 or ord(char) == 127 for char in segment):
            raise _unsafe(path, "it has a backslash or a control character")
        if len(segment.encode("utf-8", "surrogatepass")) > MAX_SEGMENT_BYTES:
            raise _unsafe(path, f"a part is longer than {MAX_SEGMENT_BYTES} bytes")
    if len(segments) > MAX_DEPTH:
        raise _unsafe(path, f"it is more than {MAX_DEPTH} folders deep")
    return path


def safe_id(value: str) -> str:
    """Return a replica id when it can be the name of a folder.

    Raises:
        Fault: ``MalformedAssignment``.
    """
    if not _ID.fullmatch(value):
        raise Fault("MalformedAssignment", f"{value[:80]!r} cannot be a replica id", Retry.NEVER)
    return value


def safe_sha256(value: str) -> str:
    """Return a lower-case hex SHA-256.

    Raises:
        Fault: ``MalformedAssignment``.
    """
    if not _SHA256.fullmatch(value):
        raise Fault("MalformedAssignment", f"{value[:80]!r} is not a SHA-256 in lower-case hex", Retry.NEVER)
    return value


def _unsafe(path: str, why: str) -> Fault:
    return Fault("UnsafePath", f"the file name {path[:120]!r} is refused: {why}", Retry.NEVER)
