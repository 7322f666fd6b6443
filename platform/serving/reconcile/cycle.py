"""Carrying plans out: :func:`settle` one deployment in the caller's transaction, :func:`run` for all that need it."""

import logging
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.db.models import Count, F, Q, QuerySet

from fleet import faults, loops, partitions
from fleet.changes import Changes
from fleet.models import Device, Node, Partition
from fleet.services import finish_drain
from fleet.states import NodeState
from kernel import clock, errors, machine, scope
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from ledger.record import record, record_move
from serving import leaving, members
from serving.models import Deployment, Member, Replica
from serving.reconcile import plan as planning
from serving.reconcile.plan import Do, ReplicaView, Step
from serving.states import MAY_GIVE_WAY, REPLICA, RUNNING_ON_NODE, WAITING_FOR_PLACEMENT, DeploymentState, ReplicaState

logger = logging.getLogger(__name__)

LOOP: Final = "serving.reconcile"
#: Outbox topic: something about replicas changed, look now.
WAKE: Final = "serving.changed"
#: Outbox topic: replicas wait for a place.
UNPLACED: Final = "serving.unplaced"
#: Where the explanation of a replica that waits says why its predecessor had to go.
GAVE_WAY: Final = "gave_way"
#: Where the explanation of a replica over several nodes says on which one its ranks failed, if not on the first.
FAILED_ON: Final = "failed_on"
GIVEN_UP_TEXT: Final = "It had failed before its node fell silent; the node has ended it."
ACTOR: Final = system("serving.reconcile")
#: Partitions of devices that replicas are to leave; a MIG instance is as sick as its GPU.


def settle(deployment: Deployment, changes: Changes) -> None:
    """Plan and act on one deployment, whose row the caller has locked; locks the nodes it runs on and its replicas."""
    with scope.tenant(deployment.tenant_id):
        replicas = _locked_replicas(deployment)
        sick = _sick_devices([replica.id for replica in replicas])
        running = deployment.state == DeploymentState.RUNNING
        decided = planning.plan(
            [_view(replica, sick.get(replica.id)) for replica in replicas],
            target=deployment.desired_replicas if running else 0,
            deleting=deployment.state == DeploymentState.DELETING,
            now=clock.now(),
        )
        by_id = {replica.id: replica for replica in replicas}
        for step in decided.steps:
            _ACTIONS[step.do](by_id[step.replica_id], step, changes)
        for _ in range(decided.create):
            _create(deployment, changes)
        if decided.finished:
            _finish(deployment, changes)


def give_way(deployment: Deployment, going: Mapping[uuid.UUID, tuple[str, str]], changes: Changes) -> int:
    """Let replicas of a deployment, whose row the caller has locked, end for others; return how many do.

    ``going`` has a reason and a sentence for each. They finish what they do; successors wait for a place at once, and
    say why. Those that have left or are not placed any more are let be.
    """
    with scope.tenant(deployment.tenant_id):
        told = ""
        drained = 0
        for replica in _locked_replicas(deployment):
            if replica.id in going and _may_give_way(replica):
                reason, told = going[replica.id]
                _drain(replica, Step(replica.id, Do.DRAIN, reason, told), changes)
                drained += 1
        _settle_saying(deployment, told, changes)
    return drained


def move_away(deployment: Deployment, going: Mapping[uuid.UUID, tuple[str, str]], changes: Changes) -> int:
    """Ask replicas of a deployment, whose row the caller has locked, to leave their places; return how many.

    ``going`` as in :func:`give_way`. Each serves on until its successor does, at most ``MOVE_PATIENCE``.
    """
    with scope.tenant(deployment.tenant_id):
        told, asked = "", 0
        for replica in _locked_replicas(deployment):
            if replica.id in going and _may_give_way(replica) and not replica.moving_at:
                reason, told = going[replica.id]
                words = {"reason": reason, "message": told}
                Replica.objects.filter(id=replica.id).update(moving_at=clock.now(), moving=words)
                record(
                    actor=ACTOR,
                    action="replica.moving",
                    subject_kind="replica",
                    subject_id=replica.id,
                    tenant_id=deployment.tenant_id,
                    subject_label=replica.short_id,
                    data=words,
                )
                asked += 1
        _settle_saying(deployment, told, changes)
    return asked


