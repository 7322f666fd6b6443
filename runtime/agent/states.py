"""The phases of a replica on its node and the one function that moves between them.

fetching → loading → warming → ready ⇄ degraded, ready ⇄ asleep; any → draining → stopped; any → failed; failed and
stopped → fetching (the next try). Every edge belongs to the agent; the control plane has a state machine of its own and
reads these as observations.
"""

from collections.abc import Mapping
from typing import Final

from runtime.wire.reports import Phase

_END: Final = frozenset({Phase.DRAINING, Phase.STOPPED, Phase.FAILED})
EDGES: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.FETCHING: _END | {Phase.LOADING},
    Phase.LOADING: _END | {Phase.WARMING, Phase.FETCHING},
    Phase.WARMING: _END | {Phase.READY, Phase.LOADING},
    Phase.READY: _END | {Phase.DEGRADED, Phase.ASLEEP},
    Phase.DEGRADED: _END | {Phase.READY, Phase.ASLEEP},
    Phase.ASLEEP: _END | {Phase.READY, Phase.DEGRADED},
    Phase.DRAINING: _END,
    Phase.STOPPED: _END | {Phase.FETCHING},
    Phase.FAILED: _END | {Phase.FETCHING},
}


class IllegalMove(Exception):
    """A move that the table does not have: a mistake in the plan."""


def check(source: Phase, target: Phase) -> None:
    """Raise :class:`IllegalMove` unless ``source`` → ``target`` is an edge (staying is always allowed)."""
    if target is not source and target not in EDGES[source]:
        raise IllegalMove(f"{source} -> {target}")
