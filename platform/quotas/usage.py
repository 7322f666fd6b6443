"""What tenants hold, counted from what exists: nothing is booked twice, so nothing can drift.

Rooms above this one register how their kind is counted (the composition root joins them); a kind that nobody counts
is an error, never "nothing is used".
"""

from collections.abc import Callable

from quotas.amount import Amount, Kind
from tenants.models import Tenant

Counter = Callable[[Tenant], int]
_counters: dict[Kind, Counter] = {}


def counted_by(kind: Kind, counter: Counter) -> None:
    """Let ``counter`` (bytes or a count) say what a tenant holds of ``kind``."""
    if _counters.get(kind, counter) is not counter:
        raise RuntimeError(f"{kind} is counted by somebody else already")
    _counters[kind] = counter


def used(tenant: Tenant, kind: Kind) -> Amount:
    """What ``tenant`` holds of ``kind`` now."""
    try:
        counter = _counters[kind]
    except KeyError:
        raise RuntimeError(f"nobody counts {kind}; register with quotas.usage.counted_by") from None
    return Amount.of(counter(tenant))
