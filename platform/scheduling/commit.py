"""Making a plan true: everything is checked again under lock, and a stale plan writes nothing."""

from typing import Final

from django.db import models, transaction

from fleet import partitions, policy
from fleet.changes import Changes
from fleet.errors import CapacityGone
from kernel import errors, machine, scope
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from kernel.isolation import Isolation
from ledger.record import record_move
from quotas.services import require as require_quota
from scheduling import reading
from scheduling.answers import Answer, Place
from scheduling.feasible import refuse
from scheduling.need import Need, charge, wall
from scheduling.snapshot import Snapshot
from serving import members
from serving.models import Deployment, Replica
from serving.states import REPLICA, WAITING_FOR_PLACEMENT, DeploymentState, ReplicaState

ACTOR = system("scheduling")


@retry_on_conflict
def commit(answer: Answer) -> None:
    """Give every rank of the replica its partition, and the replica its nodes, in one transaction: all or nothing.

    Raises:
        CapacityGone: a device cannot take its rank any more; plan again.
        errors.StaleTransition: the replica is not waiting any more.
        errors.QuotaExceeded: the tenant may not hold that much device memory or that many GPUs.
        ValueError: a refusal.
    """
    need, ask = answer.need, answer.ask
    if need is None or not answer.places:
        raise ValueError("a refusal cannot be committed")
    with transaction.atomic(), scope.all_tenants():
        running = Deployment.objects.select_for_update(of=("self",), no_key=True).select_related("tenant")
        deployment = running.filter(id=ask.deployment_id, state=DeploymentState.RUNNING).first()
        if deployment is None:
            raise errors.StaleTransition("The deployment does not run any more.")
        least = policy.required_by([deployment.tenant_id]).get(deployment.tenant_id, "")
        if not all(Isolation(wall(need, place.device)).meets(least) for place in answer.places):
            raise CapacityGone("The tenant has required a stricter isolation since the plan was made.")
        gpus = sum(charge(need, place.device) for place in answer.places)
        require_quota(deployment.tenant, hbm_bytes=need.total_bytes, gpu_millis=gpus)
        devices = partitions.lock({place.device.id: place.node.id for place in answer.places})
        replica = Replica.objects.select_for_update(no_key=True).filter(id=ask.replica_id).first()
        if replica is None or replica.generation != ask.generation or replica.state != ReplicaState.PENDING:
            raise errors.StaleTransition("The replica does not wait for a place any more.")
        _check(answer, need, reading.look(devices.values()))
        ranks = [
            partitions.Rank(device=devices[place.device.id], share=_share(place, need), rank=place.rank)
            for place in answer.places
        ]
        partitions.take(replica.id, ranks)
        _assign(replica, answer, need)


def _check(answer: Answer, need: Need, fresh: Snapshot) -> None:
    """The filters again, on the rows as they are under lock; stages that share a node must fit it together."""
    devices = {device.id: device for device in fresh.devices}
    for place in answer.places:
        now = devices.get(place.device.id)
        if now is None or refuse(now, fresh.nodes[place.node.id], {need.kind: need}) is not None:
            raise CapacityGone("The device has changed since the plan was made.")
    for node_id, node in fresh.nodes.items():
        here = [place for place in answer.places if place.node.id == node_id]
        host, millicpus = sum(place.host_bytes for place in here), sum(place.millicpus for place in here)
        if host > node.free_host_bytes or millicpus > node.free_millicpus:
            raise CapacityGone("The node has less free since the plan was made.")


def _share(place: Place, need: Need) -> partitions.Share:
    given = Isolation(wall(need, place.device))
    return partitions.Share(
        memory_bytes=need.memory_bytes,
        host_bytes=place.host_bytes,
        millicpus=place.millicpus,
        isolation=given,
        thread_percentage=need.millis // 10 if given is Isolation.MPS else 0,
    )


#: Where the ranks of a replica meet, on the node of the first: one port for each replica that begins there.
MEETING_PORTS: Final = range(29_500, 30_500)


def _parallel(answer: Answer, need: Need) -> dict[str, int]:
    """How the ranks divide the work, and where they meet; nothing for one device. The node is locked."""
    if len(answer.places) == 1:
        return {}
    here = Replica.objects.filter(node_id=answer.places[0].node.id).exclude(state=ReplicaState.STOPPED)
    taken = set(here.values_list("parallel__port", flat=True))
    port = next((port for port in MEETING_PORTS if port not in taken), None)
    if port is None:
        raise CapacityGone(f"Node {answer.places[0].node.name} has no port left where ranks could meet.")
    chosen = need.choice.chosen if need.choice is not None else None
    tensor, stages, expert = (chosen.tp, chosen.pp, chosen.ep) if chosen is not None else (need.devices, need.stages, 1)
    return {"tensor": tensor, "pipeline": stages, "expert": expert, "port": port}


def _assign(replica: Replica, answer: Answer, need: Need) -> None:
    first = answer.places[0]
    others = sorted({place.node.name for place in answer.places} - {first.node.name})
    more = f" and {len(answer.places) - 1} more" if len(answer.places) > 1 else ""
    where = f"node {first.node.name}" + (f" and {', '.join(others)}" if others else "")
    was_refused = replica.reason != WAITING_FOR_PLACEMENT
    move = machine.move(
        replica,
        REPLICA,
        ReplicaState.ASSIGNED,
        reason="Placed",
        message=f"Placed on {first.device.product}{more} of {where}.",
        node_id=first.node.id,
        explanation=answer.explanation(),
        parallel=_parallel(answer, need),
        retry_at=None,
    )
    nodes = {place.node.id for place in answer.places}
    members.join(replica, nodes)
    data = {"device": first.device.uuid, "memory_bytes": need.total_bytes, "generation": replica.generation}
    if more:
        data["devices"] = [place.device.uuid for place in answer.places]
    record_move(move, actor=ACTOR, tenant_id=replica.tenant_id, subject_label=replica.short_id, data=data)
    changes = Changes()
    rows = Replica._base_manager.filter(id=replica.id)
    changes.node(first.node.id, lambda value: _note(rows, value))
    if len(nodes) > 1:
        members.order(replica, changes)
    changes.tenant(replica.tenant_id, "deployments", replica.deployment_id)
    changes.platform("devices")
    if was_refused:  # gateways hold requests for it again
        changes.routes()
    changes.announce()


def _note(rows: "models.QuerySet[Replica]", value: int) -> None:
    rows.update(node_generation=value)
