"""Products of devices by the names that people give them (pure): ``H100`` is any ``NVIDIA H100 80GB HBM3``, and the
instances that one is cut into; ``A10`` is no ``A100``."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from scheduling.need import Need

_BETWEEN = re.compile(r"[\s_-]+")


def matching(names: Iterable[str], products: Iterable[str]) -> frozenset[str]:
    """Those of ``products`` in which the words of one of ``names`` stand one after another, in whatever case."""
    wanted = [_words(name) for name in names]
    return frozenset(product for product in products if any(_within(each, _words(product)) for each in wanted))


def allowed(names: Iterable[str], products: Iterable[str]) -> frozenset[str]:
    """What a need may be bound to: what ``names`` say of ``products``, else the names, which nothing has; none: any."""
    named = tuple(names)
    return matching(named, products) or frozenset(named)


def bound(needs: Mapping[str, Need], names: Iterable[str], products: Iterable[str]) -> dict[str, Need]:
    """``needs`` on what ``names`` say of the ``products`` that there are; on nothing where there is none of them."""
    fine = allowed(names, products)
    if not fine:
        return dict(needs)
    found = {}
    for key, need in needs.items():
        here = need.products & fine if need.products else fine
        if here:
            found[key] = dataclasses.replace(need, products=here)
    return found or {key: dataclasses.replace(need, products=fine) for key, need in needs.items()}


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN.split(name.casefold()) if word]


def _within(part: list[str], whole: list[str]) -> bool:
    count = len(part)
    return bool(part) and any(whole[at : at + count] == part for at in range(len(whole) - count + 1))
