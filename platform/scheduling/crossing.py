"""What the ranks of a replica really send over (pure): a plan is made for the best that a product can have, its places
may lie further apart."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from scheduling.answers import Place
from scheduling.links import SEND, Collective, Link
from scheduling.need import Need
from scheduling.topology import link_between


def as_placed(need: Need, places: Sequence[Place]) -> Need:
    """``need`` with the links that its ranks cross on ``places``, which are in the order of the ranks: hidden states
    from stage to stage, everything else within one."""
    choice = need.choice
    if choice is None or choice.chosen is None or len(places) < 2:
        return need
    chosen = choice.chosen
    group = max(chosen.tp, chosen.ep)
    between = _slowest(zip(places, places[group:], strict=False))  # each to the one at its own place in the next stage
    inside = _slowest(pair for at, pair in enumerate(itertools.pairwise(places), 1) if at % group)
    crossed = tuple(_over(each, between if each.name == SEND else inside) for each in chosen.collectives)
    placed = dataclasses.replace(chosen, collectives=crossed)
    return dataclasses.replace(need, choice=dataclasses.replace(choice, chosen=placed))


def _over(sent: Collective, link: Link | None) -> Collective:
    return sent if link is None else dataclasses.replace(sent, link=link)


def _slowest(pairs: Iterable[tuple[Place, Place]]) -> Link | None:
    links = [link_between((one.node, one.device), (next_.node, next_.device)) for one, next_ in pairs]
    return min(links, key=lambda link: link.bytes_per_second, default=None)
