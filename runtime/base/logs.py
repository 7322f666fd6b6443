"""Structured logs: one line per event, JSON or readable, secrets masked by field name and by shape."""

import atexit
import logging
import re
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from runtime.base.patient import PatientStream

_SECRET_FIELDS: Final = frozenset(
    {"authorization", "api_key", "key", "token", "password", "secret", "credential", "cookie", "pepper"}
)
_SECRET_SHAPE: Final = re.compile(r"\b(mp[a-z]*_)[A-Za-z0-9_-]{16,}")
_MASK: Final = "[masked]"
_DRAIN_SECONDS: Final = 1.0
_STDERR: Final = 2
_streams: list[PatientStream] = []


def mask(text: str) -> str:
    """Return ``text`` with everything that looks like one of our secrets masked."""
    return _SECRET_SHAPE.sub(r"\1" + _MASK, text)


def mask_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: mask secret fields and secret-shaped values."""
    for name, value in event.items():
        if name.lower() in _SECRET_FIELDS and value:
            event[name] = _MASK
        elif isinstance(value, str):
            event[name] = mask(value)
    return event


def configure(*, process: str, json: bool = True, level: str = "INFO") -> None:
    """Set up structlog and the standard library's logging to write to stderr in one shape, without ever waiting."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_event,
    ]
    renderer: Any = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    stream = PatientStream(_STDERR)
    _streams[:] = [stream]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.contextvars.bind_contextvars(process=process)


def drain() -> None:
    """Wait a moment for what was logged to be written: before a process ends without its exit handlers."""
    for stream in _streams:
        stream.drain(_DRAIN_SECONDS)


atexit.register(drain)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
