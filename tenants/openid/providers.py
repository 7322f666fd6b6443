"""Providers of OpenID Connect, from a JSON file (pure).

``[{"id": "acme", "name": "Acme", "issuer": "https://sso.acme.example", "client_id": "…", "client_secret_file": "…"}]``

- ``id``: stands in addresses, lower-case letters, digits and hyphens; the redirect address to register at the provider
  is ``<public url>/accounts/openid/<id>/callback/``.
- ``client_secret`` or ``client_secret_file``; without either the client is a public one (PKCE is always used).
- ``unknown_users``: ``refuse`` (default) or ``create`` an account without any membership.
- ``domains``: only e-mail addresses of these may be matched or created; empty means any.
- ``scopes``: default ``openid email profile``.
"""

import dataclasses
import ipaddress
import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_ID: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_FIELDS: Final = frozenset(
    {
        "id", "name", "issuer", "client_id", "client_secret", "client_secret_file", "unknown_users", "domains",
        "scopes",
    }
)  # fmt: skip
MAX_PROVIDERS: Final = 20


class BadProvider(ValueError):
    """The file cannot be used; the text says why."""


@dataclasses.dataclass(frozen=True)
class Provider:
    """One place where people of a company sign in. ``client_secret`` "" is a public client."""

    id: str
    name: str
    issuer: str
    client_id: str
    client_secret: str = dataclasses.field(default="", repr=False)
    creates_users: bool = False
    domains: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("openid", "email", "profile")


def parse(text: str) -> tuple[Provider, ...]:
    """Read the file.

    Raises:
        BadProvider: it is not what it should be.
    """
    try:
        entries = json.loads(text)
    except ValueError:
        raise BadProvider("it is no JSON") from None
    if not isinstance(entries, list) or len(entries) > MAX_PROVIDERS:
        raise BadProvider(f"it is a list of at most {MAX_PROVIDERS} providers")
    found = tuple(_provider(entry) for entry in entries)
    if len({one.id for one in found}) != len(found) or len({one.issuer for one in found}) != len(found):
        raise BadProvider("each id and each issuer stands once")
    return found


def _provider(entry: Any) -> Provider:
    if not isinstance(entry, dict) or (unknown := set(entry) - _FIELDS):
        raise BadProvider(f"unknown fields: {', '.join(sorted(unknown))}" if isinstance(entry, dict) else "no object")
    ident, issuer = _text(entry, "id"), _text(entry, "issuer").rstrip("/")
    if not _ID.fullmatch(ident):
        raise BadProvider(f"id {ident!r}: use up to 32 lower-case letters, digits and hyphens")
    if not is_safe(issuer):
        raise BadProvider(f"issuer {issuer!r}: use https (plain http only on this machine)")
    rule = entry.get("unknown_users", "refuse")
    if rule not in ("refuse", "create"):
        raise BadProvider("unknown_users is refuse or create")
    scopes = tuple(_list(entry, "scopes")) or Provider.scopes
    return Provider(
        id=ident,
        name=_text(entry, "name"),
        issuer=issuer,
        client_id=_text(entry, "client_id"),
        client_secret=_secret(entry),
        creates_users=rule == "create",
        domains=tuple(domain.lower().lstrip("@") for domain in _list(entry, "domains")),
        scopes=scopes if "openid" in scopes else ("openid", *scopes),
    )


def _secret(entry: dict[str, Any]) -> str:
    if path := entry.get("client_secret_file"):
        try:
            return Path(str(path)).read_text().strip()
        except OSError as exc:
            raise BadProvider(f"client_secret_file cannot be read: {exc.strerror}") from None
    return str(entry.get("client_secret", ""))


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > 255:
        raise BadProvider(f"{name} is a text of 1 to 255 characters")
    return value.strip()


def _list(entry: dict[str, Any], name: str) -> list[str]:
    value = entry.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BadProvider(f"{name} is a list of texts")
    return value


def is_safe(url: str) -> bool:
    """https, or plain http to this machine alone."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not host or parts.username or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine by its name or number."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