def _may_give_way(replica: Replica) -> bool:
    return replica.state in MAY_GIVE_WAY and not replica.recalled and members.hears(replica)


def _settle_saying(deployment: Deployment, told: str, changes: Changes) -> None:
    """Settle; the successors that are made say why their predecessors had to go."""
    known = set(Replica.objects.filter(deployment=deployment).values_list("id", flat=True))
    settle(deployment, changes)
    if told:
        made = Replica.objects.filter(deployment=deployment, state=ReplicaState.PENDING).exclude(id__in=known)
        made.update(message=told, explanation={GAVE_WAY: told})


def _locked_replicas(deployment: Deployment) -> list[Replica]:
    """The replicas as they are, and stay: neither a report nor a placement moves one while the plan is carried out.

    Under the deployment's lock no replica gets a node, so the nodes found first are all there are.
    """
    rows = Replica.objects.filter(deployment=deployment).exclude(node=None)
    beside = Member.objects.filter(replica__deployment=deployment).values("node_id")
    here = Node.objects.filter(Q(id__in=rows.values("node_id")) | Q(id__in=beside))
    list(here.select_for_update(no_key=True).order_by("id"))
    locked = Replica.objects.select_for_update(of=("self",), no_key=True).select_related("node")
    return list(locked.filter(deployment=deployment).prefetch_related("members__node").order_by("id"))


def _sick_devices(replica_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Device]:
    """By replica, a device that it has to leave; a dead one first."""
    parts = Partition.objects.select_related("device__parent").filter(
        leaving.ON_SICK_DEVICE, replica_id__in=replica_ids
    )
    found = ((part.replica_id, part.device.parent or part.device) for part in parts.order_by("rank"))
    return dict(sorted(found, key=lambda pair: pair[1].dead))


def run() -> int:
    """Settle every deployment that needs it; return how many were looked at. Finishes drains of nodes, too."""
    with loops.one_at_a_time(LOOP) as mine:
        if not mine:
            return 0
        done = sum(_settle_in_own_transaction(key) for key in _needing())
        _finish_node_drains()
        return done


def _needing() -> list[uuid.UUID]:
    """Deployments where wanted and existing differ, or where a replica is on the move. One query."""
    live = Q(replicas__state__in=[ReplicaState.PENDING, *RUNNING_ON_NODE])
    unrest = (
        Q(replicas__state__in=[ReplicaState.FAILED, ReplicaState.UNREACHABLE, ReplicaState.DRAINING])
        | leaving.condition("replicas__")
        | Q(replicas__state=ReplicaState.STOPPED, replicas__state_changed_at__lt=clock.now() - planning.KEEP_STOPPED)
    )
    with scope.all_tenants():
        rows = (
            Deployment.objects.annotate(
                live=Count("replicas", filter=live, distinct=True),
                unrest=Count("replicas", filter=unrest, distinct=True),
            )
            .filter(
                Q(unrest__gt=0)
                | Q(state=DeploymentState.RUNNING) & ~Q(live=F("desired_replicas"))
                | ~Q(state=DeploymentState.RUNNING) & Q(live__gt=0)
                | Q(state=DeploymentState.DELETING)
            )
            .order_by("id")
        )
        return list(rows.values_list("id", flat=True))


def _settle_in_own_transaction(deployment_id: uuid.UUID) -> int:
    try:
        return _settle_alone(deployment_id)
    except (errors.StaleTransition, errors.Unavailable, DatabaseError):
        # boundary: one deployment's trouble is not the others'; the next beat looks at what is then true
        logger.warning("deployment not settled", extra={"deployment": str(deployment_id)}, exc_info=True)
        return 0


@retry_on_conflict
def _settle_alone(deployment_id: uuid.UUID) -> int:
    with transaction.atomic(), scope.all_tenants():
        deployment = Deployment.objects.select_for_update(no_key=True).filter(id=deployment_id).first()
        if deployment is None:
            return 0
        changes = Changes()
        settle(deployment, changes)
        changes.announce()
    return 1


def _finish_node_drains() -> None:
    for node in Node.objects.filter(state=NodeState.DRAINING):
        if not Partition.objects.filter(device__node=node).exists():
            try:
                finish_drain(actor=ACTOR, node=node)
            except (errors.StaleTransition, errors.Unavailable):
                logger.info("drain overtaken", extra={"node": str(node.id)})


