"""Liveness and readiness of the web process."""

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse


def live(_request: HttpRequest) -> JsonResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


def ready(_request: HttpRequest) -> JsonResponse:
    """The process can do its work: database and Valkey answer."""
    parts = {"database": _database(), "valkey": _valkey()}
    good = all(text == "ok" for text in parts.values())
    return JsonResponse({"status": "ok" if good else "unavailable", "parts": parts}, status=200 if good else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "does not answer"
    return "ok"


def _valkey() -> str:
    if not settings.VALKEY_URL:
        return "not configured"
    try:
        with redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=1) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer"
    return "ok"
