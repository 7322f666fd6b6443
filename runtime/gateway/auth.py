"""Who calls: the keyed hash of the presented key against the digests of the table. Keys themselves are never known."""

import functools
import hashlib
import hmac
import ipaddress
from typing import Final

import msgspec

from runtime.base import logs
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.table import Snapshot
from runtime.wire.inference import PRIORITIES
from runtime.wire.routes import KeyEntry, TenantEntry

log = logs.get(__name__)

MAX_KEY_CHARS: Final = 256
_BLOCK_BYTES: Final = 64
HEADER_CRITICALITY: Final = "x-millpond-criticality"
_DEFAULT: Final = "default"
_ALIASES: Final = {"standard": _DEFAULT}  # the name that KServe and llm-d give it
_MAX_HOPS: Final = 32

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Caller(msgspec.Struct, frozen=True):
    """An authenticated key and the tenant that pays."""

    key: KeyEntry
    tenant: TenantEntry


def digest_of(key: str, pepper: bytes) -> str:
    """Hex HMAC-SHA256 of the whole key text."""
    begun, outer = _begun(pepper)
    inner, outer = begun.copy(), outer.copy()
    inner.update(key.encode("utf-8", "surrogatepass"))
    outer.update(inner.digest())
    return outer.hexdigest()


@functools.lru_cache(maxsize=8)
def _begun(pepper: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """RFC 2104's two hashes with the pepper already in them: setting up an HMAC costs twice the rest, every request."""
    secret = pepper if len(pepper) <= _BLOCK_BYTES else hashlib.sha256(pepper).digest()
    padded = secret.ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha256(bytes(b ^ 0x36 for b in padded)), hashlib.sha256(bytes(b ^ 0x5C for b in padded))


def authenticate(authorization: str, snapshot: Snapshot, now: float) -> Caller:
    """Return the caller of a request with this ``Authorization`` header.

    Wrong, expired and revoked keys get the same words: only the holder of a valid key learns anything about it. While a
    rotation overlaps, the key's previous text is as good as the new one.

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
    entry = _find(key, snapshot, now)
    if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
        raise Refusal(
            Reason.UNAUTHENTICATED, 401, "The API key is incorrect, expired or revoked.", code="invalid_api_key"
        )
    tenant = snapshot.tenants[entry.tenant_id]
    if not tenant.active:
        raise Refusal(Reason.TENANT_INACTIVE, 403, "This tenant is switched off. Ask the platform's administrator.")
    return Caller(entry, tenant)


def _find(key: str, snapshot: Snapshot, now: float) -> KeyEntry | None:
    if len(key) > MAX_KEY_CHARS:
        return None
    digest = digest_of(key, snapshot.pepper)
    # The dictionaries go by a keyed hash, so their timing tells nothing about any key; the comparison is the belt.
    entry = snapshot.keys.get(digest)
    if entry is not None:
        return entry if hmac.compare_digest(entry.digest, digest) else None
    entry = snapshot.previous_keys.get(digest)
    if entry is None or not hmac.compare_digest(entry.previous_digest, digest) or entry.previous_expires_at <= now:
        return None
    return entry


def priority_of(asked: str, key: KeyEntry) -> str:
    """The criticality that a request names (``""``: none), where its key may ask for it.

    Raises:
        Refusal: 400 for a word that is none, 403 for one above default that the key has no permission for.
    """
    if not asked:
        return _DEFAULT
    name = _ALIASES.get(asked.lower(), asked.lower())
    if name not in PRIORITIES:
        raise Refusal(
            Reason.BAD_REQUEST,
            400,
            f"{HEADER_CRITICALITY} must be one of {', '.join(PRIORITIES)}.",
            code="invalid_value",
            param=HEADER_CRITICALITY,
        )
    if PRIORITIES.index(name) > PRIORITIES.index(_DEFAULT) and name not in key.criticalities:
        raise Refusal(
            Reason.CRITICALITY_NOT_ALLOWED,
            403,
            f"This API key may not send {name} requests. "
            f"Leave out {HEADER_CRITICALITY}, or have it allowed for the key.",
            code="criticality_not_allowed",
            param=HEADER_CRITICALITY,
        )
    return name


def check_address(caller: Caller, networks: tuple[Network, ...] | None, address: Address | None) -> None:
    """Refuse (403) a key that is used from outside its ``networks``; ``None`` lets it be used from anywhere."""
    if networks is None:
        return
    if address is not None and any(address in network for network in networks):
        return
    raise Refusal(
        Reason.ADDRESS_NOT_ALLOWED,
        403,
        "This API key may not be used from this address. Have the address added to the key's allow-list.",
        code="address_not_allowed",
    )


def client_address(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> Address | None:
    """Where a request comes from: the peer, or what trusted proxies say of it.

    ``forwarded`` is ``X-Forwarded-For``. It is read from the right and only as long as each hop is a trusted proxy:
    what a client wrote into it itself is never reached. ``None`` where there is no address (a unix socket, nonsense).
    """
    address = _parse(peer)
    for hop in reversed(forwarded.split(",")[-_MAX_HOPS:]):
        if address is None or not any(address in network for network in trusted):
            break
        if hop.strip():
            address = _parse(hop.strip())
    return address


def networks_of(texts: list[str]) -> tuple[Network, ...]:
    """Parse networks in CIDR form. One that is none is left out and reported: nothing matches it."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            log.warning("not a network; nothing matches it", network=text[:64])
    return tuple(found)


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
