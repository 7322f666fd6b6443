"""Which devices of one node a group of ranks gets together (pure).

Where NVLink joins pairs or quads of a node, a group takes whole ones as far as it can, so that the others stay whole.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduling.need import Need


class _Taken(NamedTuple):
    """What is taken of the domains so far, by what it costs: the best is the least."""

    lost: int
    domains: int
    free: int
    members: tuple[int, ...]


def most(counts: Mapping[str, int], need: Need) -> int:
    """How many devices of a node a group of ``need`` could have at once, by how many of each NVLink domain are able.

    Devices without a domain are under "".
    """
    if not need.linked:
        return sum(counts.values())
    joined = [count for name, count in counts.items() if name]
    if not need.linked_by:
        return max(joined, default=0)
    return sum(count - count % need.linked_by for count in joined)


def sets(domains: Mapping[str, Sequence[int]], need: Need, free: Sequence[int]) -> list[tuple[int, ...]]:
    """The sets of devices that a group of ``need`` may be on, in the order of its ranks: one of each NVLink domain
    where all must be in one, else one of the node.

    ``domains`` has the positions of those that are able (without a domain: under ""), ``free`` what is free of each
    device: the tightest are taken first.
    """
    tight = {name: sorted(members, key=lambda at: (free[at], at)) for name, members in domains.items()}
    if need.linked and not need.linked_by:
        return [tuple(of[: need.devices]) for name, of in tight.items() if name and len(of) >= need.devices]
    joined = [members for name, members in tight.items() if name]
    alone = [[at] for at in tight.get("", ())] if not need.linked else []
    if len(joined) + bool(alone) < 2:
        every = sorted((at for members in (*joined, *alone) for at in members), key=lambda at: (free[at], at))
        return [tuple(every[: need.devices])] if len(every) >= need.devices else []
    best = _best((*joined, *alone), need.devices, need.linked_by or 1, free)
    return [best] if best else []


def _best(domains: Sequence[Sequence[int]], count: int, step: int, free: Sequence[int]) -> tuple[int, ...]:
    """``count`` devices, ``step`` at a time of one domain: so that the most that was whole stays so, of the fewest
    domains, the tightest; of equals the first."""
    found: dict[int, _Taken] = {0: _Taken(0, 0, 0, ())}
    for members in sorted(domains, key=min):
        after = dict(found)
        for taken in range(step, min(len(members), count) + 1, step):
            part = tuple(members[:taken])
            lost, left = whole(len(members)) - whole(len(members) - taken), sum(free[at] for at in part)
            for had, before in found.items():
                if had + taken <= count:
                    made = _Taken(before.lost + lost, before.domains + 1, before.free + left, (*before.members, *part))
                    known = after.get(had + taken)
                    if known is None or made[:3] < known[:3]:
                        after[had + taken] = made
        found = after
    return found[count].members if count in found else ()


def whole(devices: int) -> int:
    """What a domain is worth of which so many are left: one device has no partner, and larger domains are rarer."""
    return devices * devices if devices > 1 else 0
