"""Identifiers: UUIDv7 (RFC 9562), so that primary keys sort by creation; and secrets with a public part."""

import base64
import hashlib
import hmac
import secrets
import uuid
from typing import NamedTuple

import uuid_utils.compat

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def new_id() -> uuid.UUID:
    """A new UUIDv7."""
    return uuid_utils.compat.uuid7()


class Secret(NamedTuple):
    """A secret at birth: ``text`` is shown once and never stored."""

    text: str
    public_id: str
    last4: str


def new_secret(prefix: str) -> Secret:
    """Return ``<prefix>_<12 char id>_<43 char secret>`` with 256 random bits."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    body = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    text = f"{prefix}_{public_id}_{body}"
    return Secret(text, public_id, text[-4:])


def keyed_digest(text: str, pepper: bytes) -> str:
    """HMAC-SHA256 of ``text`` in hex: a fast hash is right for random 256-bit secrets."""
    return hmac.new(pepper, text.encode(), hashlib.sha256).hexdigest()


def public_part(text: str) -> str:
    """The public id inside a secret, or "" when ``text`` does not look like one."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and len(parts[1]) == 12 else ""
