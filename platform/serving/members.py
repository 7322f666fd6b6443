"""Replicas whose ranks run on several nodes: which node decides, what each was told, and what each has proved."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from fleet import partitions
from fleet.changes import Changes
from fleet.models import Node
from fleet.states import ALIVE, NodeState
from serving.models import Member, Replica

#: What one node means for the whole, the worst first: a replica is no better off than the worst of its nodes.
_WORST_FIRST: Final = (
    NodeState.REMOVED, NodeState.LOST, NodeState.DRAINING, NodeState.DRAINED, NodeState.JOINING, NodeState.CORDONED,
    NodeState.READY,
)  # fmt: skip
_ORDER: Final = {state.value: at for at, state in enumerate(_WORST_FIRST)}


def join(replica: Replica, node_ids: Iterable[uuid.UUID]) -> None:
    """Note all nodes of a replica that has just been placed on several."""
    nodes = sorted(set(node_ids))
    if len(nodes) > 1:
        Member.objects.bulk_create(Member(replica=replica, node_id=node_id) for node_id in nodes)


def part(replica: Replica) -> None:
    """Forget them: the replica has no place any more."""
    Member.objects.filter(replica=replica).delete()


def nodes_of(replica: Replica) -> list[Node]:
    """Where something of the replica may run, the worst first: what becomes of that one becomes of the replica."""
    nodes = [member.node for member in replica.members.all() if not member.gone]
    nodes = nodes or ([replica.node] if replica.node is not None else [])
    return sorted(nodes, key=lambda node: _ORDER.get(node.state, 0))


def hears(replica: Replica) -> bool:
    """A node that runs something of the replica answers, and ends that when it is told to."""
    return any(node.state in ALIVE for node in nodes_of(replica))


def order(replica: Replica, changes: Changes) -> None:
    """Every node of the replica has new orders about it; remember at which counter they stand."""
    for member in Member.objects.filter(replica=replica, gone=False):
        rows = Member._base_manager.filter(id=member.id)
        changes.node(member.node_id, lambda value, rows=rows: rows.update(node_generation=value))  # type: ignore[misc]


def ended(replica: Replica, node_id: uuid.UUID) -> bool:
    """``node_id`` runs nothing of the replica any more: free what it held there; true when that was the last node."""
    partitions.release(replica.id, node_id=node_id)
    Member.objects.filter(replica=replica, node_id=node_id).update(gone=True)
    return not Member.objects.filter(replica=replica, gone=False).exists()


def without(replica: Replica, node_id: uuid.UUID) -> Node | None:
    """A node was taken away for ever. Return one of those that still run something of the replica, if any."""
    partitions.release(replica.id, node_id=node_id)
    Member.objects.filter(replica=replica, node_id=node_id).delete()
    rows = Member.objects.select_related("node").filter(replica=replica, gone=False).order_by("node_id")
    left = [member.node for member in rows]
    return min(left, key=lambda node: (node.id != replica.node_id, node.id), default=None)


def others(replica: Replica, members: Sequence[Member]) -> list[Member]:
    """The members of a replica beside its first node."""
    return [member for member in members if member.node_id != replica.node_id]
