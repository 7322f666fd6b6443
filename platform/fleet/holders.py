"""Who owns a partition, in words, and what becomes of owners whose node is taken away.

Replicas are known to a room above this one, which registers how to do both.
"""

import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping

from fleet.changes import Changes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The owner of a partition, for people."""

    replica_id: uuid.UUID
    tenant: str
    endpoint: str
    deployment_id: uuid.UUID
    state: str


Describer = Callable[[Collection[uuid.UUID]], Mapping[uuid.UUID, Holder]]
Evicter = Callable[[uuid.UUID, Changes], None]
_describers: list[Describer] = []
_evicters: list[Evicter] = []


def described_by(describer: Describer) -> None:
    """Let ``describer`` say who the replicas are."""
    if describer not in _describers:
        _describers.append(describer)


def describe(replica_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Holder]:
    """The holders among ``replica_ids`` that somebody knows."""
    found: dict[uuid.UUID, Holder] = {}
    if replica_ids:
        for describer in _describers:
            found.update(describer(replica_ids))
    return found


def evicted_by(evicter: Evicter) -> None:
    """Let ``evicter`` take everything off a node that is removed, in the transaction that has locked the node."""
    if evicter not in _evicters:
        _evicters.append(evicter)


def evict(node_id: uuid.UUID, changes: Changes) -> None:
    """Take everything off a node: nothing refers to it afterwards, should it come back."""
    for evicter in _evicters:
        evicter(node_id, changes)
