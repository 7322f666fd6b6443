"""Making a plan true: everything is checked again under lock, and a stale plan writes nothing."""

from django.db import models, transaction

from fleet import partitions
from fleet.changes import Changes
from fleet.errors import CapacityGone
from fleet.models import Isolation
from kernel import errors, machine, scope
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from ledger.record import record_move
from quotas.services import require as require_quota
from scheduling import reading
from scheduling.answers import Answer, Place
from scheduling.feasible import refuse
from scheduling.need import Need, charge
from serving.models import Deployment, Replica
from serving.states import REPLICA, WAITING_FOR_PLACEMENT, DeploymentState, ReplicaState

ACTOR = system("scheduling")


@retry_on_conflict
def commit(answer: Answer) -> None:
    """Give every rank of the replica its partition, and the replica its node, in one transaction: all or nothing.

    Raises:
        CapacityGone: a device cannot take its rank any more; plan again.
        errors.StaleTransition: the replica is not waiting any more.
        errors.QuotaExceeded: the tenant may not hold that much device memory or that many GPUs.
        ValueError: a refusal, or ranks on several nodes: a replica has one node.
    """
    need, ask = answer.need, answer.ask
    if need is None or not answer.places:
        raise ValueError("a refusal cannot be committed")
    first = answer.places[0]
    if any(place.node.id != first.node.id for place in answer.places):
        raise ValueError("a replica runs on one node")
    with transaction.atomic(), scope.all_tenants():
        running = Deployment.objects.select_for_update(of=("self",), no_key=True).select_related("tenant")
        deployment = running.filter(id=ask.deployment_id, state=DeploymentState.RUNNING).first()
        if deployment is None:
            raise errors.StaleTransition("The deployment does not run any more.")
        gpus = sum(charge(need, place.device) for place in answer.places)
        require_quota(deployment.tenant, hbm_bytes=need.total_bytes, gpu_millis=gpus)
        for place in sorted(answer.places, key=lambda each: each.device.uuid):
            if partitions.lock_device(place.device.id).node_id != first.node.id:
                raise CapacityGone("The device has moved to another node since the plan was made.")
        replica = Replica.objects.select_for_update(no_key=True).filter(id=ask.replica_id).first()
        if replica is None or replica.generation != ask.generation or replica.state != ReplicaState.PENDING:
            raise errors.StaleTransition("The replica does not wait for a place any more.")
        _check(answer)
        for place in answer.places:
            partitions.take(
                replica_id=replica.id, device_id=place.device.id, share=_share(place, need), rank=place.rank
            )
        _assign(replica, answer, first, need)


def _check(answer: Answer) -> None:
    """The filters again, on the rows as they are under lock."""
    node_id = answer.places[0].node.id
    fresh = reading.take(only_nodes=[node_id])
    devices = {device.id: device for device in fresh.devices}
    for place in answer.places:
        now = devices.get(place.device.id)
        if now is None or refuse(now, fresh.nodes[node_id], answer.ask.needs) is not None:
            raise CapacityGone("The device has changed since the plan was made.")


def _share(place: Place, need: Need) -> partitions.Share:
    return partitions.Share(
        memory_bytes=need.memory_bytes,
        host_bytes=place.host_bytes,
        millicpus=place.millicpus,
        isolation=_isolation(place, need),
    )


def _isolation(place: Place, need: Need) -> Isolation:
    if place.device.parent:
        return Isolation.MIG
    return Isolation.EXCLUSIVE if need.whole else Isolation.COOPERATIVE


def _assign(replica: Replica, answer: Answer, first: Place, need: Need) -> None:
    more = f" and {len(answer.places) - 1} more" if len(answer.places) > 1 else ""
    was_refused = replica.reason != WAITING_FOR_PLACEMENT
    move = machine.move(
        replica,
        REPLICA,
        ReplicaState.ASSIGNED,
        reason="Placed",
        message=f"Placed on {first.device.product}{more} of node {first.node.name}.",
        node_id=first.node.id,
        explanation=answer.explanation(),
        retry_at=None,
    )
    data = {"device": first.device.uuid, "memory_bytes": need.total_bytes, "generation": replica.generation}
    if more:
        data["devices"] = [place.device.uuid for place in answer.places]
    record_move(move, actor=ACTOR, tenant_id=replica.tenant_id, subject_label=replica.short_id, data=data)
    changes = Changes()
    rows = Replica._base_manager.filter(id=replica.id)
    changes.node(first.node.id, lambda value: _note(rows, value))
    changes.tenant(replica.tenant_id, "deployments", replica.deployment_id)
    changes.platform("devices")
    if was_refused:  # gateways hold requests for it again
        changes.routes()
    changes.announce()


def _note(rows: "models.QuerySet[Replica]", value: int) -> None:
    rows.update(node_generation=value)
