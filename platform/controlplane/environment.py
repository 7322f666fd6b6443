"""Reading the environment: every setting of the control plane that an operator can change, with its default.

Secrets come from files (``$MILLPOND_HOME/secrets/*``, mode 0600, made on first use) or from the variables named here.
"""

import contextlib
import dataclasses
import os
import secrets
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Environment:
    """What the process was told."""

    home: Path
    debug: bool
    database_url: str
    valkey_url: str
    web_host: str
    web_port: int
    public_url: str
    gateway_url: str
    allowed_hosts: tuple[str, ...]
    secret_key: str
    key_pepper: bytes
    language: str
    currency: str


def _secret_file(home: Path, name: str) -> str:
    path = home / "secrets" / name
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as handle:
            handle.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # the first of several processes wins
        draft.unlink()
    return path.read_text().strip()


def read() -> Environment:
    """Read the process environment.

    Raises:
        ImproperlyConfigured: a variable has a value that cannot be used; the text says which and why.
    """
    env = os.environ
    home = Path(env.get("MILLPOND_HOME") or ROOT / ".millpond").resolve()
    host, port = env.get("MILLPOND_WEB_HOST", "127.0.0.1"), env.get("MILLPOND_WEB_PORT", "8100")
    gateway_port = env.get("MILLPOND_GATEWAY_PORT", "8101")
    if not port.isdigit() or not gateway_port.isdigit():
        raise ImproperlyConfigured("MILLPOND_WEB_PORT and MILLPOND_GATEWAY_PORT are numbers")
    pepper = env.get("MILLPOND_KEY_PEPPER") or _secret_file(home, "key_pepper")
    try:
        pepper_bytes = bytes.fromhex(pepper)
    except ValueError:
        raise ImproperlyConfigured("MILLPOND_KEY_PEPPER is hexadecimal, 64 digits") from None
    currency = env.get("MILLPOND_CURRENCY", "USD")
    if len(currency) != 3 or not (currency.isascii() and currency.isalpha() and currency.isupper()):
        raise ImproperlyConfigured("MILLPOND_CURRENCY is a code of three capital letters, like USD, EUR or CNY")
    hosts = env.get("MILLPOND_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    return Environment(
        home=home,
        debug=env.get("MILLPOND_DEBUG", "") == "1",
        database_url=env.get("DATABASE_URL", ""),
        valkey_url=env.get("VALKEY_URL", ""),
        web_host=host,
        web_port=int(port),
        public_url=env.get("MILLPOND_PUBLIC_URL", f"http://{host}:{port}").rstrip("/"),
        gateway_url=env.get("MILLPOND_GATEWAY_URL", f"http://127.0.0.1:{gateway_port}").rstrip("/"),
        allowed_hosts=tuple(name.strip() for name in hosts.split(",") if name.strip()),
        secret_key=env.get("MILLPOND_SECRET_KEY") or _secret_file(home, "secret_key"),
        key_pepper=pepper_bytes,
        language=env.get("MILLPOND_LANGUAGE", "en"),
        currency=currency,
    )


def database(url: str) -> dict[str, object]:
    """Django's database settings from ``postgresql://user:password@host:port/name?host=/socket/dir``."""
    if not url:
        raise ImproperlyConfigured(
            "DATABASE_URL is not set. Use `make run` for the embedded database, or set "
            "DATABASE_URL=postgresql://user:password@host:5432/millpond (Postgres 15 or newer)."
        )
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ImproperlyConfigured("DATABASE_URL begins with postgresql://")
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "millpond",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }
