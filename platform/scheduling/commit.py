"""Making a plan true: everything is checked again under lock, and a stale plan writes nothing."""

from django.db import models, transaction

from fleet import partitions
from fleet.changes import Changes
from fleet.errors import CapacityGone
from kernel import errors, machine, scope
from kernel.actors import system
from kernel.conflicts import retry_on_conflict
from ledger.record import record_move
from quotas.services import require as require_quota
from scheduling import snapshot as snapshots
from scheduling.feasible import refuse
from scheduling.plan import Answer
from serving.models import Deployment, Replica
from serving.states import REPLICA, DeploymentState, ReplicaState

ACTOR = system("scheduling")


@retry_on_conflict
def commit(answer: Answer) -> None:
    """Give the replica its partition and its node, in one transaction.

    Raises:
        CapacityGone: the device cannot take it any more; plan again.
        errors.StaleTransition: the replica is not waiting any more.
        errors.QuotaExceeded: the tenant may not hold that much device memory.
    """
    device, need, ask = answer.chosen, answer.need, answer.ask
    if device is None or need is None:
        raise ValueError("a refusal cannot be committed")
    with transaction.atomic(), scope.all_tenants():
        running = Deployment.objects.select_for_update(of=("self",), no_key=True).select_related("tenant")
        deployment = running.filter(id=ask.deployment_id, state=DeploymentState.RUNNING).first()
        if deployment is None:
            raise errors.StaleTransition("The deployment does not run any more.")
        require_quota(deployment.tenant, hbm_bytes=need.memory_bytes)
        if partitions.lock_device(device.id).node_id != device.node_id:
            raise CapacityGone("The device has moved to another node since the plan was made.")
        replica = Replica.objects.select_for_update(no_key=True).filter(id=ask.replica_id).first()
        if replica is None or replica.generation != ask.generation or replica.state != ReplicaState.PENDING:
            raise errors.StaleTransition("The replica does not wait for a place any more.")
        fresh = snapshots.take(only_device=device.id)
        if not fresh.devices or refuse(fresh.devices[0], fresh.nodes[device.node_id], ask.needs) is not None:
            raise CapacityGone("The device has changed since the plan was made.")
        share = partitions.Share(memory_bytes=need.memory_bytes, host_bytes=need.host_bytes, millicpus=need.millicpus)
        partitions.take(replica_id=replica.id, device_id=device.id, share=share)
        move = machine.move(
            replica,
            REPLICA,
            ReplicaState.ASSIGNED,
            reason="Placed",
            message=f"Placed on {device.product} of node {fresh.nodes[device.node_id].name}.",
            node_id=device.node_id,
            explanation=answer.explanation(),
            retry_at=None,
        )
        record_move(
            move,
            actor=ACTOR,
            tenant_id=replica.tenant_id,
            subject_label=replica.short_id,
            data={"device": device.uuid, "memory_bytes": need.memory_bytes, "generation": replica.generation},
        )
        changes = Changes()
        rows = Replica._base_manager.filter(id=replica.id)
        changes.node(device.node_id, lambda value: _note(rows, value))
        changes.tenant(replica.tenant_id, "deployments", replica.deployment_id)
        changes.platform("devices")
        changes.announce()


def _note(rows: "models.QuerySet[Replica]", value: int) -> None:
    rows.update(node_generation=value)
