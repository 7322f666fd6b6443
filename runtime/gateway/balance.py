"""Where a request goes: a variant by weight, then a replica by least outstanding work.

Pure: everything that decides is passed in, so the live path and a replay of recorded traffic enter by the same door.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from runtime.wire.routes import EndpointEntry, ReplicaRoute, Variant


class Choice(NamedTuple):
    """A replica, and the variant that it serves."""

    variant: Variant
    replica: ReplicaRoute


Outstanding = Callable[[str], int]


def choose(
    endpoint: EndpointEntry,
    *,
    draw: float,
    tie: int,
    outstanding: Outstanding,
    excluded: Collection[str] = (),
) -> Choice | None:
    """Return where to send a request, or ``None`` when no variant that takes traffic has a replica left.

    ``draw`` in [0, 1) picks the variant, ``tie`` (any counter) rotates among equally loaded replicas, and
    ``excluded`` holds replica ids that were tried already.
    """
    usable = [
        (variant, [replica for replica in variant.replicas if replica.replica_id not in excluded])
        for variant in endpoint.variants
        if variant.weight > 0
    ]
    usable = [(variant, replicas) for variant, replicas in usable if replicas]
    if not usable:
        return None
    index = pick_weighted([variant.weight for variant, _ in usable], draw)
    variant, replicas = usable[index]
    return Choice(variant, pick_least(replicas, outstanding, tie))


def pick_weighted(weights: Sequence[int], draw: float) -> int:
    """Index of the weight that ``draw`` in [0, 1) falls into. Weights are positive; order does not change shares."""
    point = draw * sum(weights)
    for index, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return index
    return len(weights) - 1


def pick_least(replicas: Sequence[ReplicaRoute], outstanding: Outstanding, tie: int) -> ReplicaRoute:
    """The replica with the least outstanding work; equals take turns by ``tie``."""
    loads = [outstanding(replica.replica_id) for replica in replicas]
    least = min(loads)
    equals = [replica for replica, load in zip(replicas, loads, strict=True) if load == least]
    return equals[tie % len(equals)]
