"""Logs of the control plane: one JSON line per event, secrets masked by field name and by shape."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_FIELDS = frozenset(
    {"authorization", "api_key", "token", "password", "secret", "credential", "cookie", "pepper"}
)
_SECRET_SHAPE = re.compile(r"\b(mp[a-z]?_)[A-Za-z0-9_-]{16,}")


def mask_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: mask secret fields and secret-shaped values."""
    for name, value in event.items():
        if name.lower() in _SECRET_FIELDS and value:
            event[name] = "[masked]"
        elif isinstance(value, str):
            event[name] = _SECRET_SHAPE.sub(r"\1[masked]", value)
    return event


def configure(config: dict[str, Any]) -> None:
    """Django's ``LOGGING_CONFIG``: ``config`` carries the level."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_event,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.get("level", "INFO"))
    logging.getLogger("django.request").setLevel(logging.ERROR)
    # A line per beat of every loop would bury what matters; a task that fails is logged above this level.
    for name in ("celery.app.trace", "celery.worker.strategy", "celery.beat", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
