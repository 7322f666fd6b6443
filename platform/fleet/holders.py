"""Who owns a partition, in words. Replicas are known to a room above this one, which registers how to describe them."""

import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The owner of a partition, for people."""

    replica_id: uuid.UUID
    tenant: str
    endpoint: str
    deployment_id: uuid.UUID
    state: str


Describer = Callable[[Collection[uuid.UUID]], Mapping[uuid.UUID, Holder]]
_describers: list[Describer] = []


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