def _view(replica: Replica, sick: Device | None = None) -> ReplicaView:
    nodes = members.nodes_of(replica)
    return ReplicaView(
        id=replica.id,
        state=ReplicaState(replica.state),
        since=replica.state_changed_at,
        node_state=nodes[0].state if nodes else "",
        node_accepts_gap=any(node.accepts_gap for node in nodes),
        partly=len({node.state == NodeState.LOST for node in nodes}) > 1,
        retry_at=replica.retry_at,
        recalled=replica.recalled,
        ended=replica.node_id is None and replica.reason == planning.NODE_REMOVED,
        sick=faults.for_tenants(sick.reason) if sick is not None else "",
        dead=sick is not None and sick.dead,
        moving_since=replica.moving_at,
        moving=(replica.moving.get("reason", ""), replica.moving.get("message", "")),
    )


def new_token() -> str:
    """The bearer secret of an engine's port: 256 random bits."""
    return secrets.token_urlsafe(32)


def _create(deployment: Deployment, changes: Changes) -> None:
    now = clock.now()
    replica = Replica.objects.create(
        tenant_id=deployment.tenant_id,
        deployment=deployment,
        reason=WAITING_FOR_PLACEMENT,
        message="Waiting for a place.",
        token=new_token(),
        state_changed_at=now,
        created_at=now,
    )
    record(
        actor=ACTOR,
        action="replica.created",
        subject_kind="replica",
        subject_id=replica.id,
        tenant_id=deployment.tenant_id,
        subject_label=replica.short_id,
        data={"deployment": str(deployment.id)},
    )
    changes.wake(UNPLACED)
    _show(replica, changes)


def _drain(replica: Replica, step: Step, changes: Changes) -> None:
    if replica.node_id is None:
        _move(replica, ReplicaState.STOPPED, step, changes)
        return
    _move(replica, ReplicaState.DRAINING, step, changes)
    _order(replica, changes)


def _lose(replica: Replica, step: Step, changes: Changes) -> None:
    """The node was removed with everything it held; the replica starts over elsewhere on a new generation."""
    partitions.release(replica.id)
    members.part(replica)
    fields = _unplaced(replica) | {"retry_at": clock.now()}
    if replica.state == ReplicaState.FAILED:
        Replica.objects.filter(id=replica.id).update(**fields, reason=step.reason, message=step.message)
        _show(replica, changes)
    else:
        _move(replica, ReplicaState.FAILED, step, changes, **fields)


def _abandon(replica: Replica, step: Step, changes: Changes) -> None:
    partitions.release(replica.id)
    members.part(replica)
    _move(replica, ReplicaState.STOPPED, step, changes, node=None, address="")


def _unreach(replica: Replica, step: Step, changes: Changes) -> None:
    _move(replica, ReplicaState.UNREACHABLE, step, changes)


def _recall(replica: Replica, _step: Step, changes: Changes) -> None:
    Replica.objects.filter(id=replica.id).update(recalled=True)
    _order(replica, changes)


def _retry(replica: Replica, step: Step, changes: Changes) -> None:
    _move(replica, ReplicaState.PENDING, step, changes, retry_at=None, recalled=False)
    changes.wake(UNPLACED)


def _forget(replica: Replica, _step: Step, changes: Changes) -> None:
    Replica.objects.filter(id=replica.id, state=ReplicaState.STOPPED).delete()


_ACTIONS: Final[Mapping[Do, Callable[[Replica, Step, Changes], None]]] = {
    Do.DRAIN: _drain,
    Do.LOSE: _lose,
    Do.ABANDON: _abandon,
    Do.UNREACH: _unreach,
    Do.RECALL: _recall,
    Do.RETRY: _retry,
    Do.FORGET: _forget,
}


def evict(node_id: uuid.UUID, changes: Changes) -> None:
    """The node is being removed, under its lock: its replicas are lost at once, and start again elsewhere."""
    with scope.all_tenants():
        rows = Replica.objects.select_for_update(of=("self",), no_key=True).select_related("node")
        beside = Member.objects.filter(node_id=node_id).values("replica_id")
        found = rows.filter(Q(node_id=node_id) | Q(id__in=beside)).exclude(state=ReplicaState.STOPPED)
        for replica in found.prefetch_related("members__node").order_by("id"):
            step = planning.evicted(_view(replica))
            left = members.without(replica, node_id) if replica.members.all() else None
            if left is not None:
                _end_elsewhere(replica, left, step, changes)
            else:
                _ACTIONS[step.do](replica, step, changes)
            changes.wake(WAKE)


