"""Where a request goes: a variant by weight, then a replica by work, KV pressure and what it is likely to have cached.

Pure: everything that decides is passed in, so the live path and a replay of recorded traffic enter by the same door
(:func:`pick_replica`).
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from runtime.gateway.affinity import CHUNK_TOKENS
from runtime.gateway.replicas import Replica
from runtime.wire.routes import ReplicaRoute, Variant

MOST_OVER_MEAN: Final = 1.25  # no replica takes a request that would bring it above this share of the mean load
# How much a token of work that a replica has, or had lately, counts against one that it would have to compute anew. An
# engine works on many requests at a time, so a short queue costs little; a long one counts by its square.
_QUEUED: Final = 0.03
_LONG_QUEUE: Final = 2_000_000.0
_RECENT: Final = 0.01
_LOW_KV: Final = 0.2  # fraction of free KV blocks below which work counts more
_FULL_KV: Final = 0.03  # below it a replica is taken only when no other is left


class Choice(NamedTuple):
    """A replica, and the variant that it serves."""

    variant: Variant
    replica: ReplicaRoute


class Work(NamedTuple):
    """What a request is expected to cost: tokens of its prompt and of its answer, and its prefix keys."""

    prompt: int
    completion: int
    keys: Sequence[int] = ()


def pick_variant(variants: Sequence[Variant], draw: float) -> Variant:
    """The variant whose share ``draw`` in [0, 1) falls into. Weights are positive; order does not change shares."""
    point = draw * sum(variant.weight for variant in variants)
    for variant in variants:
        point -= variant.weight
        if point < 0:
            return variant
    return variants[-1]


def stick(variants: Sequence[Variant], sticky: bytes) -> Variant:
    """The variant of one caller: the same for the same ``sticky`` text.

    Weighted rendezvous hashing: shares follow the weights over many callers, and when a weight changes only as many
    callers move as the shares do; a variant that goes away leaves everybody else where they are.
    """
    if len(variants) == 1:
        return variants[0]
    return max(variants, key=lambda variant: _rank(variant, sticky))


def _rank(variant: Variant, sticky: bytes) -> tuple[float, str]:
    digest = hashlib.blake2b(sticky + b"\0" + variant.deployment_id.encode(), digest_size=8).digest()
    point = (int.from_bytes(digest, "little") + 0.5) / 2.0**64
    return variant.weight / -math.log(point), variant.deployment_id


def pick_replica(
    routes: Sequence[ReplicaRoute], states: Sequence[Replica], work: Work, *, now: float, tie: int
) -> tuple[ReplicaRoute, int]:
    """Return the replica to send to, and how many tokens of the prompt it is expected to have cached.

    ``states`` belong to ``routes``, which are all allowed to take it; ``now`` is in seconds on the monotonic clock;
    ``tie`` (any counter) rotates among equals.
    """
    if len(routes) == 1:
        return routes[0], _cached(states[0], work)
    free = [state.kv_free_at(now) for state in states]
    roomy = [at for at, fraction in enumerate(free) if fraction >= _FULL_KV]
    if roomy and len(roomy) < len(states):
        return pick_replica([routes[at] for at in roomy], [states[at] for at in roomy], work, now=now, tie=tie)
    count = len(routes)
    order = [(tie + offset) % count for offset in range(count)]
    cached = [_cached(state, work) for state in states]
    queued = [state.queued(now) for state in states]
    recent = [state.recent(now) for state in states]
    loads = [queue + sent for queue, sent in zip(queued, recent, strict=True)]
    queue_weight = _QUEUED if max(cached) > min(cached) else 1.0  # nothing to gain: the least loaded
    bound = MOST_OVER_MEAN * (sum(loads) + work.prompt + work.completion) / count
    least = min(loads)
    best, best_cost = order[0], math.inf
    for at in order:
        new = work.prompt - cached[at]
        if loads[at] > least and loads[at] + new + work.completion > bound:
            continue
        cost = new + queued[at] * (queue_weight + queued[at] / _LONG_QUEUE) + _RECENT * recent[at]
        cost *= _pressure(free[at])
        if cost < best_cost:
            best, best_cost = at, cost
    return routes[best], cached[best]


def _cached(state: Replica, work: Work) -> int:
    return min(work.prompt, state.index.match(work.keys) * CHUNK_TOKENS) if work.keys else 0


def _pressure(kv_free: float) -> float:
    return 1.0 if kv_free >= _LOW_KV else 2.0 - kv_free / _LOW_KV
