"""Settings of accounts, from the environment: second factors, mail, and the company's sign-in (OpenID Connect)."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from tenants.openid import providers

SECOND_FACTOR_CHOICES = ("none", "admins", "everyone")
_MAIL_SCHEMES = {"smtp": (25, False, False), "smtp+starttls": (587, True, False), "smtps": (465, False, True)}


@dataclasses.dataclass(frozen=True)
class Mail:
    """Where mail goes out; ``host`` "" is nowhere."""

    host: str = ""
    port: int = 25
    user: str = ""
    password: str = ""
    starttls: bool = False
    tls: bool = False
    sender: str = ""


def second_factor(env: Mapping[str, str] = os.environ) -> str:
    """Of whom a second factor is required: ``MILLPOND_REQUIRE_SECOND_FACTOR``."""
    rule = env.get("MILLPOND_REQUIRE_SECOND_FACTOR", "none")
    if rule not in SECOND_FACTOR_CHOICES:
        raise ImproperlyConfigured(
            f"MILLPOND_REQUIRE_SECOND_FACTOR is one of {', '.join(SECOND_FACTOR_CHOICES)}, not {rule!r}"
        )
    return rule


def mail(env: Mapping[str, str] = os.environ) -> Mail:
    """``MILLPOND_EMAIL_URL`` (or the file ``MILLPOND_EMAIL_URL_FILE``) and ``MILLPOND_EMAIL_FROM``.

    ``smtp://``, ``smtp+starttls://`` or ``smtps://`` with ``user:password@host:port``.
    """
    url = env.get("MILLPOND_EMAIL_URL", "")
    if path := env.get("MILLPOND_EMAIL_URL_FILE", ""):
        url = _read(path, "MILLPOND_EMAIL_URL_FILE")
    if not url:
        return Mail()
    parts = urlsplit(url)
    if parts.scheme not in _MAIL_SCHEMES or not parts.hostname:
        raise ImproperlyConfigured(
            "MILLPOND_EMAIL_URL begins with smtp://, smtp+starttls:// or smtps:// and has a host"
        )
    if parse_qsl(parts.query):
        raise ImproperlyConfigured("MILLPOND_EMAIL_URL takes no query")
    port, starttls, tls = _MAIL_SCHEMES[parts.scheme]
    return Mail(
        host=parts.hostname,
        port=parts.port or port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starttls=starttls,
        tls=tls,
        sender=env.get("MILLPOND_EMAIL_FROM", "") or f"millpond@{parts.hostname}",
    )


def openid(env: Mapping[str, str] = os.environ) -> tuple[providers.Provider, ...]:
    """The providers of the JSON file ``MILLPOND_OPENID_FILE``; see :mod:`tenants.openid.providers` for its shape."""
    path = env.get("MILLPOND_OPENID_FILE", "")
    if not path:
        return ()
    try:
        return providers.parse(_read(path, "MILLPOND_OPENID_FILE"))
    except providers.BadProvider as exc:
        raise ImproperlyConfigured(f"MILLPOND_OPENID_FILE: {exc}") from None


def _read(path: str, name: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as exc:
        raise ImproperlyConfigured(f"{name} cannot be read: {exc.strerror}") from None
