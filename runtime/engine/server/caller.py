"""What the platform says about the caller of a request, in headers that no client's body can set."""

import math
from typing import Final

from runtime.base import asgi
from runtime.engine import errors
from runtime.engine.causal.sequences import DEFAULT_PRIORITY
from runtime.wire import inference

_LEAST_WEIGHT: Final = 0.001
_MOST_WEIGHT: Final = 1000.0


def weight(http: asgi.Request) -> float:
    """The tenant's share of the engine beside others who wait; 1 when nothing is said.

    Raises:
        errors.InvalidRequest: it is no number, or beyond reason.
    """
    text = http.header(inference.HEADER_TENANT_WEIGHT)
    if not text:
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST_WEIGHT <= value <= _MOST_WEIGHT:
        raise errors.InvalidRequest(
            f"{inference.HEADER_TENANT_WEIGHT} has to be a number from {_LEAST_WEIGHT} to {_MOST_WEIGHT:.0f}.",
            param=inference.HEADER_TENANT_WEIGHT,
        )
    return value


def priority(http: asgi.Request) -> int:
    """The priority class, as an index into ``inference.PRIORITIES``.

    Raises:
        errors.InvalidRequest: there is no such class.
    """
    name = http.header(inference.HEADER_PRIORITY)
    if not name:
        return DEFAULT_PRIORITY
    if name not in inference.PRIORITIES:
        raise errors.InvalidRequest(
            f"{inference.HEADER_PRIORITY} has to be one of {', '.join(inference.PRIORITIES)}.",
            param=inference.HEADER_PRIORITY,
        )
    return inference.PRIORITIES.index(name)
