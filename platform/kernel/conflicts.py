"""Transactions that the database gave up so that others can go on: the whole of the work is done again.

With one lock order (see the architecture page) this is rare; it is a net, not a plan.
"""

import functools
import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from django.db import OperationalError, connection

from kernel import errors

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 5
#: SQLSTATE of a deadlock and of a failed serialization: nothing was written, and the same again can succeed.
_AGAIN: Final = frozenset({"40P01", "40001"})

P = ParamSpec("P")
T = TypeVar("T")


def retry_on_conflict(work: Callable[P, T]) -> Callable[P, T]:
    """Run ``work``, which opens its own transaction, again when the database gave that up in favour of another.

    Called inside a transaction it runs once: only the outermost can be done again. ``work`` must leave nothing behind
    outside the database.

    Raises:
        errors.Unavailable: it was given up :data:`ATTEMPTS` times.
    """

    @functools.wraps(work)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        if connection.in_atomic_block:
            return work(*args, **kwargs)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work(*args, **kwargs)
            except OperationalError as exc:
                if not is_conflict(exc):
                    raise
                facts = {"work": work.__qualname__, "attempt": attempt, "why": str(exc)[:500]}
                logger.warning("transaction done again", extra=facts)
        raise errors.Unavailable("Too many changes at once; try again.", code="busy", data={"retry_after": 1})

    return again


def is_conflict(exc: OperationalError) -> bool:
    """True for a deadlock or a failed serialization."""
    return getattr(exc.__cause__, "sqlstate", None) in _AGAIN
