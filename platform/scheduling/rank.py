"""Which of the nodes that can is best (pure). Same board, same answer.

In this order: a kind of device that is better (a GPU before a CPU); not where the replica has just failed; no fault
domain with more than its share of the deployment; then the lowest cost (``bins``, and ``scarcity`` of the product),
where a node that holds the weights may cost a little more; the first by name.
"""

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from scheduling.bins import NEVER, Option
from scheduling.board import Board, Spot
from scheduling.need import Need

#: A loss of one fault domain should leave this share of a deployment: at most 1/4 of it (and at least one) in one.
SPREAD_OVER: Final = 4
#: What it may cost to place a replica where its weights are: about half a tenth of a device, packed well.
LOCALITY: Final = 500.0


class Wish(NamedTuple):
    """What the choice of a node looks at beside the need. ``desired`` is how many replicas the deployment wants."""

    deployment_id: uuid.UUID
    desired: int = 1
    files: frozenset[str] = frozenset()
    avoid: uuid.UUID | None = None


def best(board: Board, need: Need, wish: Wish) -> Spot | None:
    """The best node and devices for one group of ``need``."""
    found, scarcity = board.scores(need), board.scarcity()
    beside = scarcity.costs(need)

    def option(at: int) -> Option:
        return found.with_scarcity(board.bins[at], beside) if beside else found.options[at]

    shunned = _shunned(board, wish)
    cost, at = found.best_with_scarcity(board.bins, scarcity, beside, shunned) if beside else found.best(shunned)
    for holder in _holders(board, wish.files):
        here = option(holder)[0]
        if here < NEVER and holder not in shunned and here - LOCALITY <= cost:
            cost, at = here - LOCALITY, holder
    if at < 0:
        rest = [(penalty, option(each)[0], each) for each, penalty in shunned.items() if found.costs[each] < NEVER]
        if not rest:
            return None
        at = min(rest)[2]
    return Spot(at, option(at)[1])


def cost(board: Board, need: Need, spot: Spot) -> float:
    """What one group of ``need`` costs at ``spot``, its product included."""
    return board.scores(need).with_scarcity(board.bins[spot.bin], board.scarcity().costs(need))[0]


def _shunned(board: Board, wish: Wish) -> dict[int, tuple[int, int]]:
    """Nodes that come after the others: where it failed, and where the deployment has its share already."""
    found: dict[int, tuple[int, int]] = {}
    counts = {at: count for at, count in board.replicas.get(wish.deployment_id, {}).items() if count > 0}
    if counts:
        share = max(1, -(-wish.desired // SPREAD_OVER))
        found = {at: (0, over) for at, over in _crowded(board, counts, share).items()}
    if wish.avoid is not None and (at := board.position.get(wish.avoid)) is not None:
        found[at] = (1, found.get(at, (0, 0))[1])
    return found


def _crowded(board: Board, counts: Mapping[int, int], share: int) -> dict[int, int]:
    """How many replicas too many each node would have around it, where that is any."""
    by_domain: dict[str, int] = {}
    for at, count in counts.items():
        domain = board.bins[at].node.fault_domain
        if domain:
            by_domain[domain] = by_domain.get(domain, 0) + count
    crowded = {at: count - share + 1 for at, count in counts.items() if count >= share}
    full = {domain: count for domain, count in by_domain.items() if count >= share}
    if full:
        for each in board.bins:
            if each.node.fault_domain in full:
                crowded[each.index] = full[each.node.fault_domain] - share + 1
    return crowded


def _holders(board: Board, files: frozenset[str]) -> list[int]:
    return [each.index for each in board.bins if files <= each.node.stored] if files else []
