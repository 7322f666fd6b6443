"""What tenants hold, counted from what exists: nothing is booked twice, so nothing can drift.

Rooms above this one register how their kind is counted (the composition root joins them); a kind that nobody counts
is an error, never "nothing is used".
"""

import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from quotas.amount import Amount, Kind
from tenants.models import Tenant

#: Bytes or a count by tenant, for all of them in one query; who holds nothing may be left out.
Counter = Callable[[Collection[uuid.UUID]], Mapping[uuid.UUID, int]]
#: The same of several kinds, all in that one query.
Together = Callable[[Collection[uuid.UUID]], Mapping[Kind, Mapping[uuid.UUID, int]]]


@dataclasses.dataclass(frozen=True)
class Part:
    """The counter of one ``kind`` of those that ``count`` counts; whoever asks for several of them asks it once."""

    count: Together
    kind: Kind

    def __call__(self, tenant_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, int]:
        return self.count(tenant_ids).get(self.kind, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """What one deployment holds, and in which order it would have to give way: the lowest ``priority`` first.

    ``tenant`` is the slug of its owner, filled in by :func:`holdings`.
    """

    label: str
    priority: int
    amounts: Mapping[Kind, Amount]
    tenant: str = ""


Breakdown = Callable[[Tenant], Sequence[Held]]
_counters: dict[Kind, Counter] = {}
_breakdowns: list[Breakdown] = []


def counted_by(kind: Kind, counter: Counter) -> None:
    """Let ``counter`` say what tenants hold of ``kind``."""
    if _counters.get(kind, counter) != counter:
        raise RuntimeError(f"{kind} is counted by somebody else already")
    _counters[kind] = counter


def broken_down_by(breakdown: Breakdown) -> None:
    """Let ``breakdown`` say which deployments hold what."""
    if breakdown not in _breakdowns:
        _breakdowns.append(breakdown)


def used(tenant: Tenant, kind: Kind) -> Amount:
    """What ``tenant`` holds of ``kind`` now."""
    return used_by([tenant.id], kind)[tenant.id]


def used_by(tenant_ids: Collection[uuid.UUID], kind: Kind) -> dict[uuid.UUID, Amount]:
    """What each of them holds of ``kind`` now; one query for all of them."""
    return used_of(tenant_ids, [kind])[kind]


def used_of(tenant_ids: Collection[uuid.UUID], kinds: Collection[Kind]) -> dict[Kind, dict[uuid.UUID, Amount]]:
    """What each of them holds of each of ``kinds`` now; at most one query for each, one for those counted together."""
    asked: dict[Together, Mapping[Kind, Mapping[uuid.UUID, int]]] = {}
    found = {}
    for kind in kinds:
        counter = _counter_of(kind)
        if isinstance(counter, Part):
            if counter.count not in asked:
                asked[counter.count] = counter.count(tenant_ids)
            held = asked[counter.count].get(kind, {})
        else:
            held = counter(tenant_ids)
        found[kind] = {tenant_id: Amount.of(held.get(tenant_id, 0)) for tenant_id in tenant_ids}
    return found


def _counter_of(kind: Kind) -> Counter:
    try:
        return _counters[kind]
    except KeyError:
        raise RuntimeError(f"nobody counts {kind}; register with quotas.usage.counted_by") from None


def holdings(tenant: Tenant) -> list[Held]:
    """What each deployment of ``tenant`` holds, those that would give way first at the front."""
    found = [dataclasses.replace(held, tenant=tenant.slug) for breakdown in _breakdowns for held in breakdown(tenant)]
    return sorted(found, key=lambda held: (held.priority, held.label))
