"""Who calls: the keyed hash of the presented key against the digests of the table. Keys themselves are never known."""

import hashlib
import hmac
from typing import Final

import msgspec

from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.table import Snapshot
from runtime.wire.routes import KeyEntry, TenantEntry

MAX_KEY_CHARS: Final = 256


class Caller(msgspec.Struct, frozen=True):
    """An authenticated key and the tenant that pays."""

    key: KeyEntry
    tenant: TenantEntry


def digest_of(key: str, pepper: bytes) -> str:
    """Hex HMAC-SHA256 of the whole key text."""
    return hmac.new(pepper, key.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def authenticate(authorization: str, snapshot: Snapshot, now: float) -> Caller:
    """Return the caller of a request with this ``Authorization`` header.

    Wrong, expired and revoked keys get the same words: only the holder of a valid key learns anything about it.

    Raises:
        Refusal: 401 for a missing or unusable key, 403 for a tenant that is switched off.
    """
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if not key or scheme.lower() != "bearer":
        raise Refusal(
            Reason.UNAUTHENTICATED,
            401,
            "No API key was given. Send it as 'Authorization: Bearer <key>'.",
            code="missing_api_key",
        )
    entry = _find(key, snapshot)
    if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
        raise Refusal(
            Reason.UNAUTHENTICATED, 401, "The API key is incorrect, expired or revoked.", code="invalid_api_key"
        )
    tenant = snapshot.tenants[entry.tenant_id]
    if not tenant.active:
        raise Refusal(Reason.TENANT_INACTIVE, 403, "This tenant is switched off. Ask the platform's administrator.")
    return Caller(entry, tenant)


def _find(key: str, snapshot: Snapshot) -> KeyEntry | None:
    if len(key) > MAX_KEY_CHARS:
        return None
    digest = digest_of(key, snapshot.pepper)
    entry = snapshot.keys.get(digest)
    # The dictionary is keyed by a keyed hash, so its timing tells nothing about any key; the comparison is the belt.
    if entry is None or not hmac.compare_digest(entry.digest, digest):
        return None
    return entry
