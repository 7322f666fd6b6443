"""Verbs on nodes and gateways. Platform admins only."""

from typing import Final

from django.db import transaction

from fleet import holders, joining, partitions
from fleet.changes import CAPACITY_CHANGED, Changes
from fleet.errors import NodeHoldsReplicas
from fleet.models import Device, Gateway, Node, Partition
from fleet.states import NODE, NodeState
from kernel import clock, errors, machine
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from kernel.texts import counted
from ledger import hints, outbox
from ledger.record import record, record_move
from tenants import access

create_join_token = joining.create_join_token


def cordon(*, actor: Actor, node: Node) -> Node:
    """Place nothing new on the node; what runs goes on."""
    return _move(actor, node, NodeState.CORDONED, "Cordoned", "Nothing new is placed here.")


def uncordon(*, actor: Actor, node: Node) -> Node:
    """Take the node back into service after a cordon or a drain."""
    return _move(actor, node, NodeState.READY, "Uncordoned", "In service again.")


def drain(*, actor: Actor, node: Node, accept_gap: bool = False) -> Node:
    """Move everything off the node: a replica stops once its successor elsewhere is ready.

    With ``accept_gap`` replicas stop at once, whether there is room for successors or not.
    """
    said = (
        "Replicas stop now." if accept_gap else "Replicas are moving; each stops when its successor elsewhere is ready."
    )
    return _move(actor, node, NodeState.DRAINING, "DrainAsked", said, accepts_gap=accept_gap)


def finish_drain(*, actor: Actor, node: Node) -> Node:
    """Nothing is left on a draining node."""
    return _move(
        actor,
        node,
        NodeState.DRAINED,
        "Drained",
        "Nothing runs here; the node can be taken out.",
        expect=NodeState.DRAINING,
    )


MAX_FAULT_DOMAIN: Final = 80


def set_fault_domain(*, actor: Actor, node: Node, name: str) -> Node:
    """Say what the node fails together with (a rack, a power feed); "" is the node by itself.

    Replicas of one deployment are spread over fault domains; what runs already stays.
    """
    access.require_platform_admin(actor)
    name = name.strip()
    if len(name) > MAX_FAULT_DOMAIN or not name.isprintable():
        raise errors.InvalidInput(
            f"A fault domain is a name of at most {MAX_FAULT_DOMAIN} characters, or nothing.", data={"field": "name"}
        )
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).get(id=node.id)
        if locked.fault_domain != name:
            record(
                actor=actor,
                action="node.fault_domain_set",
                subject_kind="node",
                subject_id=locked.id,
                tenant_id=None,
                subject_label=locked.name,
                data={"before": locked.fault_domain, "after": name},
            )
            Node.objects.filter(id=locked.id).update(fault_domain=name)
            locked.fault_domain = name
            hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "nodes", "node": str(locked.id)})
    return locked


@retry_on_conflict
def remove(*, actor: Actor, node: Node) -> Node:
    """Take the node out of the fleet; its credential is refused from now on.

    This is also how a person says that a lost node will not come back: what it held is free again.

    Raises:
        NodeHoldsReplicas: the node answers and still runs something; drain it first.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).get(id=node.id)
        held = Partition.objects.filter(device__node=locked)
        replica_ids = set(held.values_list("replica_id", flat=True))
        if replica_ids and locked.state != NodeState.LOST:
            raise NodeHoldsReplicas(
                f"Node {locked.name} still holds {counted(len(replica_ids), 'replica')}. "
                "Drain it and wait until it is drained.",
                data={"replicas": len(replica_ids)},
            )
        move = machine.move(
            locked, NODE, NodeState.REMOVED, reason="Removed", message=f"Removed by {actor.label}.", returns_to=""
        )
        changes = Changes()
        holders.evict(locked.id, changes)
        for replica_id in sorted(replica_ids):
            partitions.release(replica_id, node_id=locked.id)
        Device.objects.filter(node=locked).delete()
        record_move(
            move, actor=actor, tenant_id=None, subject_label=locked.name, data={"replicas_freed": len(replica_ids)}
        )
        changes.node(locked.id)
        changes.routes()
        changes.wake(CAPACITY_CHANGED)
        changes.announce()
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "nodes", "node": str(locked.id)})
    return locked


def remove_gateway(*, actor: Actor, gateway: Gateway) -> Gateway:
    """Refuse the gateway's credential from now on."""
    access.require_platform_admin(actor)
    with transaction.atomic():
        Gateway.objects.filter(id=gateway.id).update(removed_at=clock.now())
        record(
            actor=actor,
            action="gateway.removed",
            subject_kind="gateway",
            subject_id=gateway.id,
            tenant_id=None,
            subject_label=gateway.name,
        )
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "gateways"})
        gateway.refresh_from_db()
    return gateway


@retry_on_conflict
def _move(
    actor: Actor,
    node: Node,
    to: NodeState,
    reason: str,
    message: str,
    *,
    expect: NodeState | None = None,
    accepts_gap: bool = False,
) -> Node:
    access.require_platform_admin(actor)
    with transaction.atomic():
        fresh = Node.objects.select_for_update(no_key=True).get(id=node.id)
        if fresh.state == NodeState.LOST and to is not NodeState.DRAINED:
            return _move_lost(actor, fresh, to, accepts_gap)
        if fresh.state == to and (fresh.accepts_gap or not accepts_gap):
            return fresh
        if fresh.state == to:
            _accept_gap(actor, fresh, message)
        else:
            wanted = None if expect is None else [expect]
            move = machine.move(fresh, NODE, to, reason=reason, message=message, expect=wanted, accepts_gap=accepts_gap)
            record_move(move, actor=actor, tenant_id=None, subject_label=fresh.name)
        outbox.emit(CAPACITY_CHANGED, {"node": str(fresh.id)})
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "nodes", "node": str(fresh.id)})
    return fresh


def _accept_gap(actor: Actor, node: Node, message: str) -> None:
    """A drain that goes on already: what is left stops now."""
    Node.objects.filter(id=node.id).update(accepts_gap=True, message=message)
    node.accepts_gap, node.message = True, message
    record(
        actor=actor,
        action="node.gap_accepted",
        subject_kind="node",
        subject_id=node.id,
        tenant_id=None,
        subject_label=node.name,
    )


def _move_lost(actor: Actor, node: Node, to: NodeState, accepts_gap: bool) -> Node:
    """A lost node stays lost until it reports; what a person wants is what it comes back as."""
    Node.objects.filter(id=node.id, state=NodeState.LOST).update(returns_to=to, accepts_gap=accepts_gap)
    record(
        actor=actor,
        action=f"node.{to.value}_on_return",
        subject_kind="node",
        subject_id=node.id,
        tenant_id=None,
        subject_label=node.name,
    )
    node.returns_to = to
    return node
