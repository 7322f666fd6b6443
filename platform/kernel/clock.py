"""The control plane's wall clock. Services call :func:`now`; a test moves it with :func:`frozen`."""

import contextlib
import contextvars
import datetime
from collections.abc import Iterator

_override: contextvars.ContextVar[datetime.datetime | None] = contextvars.ContextVar("clock", default=None)


def now() -> datetime.datetime:
    """The time, aware, in UTC."""
    return _override.get() or datetime.datetime.now(datetime.UTC)


@contextlib.contextmanager
def frozen(at: datetime.datetime) -> Iterator[None]:
    """Within the block :func:`now` returns ``at`` in this thread or task."""
    token = _override.set(at)
    try:
        yield
    finally:
        _override.reset(token)
