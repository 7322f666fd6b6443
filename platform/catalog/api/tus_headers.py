"""The headers of tus 1.0.0: reading and checking them (pure)."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from catalog.errors import UnsupportedMedia
from kernel import errors

VERSION: Final = "1.0.0"
EXTENSIONS: Final = "creation,checksum,expiration,termination"
ALGORITHMS: Final = ("sha1", "sha256")
PATCH_TYPE: Final = "application/offset+octet-stream"
MAX_METADATA_BYTES: Final = 4096
_PATH = re.compile(r"^/api/v1/tenants/([A-Za-z0-9-]{1,40})/uploads(?:/([0-9A-Za-z-]{1,64}))?/?$")
_NUMBER = re.compile(r"^[0-9]{1,18}$")
_OVERRIDES: Final = ("PATCH", "DELETE", "HEAD")


class Target(NamedTuple):
    """What a path names: a tenant's uploads, or one of them (its id still unchecked)."""

    tenant: str
    upload: str


class Checksum(NamedTuple):
    """``Upload-Checksum``: the algorithm and the digest that the body must have."""

    algorithm: str
    digest: bytes


def target_of(path: str) -> Target | None:
    """The target of ``path``, or ``None`` when it is no upload route."""
    found = _PATH.match(path)
    return Target(found[1], found[2] or "") if found else None


def read(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """ASGI headers by lower-case name; of a repeated one the last counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in raw}


def method_of(method: str, headers: Mapping[str, str]) -> str:
    """The method, after ``X-HTTP-Method-Override`` of a POST."""
    wanted = headers.get("x-http-method-override", "").upper()
    return wanted if method == "POST" and wanted in _OVERRIDES else method


def require_version(headers: Mapping[str, str]) -> None:
    """Refuse another protocol version."""
    if headers.get("tus-resumable") != VERSION:
        raise errors.PreconditionFailed(
            f"Send the header Tus-Resumable: {VERSION}; this is the only version spoken here.", code="tus_version"
        )


def require_patch_type(headers: Mapping[str, str]) -> None:
    """Refuse another content type of a PATCH."""
    if headers.get("content-type", "").split(";")[0].strip().lower() != PATCH_TYPE:
        raise UnsupportedMedia(f"Send the bytes with Content-Type: {PATCH_TYPE}.")


def number(headers: Mapping[str, str], name: str) -> int:
    """A header that is a whole number.

    Raises:
        errors.InvalidInput: missing or no number.
    """
    text = headers.get(name.lower(), "")
    if not _NUMBER.match(text):
        raise errors.InvalidInput(f"The header {name} is missing or not a whole number of bytes.", data={"field": name})
    return int(text)


def length_of(headers: Mapping[str, str], largest: int) -> int:
    """``Upload-Length`` of a creation.

    Raises:
        errors.InvalidInput: missing, or deferred.
        errors.TooLarge: more than ``largest`` bytes.
    """
    if "upload-defer-length" in headers:
        raise errors.InvalidInput(
            "Upload-Defer-Length is not supported; say Upload-Length.", data={"field": "Upload-Length"}
        )
    length = number(headers, "Upload-Length")
    if length > largest:
        raise errors.TooLarge(f"A file has at most {largest} bytes here.", data={"limit": largest})
    return length


def metadata_of(text: str) -> dict[str, str]:
    """``Upload-Metadata``: comma-separated pairs of a key and a base64 value.

    Raises:
        errors.InvalidInput: malformed, too long, or a key twice.
    """
    if len(text) > MAX_METADATA_BYTES:
        raise errors.InvalidInput(
            f"Upload-Metadata has at most {MAX_METADATA_BYTES} bytes.", data={"field": "Upload-Metadata"}
        )
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = pair.partition(" ")
        try:
            decoded = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            raise errors.InvalidInput(
                f"Upload-Metadata: the value of {key[:40]!r} is not base64 of UTF-8 text.",
                data={"field": "Upload-Metadata"},
            ) from None
        if key in found:
            raise errors.InvalidInput(f"Upload-Metadata has {key[:40]!r} twice.", data={"field": "Upload-Metadata"})
        found[key] = decoded
    return found


def checksum_of(headers: Mapping[str, str]) -> Checksum | None:
    """``Upload-Checksum``, or ``None`` without one.

    Raises:
        errors.InvalidInput: malformed, or an algorithm that is not supported.
    """
    text = headers.get("upload-checksum")
    if text is None:
        return None
    algorithm, _, value = text.partition(" ")
    if algorithm not in ALGORITHMS:
        raise errors.InvalidInput(
            f"The checksum algorithm is one of {', '.join(ALGORITHMS)}.",
            code="checksum_unsupported",
            data={"field": "Upload-Checksum"},
        )
    try:
        return Checksum(algorithm, base64.b64decode(value.strip(), validate=True))
    except (binascii.Error, ValueError):
        raise errors.InvalidInput("Upload-Checksum is not base64.", data={"field": "Upload-Checksum"}) from None
