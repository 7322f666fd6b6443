"""What the stages of a replica really send over (pure): a plan is made for the best that a product can have, its places
may lie further apart."""

import dataclasses
from collections.abc import Sequence

from scheduling.answers import Place
from scheduling.links import SEND, Link
from scheduling.need import Need
from scheduling.topology import link_between


def as_placed(need: Need, places: Sequence[Place]) -> Need:
    """``need`` with the link that hidden states cross between stages on ``places``, in the order of their ranks."""
    choice = need.choice
    if choice is None or choice.chosen is None or choice.chosen.pp < 2:
        return need
    chosen = choice.chosen
    link = _slowest(places, max(chosen.tp, chosen.ep))
    sent = tuple(dataclasses.replace(each, link=link) if each.name == SEND else each for each in chosen.collectives)
    placed = dataclasses.replace(chosen, collectives=sent)
    return dataclasses.replace(need, choice=dataclasses.replace(choice, chosen=placed))


def _slowest(places: Sequence[Place], group: int) -> Link:
    """Each rank sends to the one at its own place in the next stage of ``group`` ranks."""
    pairs = zip(places, places[group:], strict=False)
    links = [link_between((one.node, one.device), (next_.node, next_.device)) for one, next_ in pairs]
    return min(links, key=lambda link: link.bytes_per_second)
