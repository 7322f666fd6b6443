"""Carrying out a relief, in one transaction, after everything is checked again.

Who finds no place elsewhere drains. Who does serves on until its successor serves there, and then drains. What a
replica with a lost node still has on others ends for its own successor, where that finds no other place.
"""

import logging
import uuid
from collections.abc import Sequence
from typing import Final

from django.db import transaction

from fleet.changes import Changes
from kernel import errors, scope
from kernel.conflicts import retry_on_conflict
from quotas.services import lock
from scheduling import reading
from scheduling.answers import Answer
from scheduling.snapshot import HolderView
from serving.models import Deployment, Replica
from serving.reconcile import cycle as serving
from serving.reconcile import plan as planning
from serving.states import DeploymentState, ReplicaState
from tenants.models import Tenant

logger = logging.getLogger(__name__)

PREEMPTED: Final = "Preempted"
RECLAIMED: Final = "Reclaimed"
#: Of another tenant nothing is said but that it had a claim.
RECLAIMED_TEXT: Final = "It gave its place back: it was above what is guaranteed to the tenant, and was claimed."


def give_way(answer: Answer) -> int:
    """Let the victims of ``answer.relief`` go; return how many. Nobody goes when the plan is not true any more."""
    try:
        return _give_way(answer)
    except (errors.StaleTransition, errors.Unavailable) as exc:
        logger.info("relief overtaken", extra={"replica": str(answer.ask.replica_id), "why": exc.detail})
        return 0  # the next beat plans again


@retry_on_conflict
def _give_way(answer: Answer) -> int:
    victims = answer.relief.victims if answer.relief is not None else ()
    if not victims:
        return 0
    with transaction.atomic(), scope.all_tenants():
        keys = {answer.ask.deployment_id, *(victim.deployment_id for victim in victims)}
        rows = Deployment.objects.select_for_update(of=("self",), no_key=True).select_related("tenant", "endpoint")
        deployments = {row.id: row for row in rows.filter(id__in=keys).order_by("id")}
        _check(answer, victims, deployments)
        changes = Changes()
        asked = 0
        movable = {holder.replica_id for holder in answer.relief.moves} if answer.relief is not None else set()
        asking = deployments[answer.ask.deployment_id]
        for key in sorted({victim.deployment_id for victim in victims}):
            going = {v.replica_id: _words(v, asking) for v in victims if v.deployment_id == key}
            moving = {replica_id: words for replica_id, words in going.items() if replica_id in movable}
            ending = {replica_id: words for replica_id, words in going.items() if replica_id not in movable}
            asked += serving.give_way(deployments[key], ending, changes) if ending else 0
            asked += serving.move_away(deployments[key], moving, changes) if moving else 0
        changes.announce()
    return asked


def _check(answer: Answer, victims: Sequence[HolderView], deployments: dict[uuid.UUID, Deployment]) -> None:
    """The one that asks still waits, nobody has become more important, and no guarantee is touched. Locks quotas."""
    ask = answer.ask
    asking = deployments.get(ask.deployment_id)
    waits = Replica.objects.filter(id=ask.replica_id, generation=ask.generation, state=ReplicaState.PENDING)
    if asking is None or asking.state != DeploymentState.RUNNING or not waits.exists():
        raise errors.StaleTransition("The replica does not wait for a place any more.")
    if asking.rank != ask.priority or any(
        victim.deployment_id not in deployments or deployments[victim.deployment_id].rank != victim.priority
        for victim in victims
    ):
        raise errors.StaleTransition("A priority has changed since the plan was made.")
    _check_quotas(answer, victims, {row.tenant_id: row.tenant for row in deployments.values()})


def _check_quotas(answer: Answer, victims: Sequence[HolderView], tenants: dict[uuid.UUID, Tenant]) -> None:
    mine = answer.ask.tenant_id
    foreign = sorted({victim.tenant_id for victim in victims} - {mine})
    for_group = answer.relief.for_group if answer.relief is not None else ()
    asking = [mine] if for_group and mine is not None else []
    for tenant_id in sorted([*foreign, *asking]):
        lock(tenants[tenant_id])
    views = reading.tenants_of([*foreign, *asking]) if foreign else {}
    for tenant_id in foreign:
        theirs = [victim for victim in victims if victim.tenant_id == tenant_id]
        if not views[tenant_id].borrowed(sum(v.released[0] for v in theirs), sum(v.released[1] for v in theirs)):
            raise errors.StaleTransition("What was borrowed is within a guarantee now.")
    for tenant_id in asking:
        if answer.relief is None or not views[tenant_id].within_guarantee(*answer.relief.asks):
            raise errors.StaleTransition("What is asked for is not guaranteed any more.")
        group = views[tenant_id].group
        if group is None or any(views[victim.tenant_id].group != group for victim in for_group):
            raise errors.StaleTransition("Who asks and who gives way are not in one group any more.")


def _words(victim: HolderView, asking: Deployment) -> tuple[str, str]:
    """Reason and sentence for the owner of ``victim``: names within its tenant, nothing about another."""
    if victim.deployment_id == asking.id:
        return planning.NODE_LOST, planning.STRANDED_TEXT
    if victim.tenant_id == asking.tenant_id:
        return PREEMPTED, f"It gave its place to {asking.endpoint.name}, which has a higher priority."
    return RECLAIMED, RECLAIMED_TEXT