def _end_elsewhere(replica: Replica, left: Node, step: Step, changes: Changes) -> None:
    """One of several nodes was removed: the others end their ranks, and what they hold is free once they say so."""
    if replica.state == ReplicaState.DRAINING:
        Replica.objects.filter(id=replica.id).update(node=left)
        return
    fields = {"node": left, "recalled": True, "address": ""}
    if replica.state == ReplicaState.FAILED:
        Replica.objects.filter(id=replica.id).update(**fields, reason=step.reason, message=step.message)
    else:
        _move(replica, ReplicaState.FAILED, step, changes, **fields)
    replica.node = left
    _order(replica, changes)


def give_up(replica: Replica, changes: Changes) -> None:
    """The node has given up a recalled replica: free what it held, and wait before it is placed again.

    One that failed and whose node fell silent afterwards has failed all the same.
    """
    partitions.release(replica.id)
    members.part(replica)
    changes.node(_node_of(replica))
    changes.wake(WAKE)
    fields = _unplaced(replica) | {"retry_at": replica.state_changed_at + planning.backoff(replica.failures)}
    if replica.state == ReplicaState.FAILED:
        Replica.objects.filter(id=replica.id).update(**fields)
        _show(replica, changes)
    else:
        _move(replica, ReplicaState.FAILED, Step(replica.id, Do.RECALL, "GivenUp", GIVEN_UP_TEXT), changes, **fields)


def gone(replica: Replica, step_reason: str, changes: Changes) -> None:
    """The node has reported a draining replica gone: free what it held."""
    partitions.release(replica.id)
    members.part(replica)
    changes.node(_node_of(replica))
    changes.wake(WAKE)
    step = Step(replica.id, Do.DRAIN, step_reason, "Stopped; its node has confirmed it.")
    if replica.reason and replica.message:  # why it had to go is what its owner wants to read
        step = Step(replica.id, Do.DRAIN, replica.reason, replica.message)
    _move(replica, ReplicaState.STOPPED, step, changes, address="", progress=None)


def _unplaced(replica: Replica) -> dict[str, Any]:
    """A replica without a place, on its next generation: whatever still speaks for the old one is not heard."""
    return {
        "node": None,
        "address": "",
        "progress": None,
        "ledger": None,
        "stats": None,
        "restarts": 0,
        "recalled": False,
        "parallel": {},
        "moving_at": None,
        "moving": {},
        "generation": replica.generation + 1,
        "token": new_token(),
    }


def _node_of(replica: Replica) -> uuid.UUID:
    if replica.node_id is None:
        raise RuntimeError(f"replica {replica.id} is on no node")
    return replica.node_id


def _order(replica: Replica, changes: Changes) -> None:
    """Its nodes have new orders about this replica; remember at which counter they stand."""
    rows = Replica._base_manager.filter(id=replica.id)
    changes.node(_node_of(replica), lambda value: _note_order(rows, value))
    members.order(replica, changes)


def _note_order(rows: "QuerySet[Replica]", value: int) -> None:
    rows.update(node_generation=value)


def _move(replica: Replica, to: ReplicaState, step: Step, changes: Changes, **fields: Any) -> None:
    move = machine.move(replica, REPLICA, to, reason=step.reason, message=step.message, **fields)
    record_move(move, actor=ACTOR, tenant_id=replica.tenant_id, subject_label=replica.short_id)
    changes.routes()
    _show(replica, changes)


def _show(replica: Replica, changes: Changes) -> None:
    changes.tenant(replica.tenant_id, "deployments", replica.deployment_id)
    changes.platform("devices")


def _finish(deployment: Deployment, changes: Changes) -> None:
    """Nothing of a deleting deployment is left: forget it."""
    record(
        actor=ACTOR,
        action="deployment.deleted",
        subject_kind="deployment",
        subject_id=deployment.id,
        tenant_id=deployment.tenant_id,
    )
    changes.routes()
    changes.tenant(deployment.tenant_id, "deployments", deployment.id)
    Deployment.objects.filter(id=deployment.id).delete()
