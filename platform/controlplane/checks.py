"""System checks that a deployment must pass."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.db import connection


@register("database", databases=["default"])
def postgres_version(
    *, app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None, **kwargs: Any
) -> list[CheckMessage]:
    """Postgres 15 or newer."""
    if not databases:
        return []
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        version = int(cursor.fetchone()[0])
    if version < 150000:
        return [Error(f"Postgres {version // 10000} is too old; use 15 or newer.", id="controlplane.E001")]
    return []


@register("security")
def pepper_length(
    *, app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None, **kwargs: Any
) -> list[CheckMessage]:
    """The pepper of key digests has 256 bits."""
    if len(settings.KEY_PEPPER) < 32:
        return [Error("MILLPOND_KEY_PEPPER has fewer than 64 hexadecimal digits.", id="controlplane.E002")]
    return []
